"""Positions against a plain model of them: a list of tokens per row. And what they know of themselves, held to it."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc import PositionError, Positions
from posenc.positions.tiles import Visibility, check_reach, same_run, sees_all, tiles, visible
from tests.property.strategies import Made, follow, law, made, read, repeated, rows_of_text, sees, widest
from tests.test_positions import VISIBILITIES, check_layout, check_visibility

ROWS = st.integers(0, 3)


@law(200)
@given(st.data(), ROWS)
def test_positions_are_their_model(data: st.DataObject, rows: int) -> None:
    """Made and changed in any way, they hold the tokens that the model holds; what they know of them is so; and nothing
    that was asked of them on the way changed them."""
    it = data.draw(made(rows, changes=5))
    assert read(it.positions) == it.rows
    check_layout(it.positions)


@law(40)
@given(st.data(), ROWS, st.lists(st.integers(0, 9), max_size=3))
def test_slices_laid_together_are_the_whole(data: st.DataObject, rows: int, cuts: list[int]) -> None:
    it = data.draw(made(rows))
    ends = [0, *sorted(cuts), len(it.positions)]
    again = Positions.cat([it.positions[a:b] for a, b in itertools.pairwise(ends)], documents="same")
    assert read(again) == it.rows
    assert again.coords.dtype == it.dtype
    assert len(again) == 0 or again.layout.run == it.positions.layout.run  # of no tokens there is nothing to know
    check_layout(again)


def pair(data: st.DataObject, rows: int) -> tuple[Made, Made]:
    """Queries and keys: of their own, the same, or part of one another."""
    key = data.draw(made(rows))
    kind = data.draw(st.sampled_from(["same", "last", "own"]))
    if kind == "same":
        return key, key
    if kind == "last":
        first = data.draw(st.integers(0, len(key.positions)))
        return Made(key.positions[first:], [row[first:] for row in key.rows]), key
    return data.draw(made(rows)), key


@law(100)
@given(st.data(), ROWS, st.sampled_from(VISIBILITIES))
def test_what_two_positions_know_of_one_another_is_so(data: st.DataObject, rows: int, visibility: Visibility) -> None:
    query, key = pair(data, rows)
    x, y, height = query.positions, key.positions, widest((query.rows, key.rows))
    wide = [repeated(x, height) for x in (query.rows, key.rows)]
    check_visibility(x, y, height, visibility)
    assert (visible(x, y, visibility) is None) == sees_all(x, y, visibility)
    if same_run(x, y):
        assert [[t.order for t in row] for row in wide[0]] == [[t.order for t in row] for row in wide[1]]
    if x.layout.rows is not None and y.layout.rows is not None:
        for tile in tiles(x.layout, y.layout, visibility, height):
            if tile.distance is not None:
                for row, i, j in itertools.product(
                    range(tile.row.start, tile.row.stop), range(tile.start, tile.stop), range(tile.first, tile.last)
                ):
                    assert wide[1][row][j].coords[0] - wide[0][row][i].coords[0] == j - i + tile.distance


@law(100)
@given(st.data(), ROWS, st.integers(1, 12))
def test_tokens_too_far_apart_for_a_table_are_found(data: st.DataObject, rows: int, reach: int) -> None:
    """Those that may see one another, of any order; the furthest distance is named."""
    query, key = pair(data, rows)
    axes = [p.positions.coords.size(2) if p.positions.coords.dim() == 3 else 1 for p in (query, key)]
    if axes[0] != axes[1] or torch.int64 not in (query.dtype, key.dtype) or query.dtype != key.dtype:
        return
    height = widest((query.rows, key.rows))
    wide = [repeated(x, height) for x in (query.rows, key.rows)]
    pairs = [(x, y) for queries, keys in zip(*wide, strict=True) for x in queries for y in keys if sees(x, y, False)]
    furthest = [int(max((abs(y.coords[a] - x.coords[a]) for x, y in pairs), default=0)) for a in range(axes[0])]
    far = [(axis, n) for axis, n in enumerate(furthest) if n >= reach]
    if not far:
        check_reach(query.positions, key.positions, (reach,) * axes[0], "Scheme")
        return
    along = "" if axes[0] == 1 else f" along axis {far[0][0]}"
    with pytest.raises(PositionError, match=f"^Scheme encodes distances up to {reach - 1}{along}, got {far[0][1]}$"):
        check_reach(query.positions, key.positions, (reach,) * axes[0], "Scheme")


@law(100)
@given(st.integers(0, 3).flatmap(rows_of_text), st.integers(0, 4))
def test_what_follows_goes_on_where_the_last_token_is(it: Made, n: int) -> None:
    """All at once or one by one, the last of each row being the first of the highest order that is no padding."""
    after = Made(it.positions.following(n), [follow(row, n, it.dtype) for row in it.rows])
    assert read(after.positions) == after.rows
    check_layout(after.positions)
    if it.dtype != torch.int64 and any(abs(c) > 2**20 for row in it.rows for t in row for c in t.coords):
        return  # where adding 1 rounds, adding it twice is not adding 2
    one_by_one = it.positions
    for _ in range(n):
        one_by_one = Positions.cat([one_by_one, one_by_one.following()], documents="same")
    assert read(one_by_one[len(it.positions) :]) == after.rows
    check_layout(one_by_one)
