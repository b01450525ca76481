"""Smaller batches: nothing is left that need not be there, and what is left is simple to read."""

from collections.abc import Callable

import pytest

from posenc_check import Batch
from posenc_check.shrink import shrink, without

BATCH = Batch(
    ids=[[5, 9, 3, 9, 4], [7, 1, 2, 8, 6]],
    positions=[[100, 101, 102, 103, 104], [50, 51, 52, 53, 54]],
    document=[[3, 3, 4, 4, -1], [2, 2, 2, 5, 5]],
    order=[[10, 11, 12, 13, 14], [10, 14, 12, 11, 13]],
)


def test_what_does_not_matter_goes() -> None:
    assert shrink(BATCH, lambda batch: True) == Batch(ids=[[0]], positions=[[0]], document=[[0]], order=[[0]])


def test_what_matters_stays() -> None:
    def shows(batch: Batch) -> bool:
        row = batch.ids[-1]
        return len(row) == 3 and len(set(row)) == 3

    found = shrink(BATCH, shows)
    assert found.ids == [[0, 1, 2]]
    assert found.positions == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("shows", "positions"),
    [
        (lambda p: p[-1] >= 102, [102]),  # one far token is enough, and no farther than it must be
        (lambda p: p[-1] - p[0] >= 2, [0, 2]),  # only how far apart they are
        (lambda p: len(p) > 1 and p[0] >= 50 and p[1] > p[0], [50, 51]),
        (lambda p: len(p) == 5, [0, 1, 2, 3, 4]),
    ],
)
def test_positions_are_as_low_as_still_shows_it(shows: Callable[[list[int]], bool], positions: list[int]) -> None:
    assert shrink(BATCH, lambda batch: shows(batch.positions[0])).positions == [positions]  # type: ignore[index]


def test_gaps_close_and_every_axis_is_lowered() -> None:
    far = Batch(ids=[[1, 2, 3]], positions=[[[7, 3], [7, 900], [8, 5000]]])
    found = shrink(far, lambda batch: batch.tokens == 3)
    assert found.positions == [[[0, 0], [0, 1], [1, 2]]]
    fractions = Batch(ids=[[1, 2]], positions=[[10.5, 90.25]])
    assert shrink(fractions, lambda batch: batch.tokens == 2).positions == [[0.5, 2.25]]  # by whole numbers
    before_the_first = Batch(ids=[[1]], positions=[[-3]])
    assert shrink(before_the_first, lambda batch: True).positions == [[-3]]


def test_documents_and_order_are_counted_from_zero() -> None:
    found = shrink(BATCH, lambda batch: batch.tokens == 5 and len(batch.ids) == 2)
    assert found.document == [[0, 0, 1, 1, -1], [0, 0, 0, 1, 1]]
    assert found.order == [[0, 1, 2, 3, 4], [0, 4, 2, 1, 3]]


def test_chunks_and_choices_follow_the_tokens() -> None:
    batch = Batch(ids=[[1, 2, 3, 4]], chunks=(1, 2, 1), queries=(0, 3), keys=(1, 2, 3))
    assert without(batch, [1]) == Batch(ids=[[1, 3, 4]], chunks=(1, 1, 1), queries=(0, 2), keys=(1, 2))
    assert without(batch, [0]).chunks == (2, 1)
    assert shrink(batch, lambda b: b.tokens == 4).chunks == (4,)
    found = shrink(batch, lambda b: True)
    assert found == Batch(ids=[[0]], chunks=(1,), queries=(0,), keys=(0,))  # some token still asks, and is asked


def test_rows_and_columns_of_a_grid_go_whole() -> None:
    ids = [[10 * row + column for row in range(3) for column in range(4)]]
    found = shrink(Batch(ids=ids, grid=(3, 4)), lambda b: 12 in b.ids[0])
    assert (found.grid, found.ids) == ((1, 1), [[12]])
    found = shrink(Batch(ids=ids, grid=(3, 4)), lambda b: b.grid is not None and min(b.grid[0] + 1, b.grid[1]) > 2)
    assert found == Batch(ids=[[0] * 6], grid=(2, 3))
    more = Batch(ids=[[1, 2, 3, 4, 5]], grid=(2, 2))  # and one token that is no patch
    assert shrink(more, lambda b: True).tokens == 5
