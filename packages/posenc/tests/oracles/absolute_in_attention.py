"""Absolute positions inside attention: the query meets a learned vector of the key's position.

    s_ij = (q_i . k_j + q_i . R[p_j]) / sqrt(d)        R: N_max x d, learned, in every layer

`AbsPosEmb1D` of self-attention-cv (the absolute variant of BoTNet, arXiv 2101.11605). Conventions: the key's position
alone counts; R is shared across heads; the term is divided by sqrt(d) with the content (that package leaves it to its
caller). Integer positions in 0 .. N_max - 1; a negative one does not count from the end.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from .attention import Heads, Matrix, Score, dot, heads, matrix
from .case import HEAD_DIM, Case, rows


def score(
    query: Tensor | Heads, table: Tensor | Matrix, key_positions: Sequence[Sequence[int]], scale: float | None = None
) -> Score:
    """s_ij + scale * q_i . R[p_j]; scale is 1/sqrt(d) unless given."""
    q, r = heads(query), matrix(table)
    factor = 1.0 / math.sqrt(len(r[0])) if scale is None else scale

    def with_absolute(s: float, b: int, h: int, i: int, j: int) -> float:
        p = key_positions[b][j]
        if not 0 <= p < len(r):
            raise IndexError(f"position {p} is outside the table's 0..{len(r) - 1}")
        return s + factor * dot(q[b][h][i], r[p])

    return with_absolute


CASES = {
    "absolute_in_attention": Case(
        lambda AbsoluteInAttention: AbsoluteInAttention(20, HEAD_DIM),
        pairs=lambda s, q, k, x, y: {"score": score(q, s.weight, rows(y))},
        integers_only=True,
    )
}
