"""Relative positions on a grid: one vector for the rows' distance and one for the columns'.

    s_ij = (q_i . k_j + q_i . (R_h[dr + h - 1] + R_w[dc + w - 1])) / sqrt(d)        (dr, dc) = (row, column)_j - _i
    "sam": s_ij = q_i . k_j / sqrt(d) + q_i . (R_h[h - 1 - dr] + R_w[w - 1 - dc])

Bello et al. 2019 (arXiv 1904.09925), Eq. 3; BoTNet (arXiv 2101.11605), Figure 4. Ramachandran et al. 2019 (arXiv
1906.05909) join two half-width vectors instead of adding two whole ones. "sam": get_rel_pos of
SAM's and ViTDet's code, where queries are not yet scaled. Conventions: deltas are key minus query; h
counts rows and w columns, and need not be equal; the term is divided by sqrt(d). `row_tables` is (H, 2h-1, d) and
`column_tables` (H, 2w-1, d), one of each a head: pass a shared one H times. A position is a (row, column) pair of
integers, so the order of the tokens does not matter.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from torch import Tensor

from .attention import Heads, Matrix, Score, dot, heads, matrices
from .case import HEAD_DIM, HEADS, Case, rows

Grid: TypeAlias = Sequence[Sequence[tuple[int, int] | list[int]]]  # (batch, tokens) of (row, column)


def centred(delta: int, size: int) -> int:
    """delta + size - 1, the row of a table for distances -(size-1) .. size-1."""
    if not -size < delta < size:
        raise IndexError(f"distance {delta} is outside the table's -{size - 1}..{size - 1}")
    return delta + size - 1


def score(
    query: Tensor | Heads,
    row_tables: Tensor | list[Matrix],
    column_tables: Tensor | list[Matrix],
    query_positions: Grid,
    key_positions: Grid,
    scale: float | None = None,
    sense: int = 1,
) -> Score:
    """s_ij + scale * q_i . (R_h + R_w); scale is 1/sqrt(d) unless given, and sense -1 takes query minus key."""
    q, rows, columns = heads(query), matrices(row_tables), matrices(column_tables)
    factor = 1.0 / math.sqrt(len(rows[0][0])) if scale is None else scale
    height, width = (len(rows[0]) + 1) // 2, (len(columns[0]) + 1) // 2

    def with_relative(s: float, b: int, h: int, i: int, j: int) -> float:
        delta_row = key_positions[b][j][0] - query_positions[b][i][0]
        delta_column = key_positions[b][j][1] - query_positions[b][i][1]
        by_row = dot(q[b][h][i], rows[h][centred(sense * delta_row, height)])
        by_column = dot(q[b][h][i], columns[h][centred(sense * delta_column, width)])
        return s + factor * (by_row + by_column)

    return with_relative


def _pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    of_rows, of_columns = (table.expand(HEADS, -1, -1) for table in (s.row_table, s.column_table))
    how: dict[str, Any] = {"scale": 1.0, "sense": -1} if s.convention == "sam" else {}
    return {"score": score(q, of_rows, of_columns, rows(x), rows(y), **how)}


CASES = {
    "relative_2d": Case(lambda Relative2D: Relative2D((3, 5), HEAD_DIM), pairs=_pairs, axes=2),
    "relative_2d per head": Case(lambda Relative2D: Relative2D((3, 5), HEAD_DIM, HEADS), pairs=_pairs, axes=2),
    "relative_2d sam": Case(lambda Relative2D: Relative2D((3, 5), HEAD_DIM, HEADS, "sam"), pairs=_pairs, axes=2),
}
