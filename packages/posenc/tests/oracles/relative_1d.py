"""Relative positions in the scores, one vector for each signed distance.

    s_ij = (q_i . k_j + q_i . R[p_j - p_i + N - 1]) / sqrt(d)        R: (2N-1) x d, learned

Bello et al. 2019 (arXiv 1904.09925), Eq. 3, in one dimension; BoTNet, Srinivas et al. 2021 (arXiv 2101.11605), Figure
4, whose pad-and-reshape port `relative_to_absolute` is this indexing. Conventions: the distance is key minus query, so
row N - 1 is the token itself; the term is divided by sqrt(d) with the content (that port leaves it to its caller).
`tables` is one R a head, (H, 2N-1, d): pass a shared one H times. Integer positions; a distance past N - 1 has no row.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .attention import Heads, Matrix, Score, dot, heads, matrices
from .case import HEAD_DIM, HEADS, Case, rows


def score(
    query: Tensor | Heads,
    tables: Tensor | list[Matrix],
    query_positions: Sequence[Sequence[int]],
    key_positions: Sequence[Sequence[int]],
    scale: float | None = None,
) -> Score:
    """s_ij + scale * q_i . R[p_j - p_i + N - 1]; scale is 1/sqrt(d) unless given."""
    q, r = heads(query), matrices(tables)
    factor = 1.0 / math.sqrt(len(r[0][0])) if scale is None else scale
    length = (len(r[0]) + 1) // 2

    def with_relative(s: float, b: int, h: int, i: int, j: int) -> float:
        index = key_positions[b][j] - query_positions[b][i] + length - 1
        if not 0 <= index <= 2 * length - 2:
            raise IndexError(f"distance {index - length + 1} is outside the table's -{length - 1}..{length - 1}")
        return s + factor * dot(q[b][h][i], r[h][index])

    return with_relative


def _pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    return {"score": score(q, s.weight.expand(HEADS, -1, -1), rows(x), rows(y))}


CASES = {
    "relative_1d": Case(lambda Relative1D: Relative1D(20, HEAD_DIM), pairs=_pairs, integers_only=True),
    "relative_1d per head": Case(lambda Relative1D: Relative1D(20, HEAD_DIM, HEADS), pairs=_pairs, integers_only=True),
}
