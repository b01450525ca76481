"""LeRoPE.

    s_ij = scale sum_k Re((q_a + i q_b) conj(k_a + i k_b) e^(i (p_i - p_j) θ_k e^α_k)),  and channels that do not turn
    θ_k  = base^(-2k/n), first changed by a scaling;   k = 0 .. n/2 - 1,   n = rotary_dim

transformers' modeling_mistral_large4.py: frequencies times e^α, interleaved pairs (2k, 2k + 1) of a slice. The scaling
tried here divides frequencies by 4. Any real position will do.
"""

import cmath
import math
from typing import Any

from torch import Tensor

from .attention import Heads, Score, heads, vector
from .case import HEAD_DIM, Case, rows


def score(
    query: Tensor | Heads, key: Tensor | Heads, alpha: Any, x: Any, y: Any, theta: list[float], layout: str, start: int
) -> Score:
    """The logit of raw queries and keys at positions x and y, (B, M) and (B, N); pairs begin at channel ``start``."""
    q, k, grown = heads(query), heads(key), vector(alpha)
    group, d, pairs = len(q[0]) // len(k[0]), len(q[0][0][0]), len(theta)

    def turned(_: float, b: int, h: int, i: int, j: int) -> float:
        asked, said, total = q[b][h][i], k[b][h // group][j], 0.0
        for c in range(d):
            if not start <= c < start + 2 * pairs:
                total += asked[c] * said[c]
        for n in range(pairs):
            first, second = (n, n + pairs) if layout == "half" else (2 * n, 2 * n + 1)
            angle = (x[b][i] - y[b][j]) * theta[n] * math.exp(grown[n])
            product = complex(asked[start + first], asked[start + second])
            product *= complex(said[start + first], -said[start + second])
            total += (product * cmath.exp(1j * angle)).real
        return total / math.sqrt(d)

    return turned


def by(theta: list[float], layout: str, start: int) -> Any:
    return lambda scheme, q, k, x, y: {"score": score(q, k, scheme.alpha, rows(x), rows(y), theta, layout, start)}


def grown(scheme: Any) -> Any:
    """With α of order 0.3: one of order 1 turns by e^2 radians a position, which no finite difference follows."""
    scheme.alpha.data.normal_(std=0.3)
    return scheme


CASES = {
    "le_rope": Case(
        lambda LeRoPE: grown(LeRoPE(HEAD_DIM, 313.0)),
        wide=False,
        pairs=by([313.0 ** (-k / 3) for k in range(3)], "interleaved", 0),
    ),
    "le_rope of a slice": Case(
        lambda LeRoPE: grown(LeRoPE(HEAD_DIM, 77.0, "half", scaling=lambda theta: (theta / 4, 1.0), first_channel=2)),
        wide=False,
        pairs=by([77.0 ** (-k / 2) / 4 for k in range(2)], "half", 2),
    ),
}
