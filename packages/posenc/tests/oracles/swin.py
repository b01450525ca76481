"""The bias of Swin Transformers, version 1.

    s_ij <- s_ij + B[(row_i - row_j + h - 1) (2w - 1) + column_i - column_j + w - 1, head]
    of N entries, with a class token: B[N - 3, head] for the class token's keys, B[N - 2, head] where it is the key,
    B[N - 1, head] for both

Liu et al. 2021 (arXiv 2103.14030), equation 4, with the table in the order of the authors' code; the class token as in
BEiT's (arXiv 2106.08254) code. Conventions: a difference is query less key; h counts rows and w columns of the window;
the bias is not divided by sqrt(d). A position is a (row, column) pair of integers, (-1, -1) for the class token.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .attention import Matrix, Score, matrix
from .case import HEADS, Case, rows


def score(
    table: Tensor | Matrix,
    grid: tuple[int, int],
    query_positions: Sequence[Sequence[Sequence[int]]],
    key_positions: Sequence[Sequence[Sequence[int]]],
    *,
    class_token: bool = False,
) -> Score:
    """The biased logit; table: ((2h - 1)(2w - 1), heads), or three rows more."""
    numbers, (height, width) = matrix(table), grid

    def biased(s: float, b: int, h: int, i: int, j: int) -> float:
        (row, column), (other_row, other_column) = query_positions[b][i], key_positions[b][j]
        of_query, of_key = (class_token and p == [-1, -1] for p in ([row, column], [other_row, other_column]))
        if of_query or of_key:
            return s + numbers[-1 if of_query and of_key else -2 if of_key else -3][h]
        down, right = row - other_row + height - 1, column - other_column + width - 1
        assert 0 <= down < 2 * height - 1, f"row difference {down} is outside the window"
        assert 0 <= right < 2 * width - 1, f"column difference {right} is outside the window"
        return s + numbers[down * (2 * width - 1) + right][h]

    return biased


def _pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    return {"score": score(s.weight, s.grid, rows(x), rows(y), class_token=s.class_token)}


CASES = {
    "swin": Case(lambda Swin: Swin((3, 5), HEADS), pairs=_pairs, axes=2),
    "swin with a class token": Case(
        lambda Swin: Swin((3, 5), HEADS, class_token=True), pairs=_pairs, axes=2, class_token=True
    ),
}
