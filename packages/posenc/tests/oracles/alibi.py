"""Attention with linear biases.

    causal:         s_ij <- s_ij - m_h (p_i - p_j)
    bidirectional:  s_ij <- s_ij - m_h |p_i - p_j|
    directed:       the same, and -inf where p_j > p_i in heads 1 .. H/2, where p_j < p_i in the rest

Press et al. 2021 (arXiv 2108.12409), section 3, and the authors' `get_slopes`. Conventions: i is the query; the bias is
added after the 1/sqrt(d) and is not divided by it. Slopes of H heads, H a power of two: m_h = 2^(-8h/H), h = 1..H.
Otherwise: those of the largest power of two c below H, then the 1st, 3rd, 5th .. slope of 2c heads until there are H.
Causal and bidirectional agree wherever p_j <= p_i; the second is blind to direction. Directed is the authors' masked
non-symmetric form for encoders (issue 5 of their repository): each half of the heads has the slopes of H/2 heads, and a
key at the query's own position is seen by both. It hides by the position, whatever the mask. Any real position will do.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from .attention import Score, Vector
from .case import HEADS, Case, rows


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


def directed_score(
    num_heads: int, query_positions: Sequence[Sequence[float]], key_positions: Sequence[Sequence[float]]
) -> Score:
    """The biased logit, or -inf: the first half of the heads see no key after their query, the second none before."""
    assert num_heads % 2 == 0, f"num_heads must be even, got {num_heads}"
    half = num_heads // 2
    m = slopes(half)

    def biased(s: float, b: int, h: int, i: int, j: int) -> float:
        distance = query_positions[b][i] - key_positions[b][j]
        hidden = distance < 0 if h < half else distance > 0
        return -math.inf if hidden else s - m[h % half] * abs(distance)

    return biased


def _biased(causal: bool) -> Callable[..., dict[str, Any]]:
    return lambda s, q, k, x, y: {"score": score(slopes(HEADS), rows(x), rows(y), causal=causal)}


CASES = {
    "alibi": Case(lambda ALiBi: ALiBi(HEADS), pairs=_biased(causal=True)),
    "alibi bidirectional": Case(lambda ALiBi: ALiBi(HEADS, "bidirectional"), pairs=_biased(causal=False)),
    "alibi directed": Case(
        lambda ALiBi: ALiBi(HEADS, "directed"),
        pairs=lambda s, q, k, x, y: {"score": directed_score(HEADS, rows(x), rows(y))},
    ),
}
