"""Layouts: what they say of positions is so, and their tiles are the pairs that may be seen, each of them once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc import Positions
from posenc.positions.layout import Layout, Span
from posenc.positions.positions import PADDING
from posenc.positions.tiles import Visibility, distances, tiles
from tests.property.strategies import law
from tests.test_positions import check_layout, seen_by_definition

WINDOWS = st.none() | st.integers(0, 4)
VISIBILITIES = st.builds(Visibility, is_causal=st.booleans(), left=WINDOWS, right=WINDOWS)


@st.composite
def runs(draw: st.DrawFn, rows: int) -> Positions:
    """Rows of runs, of any documents and orders, in which order and coordinate rise by one, or stay, or leap."""
    tokens = draw(st.integers(0, 10))
    facts = []
    for _ in range(draw(st.sampled_from([1, rows]))):
        row: list[tuple[int, int, int]] = []
        while len(row) < tokens:
            document, order, coord = draw(st.integers(-1, 1)), draw(st.integers(-2, 5)), draw(st.integers(-3, 6))
            step, pace = draw(st.sampled_from([0, 1])), draw(st.sampled_from([0, 1, 1, 3]))
            row += [(coord + pace * t, order + step * t, document) for t in range(draw(st.integers(1, 5)))]
        facts.append(row[:tokens])
    table = torch.tensor(facts, dtype=torch.int64).reshape(len(facts), tokens, 3)
    return Positions(table[..., 0], order=table[..., 1], document=table[..., 2])


@law(60)
@given(st.data(), st.integers(1, 3))
def test_the_layout_of_runs_is_so(data: st.DataObject, rows: int) -> None:
    positions = data.draw(runs(rows))
    check_layout(positions)
    start = data.draw(st.integers(0, len(positions)))
    check_layout(positions[start:])
    check_layout(positions.shift(2).scale(3))
    check_layout(Positions.cat([positions[start:], positions[:start]], documents="same"))
    check_layout(Positions.cat([positions[start:], positions[:start]], documents="new"))


def check_tiles(query: Positions, key: Positions, visibility: Visibility, rows: int) -> None:
    """The pairs in tiles are those that are seen, in one tile each; and a tile says their distances."""
    assert query.layout.rows is not None
    assert key.layout.rows is not None
    seen = list(tiles(query.layout, key.layout, visibility, rows))
    times = torch.zeros(rows, len(query), len(key), dtype=torch.int64)
    x, y = (p.expand(rows).coords for p in (query, key))
    furthest = distances(seen)
    for tile in seen:
        i, j = torch.arange(tile.start, tile.stop)[:, None], torch.arange(tile.first, tile.last)
        assert i.numel() > 0
        assert j.numel() > 0
        inside = torch.ones(len(i), len(j), dtype=torch.bool)
        inside &= True if tile.low is None else j - i >= tile.low
        inside &= True if tile.high is None else j - i <= tile.high
        times[tile.row, tile.start : tile.stop, tile.first : tile.last] += inside
        if tile.distance is not None:
            apart = y[tile.row, None, tile.first : tile.last] - x[tile.row, tile.start : tile.stop, None]
            assert (apart == j - i + tile.distance).all()
            if furthest is not None:
                assert furthest[0] <= apart[:, inside].min()
                assert apart[:, inside].max() <= furthest[1]
    assert torch.equal(times, seen_by_definition(query, key, rows, visibility).long())


@law(60)
@given(st.data(), st.integers(1, 3), VISIBILITIES)
def test_tiles_are_the_pairs_that_are_seen_each_once(data: st.DataObject, rows: int, visibility: Visibility) -> None:
    query, key = (data.draw(runs(rows)) for _ in range(2))
    check_tiles(query, key, visibility, rows)
    check_tiles(key, key, visibility, rows)
    check_tiles(key[len(key) // 2 :], key, visibility, rows)


def test_a_stated_layout_is_kept_where_it_is_that_of_the_values() -> None:
    positions = Positions.packed([[2, 3], [4]])
    assert positions.with_layout(positions.layout).layout == positions.layout
    assert Positions(positions.coords, order=positions.order, document=positions.document).with_layout().layout == (
        positions.layout
    )
    row = (Span(0, 5, 0, 0, coords=(0,)),)
    for layout in (
        Layout(5, (row,)),
        Layout(5, (row, row)),
        Layout(5, (row, row, row)),
        Layout(5, ((Span(0, 2, 0, 0, coords=(0,)), Span(2, 5, 1, 3, coords=(0,))), row[:0])),
    ):
        with pytest.raises(ValueError, match=r"^layout must match the positions, Layout.*, got Layout"):
            positions.with_layout(layout)
    with pytest.raises(ValueError, match=r"^layout must have 5 tokens like the positions, got 4$"):
        positions.with_layout(Layout(4))


def test_padding_stands_in_no_span() -> None:
    positions = Positions.padded(torch.tensor([[False, True, True, False, True]]))
    (row,) = positions.layout.rows or ()
    assert [(span.start, span.stop) for span in row] == [(1, 3), (4, 5)]
    assert all(span.document != PADDING for span in row)
