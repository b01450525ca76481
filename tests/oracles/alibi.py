"""Attention with linear biases.

    causal:         s_ij <- s_ij - m_h (p_i - p_j)
    bidirectional:  s_ij <- s_ij - m_h |p_i - p_j|

Press et al. 2021 (arXiv 2108.12409), section 3, and the authors' `get_slopes`. Conventions: i is the query; the bias is
added after the 1/sqrt(d) and is not divided by it. Slopes of H heads, H a power of two: m_h = 2^(-8h/H), h = 1..H.
Otherwise: those of the largest power of two c below H, then the 1st, 3rd, 5th .. slope of 2c heads until there are H.
Causal and bidirectional agree wherever p_j <= p_i; the second is blind to direction. Any real position will do.
"""

from collections.abc import Sequence

from .attention import Score, Vector


def slopes(num_heads: int) -> Vector:
    """m_1 .. m_H."""
    c = 1
    while 2 * c <= num_heads:
        c *= 2
    out = [2.0 ** (-8.0 * h / c) for h in range(1, c + 1)]
    for n in range(num_heads - c):
        h = 2 * n + 1  # every other head of a model with 2c of them
        out.append(2.0 ** (-8.0 * h / (2 * c)))
    return out


def score(
    slopes: Sequence[float],
    query_positions: Sequence[Sequence[float]],
    key_positions: Sequence[Sequence[float]],
    *,
    causal: bool,
) -> Score:
    """The biased logit; slopes: one a head, positions: (B, M) and (B, N)."""

    def biased(s: float, b: int, h: int, i: int, j: int) -> float:
        distance = query_positions[b][i] - key_positions[b][j]
        return s - slopes[h] * (distance if causal else abs(distance))

    return biased
