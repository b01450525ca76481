"""Relative position representations in keys and values.

    e_ij = q_i . (k_j + aK_c) / sqrt(d)          z_i = sum_j alpha_ij (v_j + aV_c)
    c    = clip(p_j - p_i, -k, k) + k

Shaw, Uszkoreit, Vaswani 2018 (arXiv 1803.02155), Eqs. 3 and 4 and section 3.2. Conventions: the distance is key minus
query, so row 0 of a table is "k or more to the left" and row k the token itself; the key term is divided by sqrt(d)
with the content; each table is (2k+1) x d and shared across heads, as in the paper, or one a head, (H, 2k+1, d),
counted by query heads. Integer positions.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from torch import Tensor

from .attention import Heads, Matrix, Score, ValueTerm, dot, heads, matrices, matrix
from .case import HEAD_DIM, HEADS, Case, rows

Tables: TypeAlias = Tensor | Matrix | list[Matrix]  # (2k+1, d), or (H, 2k+1, d)


def of_head(tables: Tables) -> Callable[[int], Matrix]:
    """The table that a head reads: the shared one, or its own."""
    if tables.dim() == 2 if isinstance(tables, Tensor) else not isinstance(tables[0][0], list):
        shared = matrix(cast(Tensor | Matrix, tables))
        return lambda h: shared
    own = matrices(cast(Tensor | list[Matrix], tables))
    return lambda h: own[h]


def index(query_position: int, key_position: int, max_distance: int) -> int:
    """c, the row of a table of 2 * max_distance + 1 rows."""
    return max(-max_distance, min(max_distance, key_position - query_position)) + max_distance


def score(
    query: Tensor | Heads,
    key_table: Tables,
    query_positions: Sequence[Sequence[int]],
    key_positions: Sequence[Sequence[int]],
    scale: float | None = None,
) -> Score:
    """s_ij + scale * q_i . aK_c; scale is 1/sqrt(d) unless given."""
    q, table = heads(query), of_head(key_table)
    factor = 1.0 / math.sqrt(len(table(0)[0])) if scale is None else scale
    k = (len(table(0)) - 1) // 2

    def with_keys(s: float, b: int, h: int, i: int, j: int) -> float:
        return s + factor * dot(q[b][h][i], table(h)[index(query_positions[b][i], key_positions[b][j], k)])

    return with_keys


def value_term(
    value_table: Tables, query_positions: Sequence[Sequence[int]], key_positions: Sequence[Sequence[int]]
) -> ValueTerm:
    """w_ij = aV_c."""
    table = of_head(value_table)
    k = (len(table(0)) - 1) // 2

    def row_of(b: int, h: int, i: int, j: int) -> list[float]:
        return table(h)[index(query_positions[b][i], key_positions[b][j], k)]

    return row_of


def _pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    keys = {} if s.key_table is None else {"score": score(q, s.key_table, rows(x), rows(y))}
    return keys if s.value_table is None else {**keys, "value_term": value_term(s.value_table, rows(x), rows(y))}


CASES = {
    "shaw": Case(lambda Shaw: Shaw(HEAD_DIM, 2), pairs=_pairs, integers_only=True, refused_by=("sdpa",)),
    "shaw keys": Case(lambda Shaw: Shaw(HEAD_DIM, 3, values=False), pairs=_pairs, integers_only=True),
    "shaw values": Case(
        lambda Shaw: Shaw(HEAD_DIM, 3, keys=False), pairs=_pairs, integers_only=True, refused_by=("sdpa",)
    ),
    "shaw per head": Case(
        lambda Shaw: Shaw(HEAD_DIM, 2, num_heads=HEADS), pairs=_pairs, integers_only=True, refused_by=("sdpa",)
    ),
}
