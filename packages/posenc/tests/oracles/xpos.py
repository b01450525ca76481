"""xPos.

    s_ij = scale sum_k ζ_k^(r / scale_base) Re((q_a + i q_b) conj(k_a + i k_b) e^(i r θ_k)),   r = p_i - p_j
    ζ_k  = (2k/d + 0.4) / 1.4,   θ_k = base^(-2k/d),   k = 0 .. d/2 - 1

Sun et al. 2022 (arXiv 2212.10554), section 3.2 and algorithm 1; numbers and the interleaved pairs (2k, 2k + 1) as in
torchscale's xpos_relative_position.py. Written by the distance alone: how far the factors of q and of k are from 1 by
themselves is nobody's business. Keys ahead of the query grow. Any real position will do.
"""

import cmath
import math
from typing import Any

from torch import Tensor

from .attention import Heads, Score, heads
from .case import HEAD_DIM, Case, rows


def score(
    query: Tensor | Heads, key: Tensor | Heads, x: Any, y: Any, base: float, scale_base: float, layout: str
) -> Score:
    """The logit of raw queries and keys at positions x and y, (B, M) and (B, N)."""
    q, k = heads(query), heads(key)
    group, d = len(q[0]) // len(k[0]), len(q[0][0][0])

    def faded(_: float, b: int, h: int, i: int, j: int) -> float:
        r, total = x[b][i] - y[b][j], 0.0
        for n in range(d // 2):
            first, second = (n, n + d // 2) if layout == "half" else (2 * n, 2 * n + 1)
            asks = complex(q[b][h][i][first], q[b][h][i][second])
            says = complex(k[b][h // group][j][first], k[b][h // group][j][second])
            zeta = (2 * n / d + 0.4) / 1.4
            turn = cmath.exp(1j * r * base ** (-2 * n / d))
            total += zeta ** (r / scale_base) * (asks * says.conjugate() * turn).real
        return total / math.sqrt(d)

    return faded


def by(base: float, scale_base: float, layout: str) -> Any:
    return lambda s, q, k, x, y: {"score": score(q, k, rows(x), rows(y), base, scale_base, layout)}


CASES = {
    "xpos": Case(lambda XPos: XPos(HEAD_DIM, 313.0, 7.0), pairs=by(313.0, 7.0, "interleaved")),
    "xpos half": Case(lambda XPos: XPos(HEAD_DIM, 77.0, 512.0, "half"), pairs=by(77.0, 512.0, "half")),
}
