"""FoPE.

    (x_a, x_b) <- (x_a C_m - x_b S_m,  x_a S_m + x_b C_m)
    C_m = sum_k A[0][h][k][m] cos(p θ_k),  S_m = sum_k A[1][h][k][m] sin(p θ_k),  θ_k = base^(-2k/d) >= 2π/L

Hua et al. 2024, Fourier Position Embedding (arXiv 2412.17739), section 4, and the authors' code, `FourierEmbedding`.
Conventions: pair m is the channels (m, m + d/2), or (2m, 2m+1) where interleaved. A has K frequencies and M pairs;
pairs from M on have C = S = 1. h is the head of the key; query head h reads A of key head h // (H / Hk). A is learned.
"""

import math
from typing import Any

from torch import Tensor

from .attention import Vector
from .case import HEAD_DIM, KV_HEADS, Case
from .turning import scores


def thetas(d: int, base: float, length: int) -> list[float]:
    """The frequencies that turn once within the length."""
    every = [base ** (-2 * k / d) for k in range(d // 2)]
    return [theta for theta in every if theta >= 2 * math.pi / length]


def mapped(x: Vector, p: float, theta: list[float], of_cos: list[Vector], of_sin: list[Vector], half: bool) -> Vector:
    """One token's query or key; the coefficients of its head."""
    out, d = list(x), len(x)
    for m in range(d // 2):
        c = s = 1.0
        if m < len(of_cos[0]):
            c = sum(of_cos[k][m] * math.cos(p * theta[k]) for k in range(len(theta)))
            s = sum(of_sin[k][m] * math.sin(p * theta[k]) for k in range(len(theta)))
        a, b = (m, m + d // 2) if half else (2 * m, 2 * m + 1)
        out[a] = x[a] * c - x[b] * s
        out[b] = x[a] * s + x[b] * c
    return out


def _pairs(base: float, length: int, half: bool) -> Any:
    def pairs(s: Any, query: Tensor, key: Tensor, x: Any, y: Any) -> dict[str, Any]:
        """Scores from nothing, of queries and keys that are mapped here."""
        of_cos, of_sin = s.coefficients.detach().tolist()
        theta = thetas(HEAD_DIM, base, length)
        return scores(query, key, x, y, lambda v, p, h: mapped(v, p, theta, of_cos[h], of_sin[h], half))

    return pairs


CASES = {
    "fope": Case(lambda FoPE: FoPE(KV_HEADS, HEAD_DIM, 40, 50.0), pairs=_pairs(50.0, 40, True)),
    "fope with fewer pairs than frequencies": Case(
        lambda FoPE: FoPE(KV_HEADS, HEAD_DIM, 90, 50.0, "interleaved", series=2), pairs=_pairs(50.0, 90, False)
    ),
}
