"""A bias that is the inner product of two sinusoids.

    s_ij <- s_ij + (sum_k cos((p_i - p_j) / base^(2k/D)) - D/2) / (8h/H),    k = 1 .. D/2,  h = 1 .. H

Chi et al. 2023 (arXiv 2212.10356), section 5, in the form of NVIDIA's port. Conventions: D is a number of its own, 128
in the paper, and not the width of a head; k begins at 1; the bias is not divided by sqrt(d). Any real position will do.
"""

import math
from collections.abc import Sequence
from typing import Any

from .attention import Score
from .case import HEADS, Case, rows


def score(
    query_positions: Sequence[Sequence[float]],
    key_positions: Sequence[Sequence[float]],
    *,
    num_heads: int,
    dim: int,
    base: float,
) -> Score:
    """The biased logit."""

    def biased(s: float, b: int, h: int, i: int, j: int) -> float:
        distance = query_positions[b][i] - key_positions[b][j]
        total = 0.0
        for k in range(1, dim // 2 + 1):
            total += math.cos(distance / base ** (2 * k / dim))
        return s + (total - dim / 2) / (8 * (h + 1) / num_heads)

    return biased


def _pairs(dim: int, base: float) -> Any:
    return lambda s, q, k, x, y: {"score": score(rows(x), rows(y), num_heads=HEADS, dim=dim, base=base)}


CASES = {
    "sandwich": Case(lambda Sandwich: Sandwich(HEADS), pairs=_pairs(128, 10_000.0)),
    "sandwich narrow": Case(lambda Sandwich: Sandwich(HEADS, dim=14, base=313.0), pairs=_pairs(14, 313.0)),
}
