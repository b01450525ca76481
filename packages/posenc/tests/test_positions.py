"""Positions: what constructors and methods give, what may be seen, and what is known without reading the values."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import posenc
from posenc import PositionError, Positions
from posenc.positions.positions import PADDING, agree
from posenc.positions.tiles import Visibility, same_run, table_index, visible

Rows = list[list[int]]


def facts(positions: Positions) -> tuple[Any, Rows, Rows, Rows | None]:
    segment = None if positions.segment is None else positions.segment.tolist()
    return positions.coords.tolist(), positions.order.tolist(), positions.document.tolist(), segment


def rows_of(*rows: str) -> torch.Tensor:
    """A mask from a picture: x is a token, a dot is padding."""
    return torch.tensor([[mark == "x" for mark in row] for row in rows])


# --- following ------------------------------------------------------------------------------------------------------

SHIFTED = Positions.arange(2).shift(2)  # coordinates 2, 3 in order 0, 1
FOLLOWING = {
    "text": (Positions.arange(5), [[5, 6]], [[5, 6]], [[0, 0]]),
    "an offset": (Positions.arange(3, start=40), [[43, 44]], [[43, 44]], [[0, 0]]),
    "a slice": (Positions.arange(9)[2:4], [[4, 5]], [[4, 5]], [[0, 0]]),
    "nothing": (Positions.arange(0), [[0, 1]], [[0, 1]], [[0, 0]]),
    "shifted coordinates": (SHIFTED, [[4, 5]], [[2, 3]], [[0, 0]]),
    "coordinates that are not the order": (
        Positions.cat([SHIFTED, Positions.arange(2, start=2).shift(-2)]),
        [[2, 3]],
        [[4, 5]],
        [[0, 0]],
    ),
    "repeated rows": (Positions.arange(3).expand(2), [[3, 4]] * 2, [[3, 4]] * 2, [[0, 0]] * 2),
    "permuted": (Positions.arange(4)[torch.tensor([1, 3, 0, 2])], [[4, 5]], [[4, 5]], [[0, 0]]),
    "left padded rows": (Positions.padded(rows_of("..xx", "xxxx")), [[2, 3], [4, 5]], [[2, 3], [4, 5]], [[0, 0]] * 2),
    "right padded rows": (Positions.padded(rows_of("x...", "xxx.")), [[1, 2], [3, 4]], [[1, 2], [3, 4]], [[0, 0]] * 2),
    "padded inside": (Positions.padded(rows_of("x..x", ".xx.")), [[2, 3], [2, 3]], [[2, 3], [2, 3]], [[0, 0]] * 2),
    "a row of padding": (Positions.padded(rows_of("xx", "..")), [[2, 3], [0, 1]], [[2, 3], [0, 1]], [[0, 0]] * 2),
    "padding after negative orders": (
        Positions.cat([Positions.arange(2, start=-5), Positions.padded(rows_of(".."))]),
        [[-3, -2]],
        [[-3, -2]],
        [[0, 0]],
    ),
    "packed": (Positions.packed([2, 3]), [[3, 4]], [[5, 6]], [[1, 1]]),
    "packed rows": (Positions.packed([[2, 2], [1]]), [[2, 3], [1, 2]], [[4, 5], [1, 2]], [[1, 1], [0, 0]]),
    "fractional": (Positions(torch.tensor([[0.5, 2.25]])), [[3.25, 4.25]], [[2, 3]], [[0, 0]]),
    "one axis": (Positions(torch.tensor([[[3], [8]]])), [[9, 10]], [[2, 3]], [[0, 0]]),
}


@pytest.mark.parametrize("case", FOLLOWING)
def test_following_continues_each_rows_last_token(case: str) -> None:
    positions, coords, order, document = FOLLOWING[case]
    assert facts(positions.following(2)) == (coords, order, document, None)
    assert facts(positions.following())[0] == [row[:1] for row in coords]
    assert facts(positions.following(0)) == ([[]] * len(coords), [[]] * len(coords), [[]] * len(coords), None)


# --- what may be seen, and what is known without looking ------------------------------------------------------------


NUMBERED = torch.tensor([[1, 1, 1, 2, 2, 0], [0, 1, 0, 1, 3, 3]])  # documents of two rows
TEXT, PICTURE = Positions.multimodal([2, (1, 1, 2), 1]), Positions.multimodal([(1, 2, 2), 1])
PACKED = Positions.cat([TEXT, PICTURE[4:].shift(-2), PICTURE, TEXT], documents="new")  # one has a single token
DATA: dict[str, tuple[Callable[[], Positions], list[Any], list[list[int]]]] = {
    "documents in a mask": (
        lambda: Positions.padded(NUMBERED),
        [[0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 0, 1]],
        [[0, 0, 0, 1, 1, -1], [-1, 0, -1, 0, 2, 2]],
    ),
    "ids and documents in a mask": (
        lambda: Positions.from_ids(torch.tensor([[0, 1, 2, 0, 1, 9], [7, 4, 7, 5, 0, 1]]), NUMBERED),
        [[0, 1, 2, 0, 1, 9], [7, 4, 7, 5, 0, 1]],
        [[0, 0, 0, 1, 1, -1], [-1, 0, -1, 0, 1, 1]],
    ),
    "packed ids and documents in a mask": (
        lambda: Positions.from_ids(torch.tensor([[0, 1, 2, 3, 4, 0]]), NUMBERED[:1], packed=True),
        [[0, 1, 2, 3, 4, 0]],
        [[0, 0, 0, 1, 1, -1]],
    ),
    "packed ids of three axes": (
        lambda: Positions.from_ids(PACKED.coords, packed=True),
        PACKED.coords.tolist(),
        PACKED.document.tolist(),
    ),
    "packed ids of two images": (
        lambda: Positions.from_ids(torch.tensor([[[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 1]]]), packed=True),
        [[[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 1]]],
        [[0, 0, 1, 1]],
    ),
    "ids with the axis first": (
        lambda: Positions.from_ids(
            PACKED.coords.movedim(-1, 0), torch.ones(1, len(PACKED), dtype=torch.bool), packed=True
        ),
        PACKED.coords.tolist(),
        PACKED.document.tolist(),
    ),
    "three tokens with the axis first": (
        lambda: Positions.from_ids(torch.tensor([[[4, 5, 6]], [[4, 5, 7]], [[4, 5, 8]]]), torch.ones(1, 3).long()),
        [[[4, 4, 4], [5, 5, 5], [6, 7, 8]]],
        [[0, 0, 0]],
    ),
    "one token of three rows": (
        lambda: Positions.from_ids(torch.tensor([[[4, 5, 6]], [[4, 5, 7]], [[4, 5, 8]]]), torch.ones(3, 1).long()),
        [[[4, 5, 6]], [[4, 5, 7]], [[4, 5, 8]]],
        [[0], [0], [0]],
    ),
    "one token of two rows": (
        lambda: Positions.from_ids(torch.tensor([[[4], [9]], [[5], [9]], [[6], [9]]])),
        [[[4, 5, 6]], [[9, 9, 9]]],
        [[0], [0]],
    ),
    "what varlen functions take": (
        lambda: Positions.packed(cu_seqlens=torch.tensor([0, 2, 3], dtype=torch.int32), max_seqlen=2),
        [[0, 1, 0]],
        [[0, 0, 1]],
    ),
}


@pytest.mark.parametrize("case", DATA)
def test_data_as_loaders_hand_it_over(case: str) -> None:
    make, coords, document = DATA[case]
    positions = make()
    assert positions.coords.tolist() == coords
    assert positions.document.tolist() == document
    for row in range(positions.rows):
        seen = positions.document[row] != PADDING
        assert positions.order[row][seen].diff().eq(1).all()  # it continues over documents
    assert agree(positions.layout, positions.coords, positions.order, positions.document)


def rebuilt(positions: Positions) -> Positions:
    """The same facts, with nothing known about them."""
    return Positions(positions.coords, order=positions.order, document=positions.document)


VISIBILITIES = (
    Visibility(),
    Visibility(is_causal=True),
    Visibility(is_causal=True, left=1),
    Visibility(left=2, right=0),
)


def seen_by_definition(query: Positions, key: Positions, rows: int, visibility: Visibility) -> torch.Tensor:
    """Which key each query sees, pair by pair, (rows, queries, keys)."""
    _, query_order, query_document, _ = facts(query.expand(rows))
    _, key_order, key_document, _ = facts(key.expand(rows))

    def sees(b: int, i: int, j: int) -> bool:
        ahead = key_order[b][j] - query_order[b][i]
        return (
            query_document[b][i] == key_document[b][j] != PADDING
            and not (visibility.is_causal and ahead > 0)
            and not (visibility.left is not None and ahead < -visibility.left)
            and not (visibility.right is not None and ahead > visibility.right)
        )

    seen = [[[sees(b, i, j) for j in range(len(key))] for i in range(len(query))] for b in range(rows)]
    return torch.tensor(seen, dtype=torch.bool).reshape(rows, len(query), len(key))


def check_visibility(query: Positions, key: Positions, rows: int, visibility: Visibility) -> None:
    """What may be seen is what the definition says, with and without what is known of the values."""
    expected = seen_by_definition(query, key, rows, visibility)
    for q, k in ((query, key), (rebuilt(query), key), (rebuilt(query), rebuilt(key))):
        seen = visible(q, k, visibility)
        assert torch.equal(torch.ones_like(expected) if seen is None else seen.expand_as(expected), expected)
    if same_run(query, key) and visibility in VISIBILITIES[:2]:
        square = torch.ones_like(expected)
        assert torch.equal(expected, square.tril() if visibility.is_causal else square)


def check_layout(positions: Positions) -> None:
    """What the layout says of the values is so: every token is in the span that describes it, or is padding."""
    layout, rows = positions.layout, positions.rows
    _, order, document, _ = facts(positions)
    coords = positions.coords if positions.coords.dim() == 3 else positions.coords[..., None]
    slack: float = 0  # of fractional coordinates, which a sum rounds
    if coords.is_floating_point() and coords.numel():
        slack = 8 * torch.finfo(coords.dtype).eps * float(coords.abs().max())
    assert layout.tokens == len(positions)
    if layout.bounds is not None:
        inside = coords[positions.document != PADDING]
        lowest, highest = layout.bounds
        assert all(lowest - slack <= c <= highest + slack for c in inside.flatten().tolist())
    if layout.rows is None:
        return
    assert len(layout.rows) in (1, rows)
    for row in range(rows):
        in_no_span = set(range(len(positions)))
        for span in layout.of_row(row):
            assert span.document != PADDING
            for t in range(span.start, span.stop):
                in_no_span.remove(t)
                assert document[row][t] == span.document
                assert order[row][t] == span.order + span.order_step * (t - span.start)
                if span.coords is not None:
                    for c, first, step in zip(coords[row, t].tolist(), span.coords, span.steps, strict=True):
                        assert abs(c - (first + step * (t - span.start))) <= slack
        assert all(document[row][t] == PADDING for t in in_no_span)


def test_visibility_of_permuted_shuffled_and_stitched_text() -> None:
    """Where the shortcut could be taken wrongly: text that is all there, but not in its order."""
    text = Positions.arange(6)
    stitched = Positions.cat([text[3:], text[:3]], documents="same")
    for positions in (text, text[torch.tensor([5, 0, 3, 1, 4, 2])], stitched, text[::2], text.shift(3), text[2:5]):
        check_layout(positions)
        for visibility in VISIBILITIES:
            check_visibility(positions, text, 1, visibility)
            check_visibility(text, positions, 1, visibility)
            check_visibility(positions, positions, 1, visibility)


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("positions", "found"),
    [
        (Positions.arange(6), 5),
        (Positions.arange(3).shift(2), 4),
        (Positions.arange(3).shift(-1), -1),
        (Positions(torch.tensor([[0, -7, 99]])), -7),
        (Positions.packed([2, 5]), 4),
        (Positions.padded(rows_of(".xxxxx")), 4),
        (Positions.arange(4).following(2), 5),
        (Positions.cat([Positions.arange(2), Positions.arange(1, start=8)]), 8),
    ],
)
def test_a_position_outside_the_table_is_named(positions: Positions, found: int) -> None:
    with pytest.raises(PositionError, match=rf"^Scheme encodes positions 0 to 3, got {found}$"):
        table_index(positions, "Scheme", 4)


# --- how far out they may lie -----------------------------------------------------------------------------------------

TURNING = {
    "RoPE": posenc.RoPE(4),
    "XPos": posenc.XPos(4),
    "PoPE": posenc.PoPE(4),
    "ReRoPE": posenc.ReRoPE(4, 3),
    "SelfExtend": posenc.SelfExtend(4),
    "STRING": posenc.STRING(4, axes=1),
    "Sinusoidal": posenc.Sinusoidal(4),
    "FourierFeatures": posenc.FourierFeatures(4, axes=1),
}


@pytest.mark.parametrize("name", TURNING)
@pytest.mark.parametrize("side", [1, -1])
def test_a_position_that_double_precision_cannot_tell_from_the_next_is_refused(name: str, side: int) -> None:
    scheme = TURNING[name]
    words = (
        rf"^{name} encodes positions from -2\*\*53 to 2\*\*53, since float64 cannot represent every integer beyond that"
        r", got "
    )
    held = Positions(side * torch.arange(2**53 - 4, 2**53 + 1)[None])
    scheme(held)
    past = Positions(side * torch.arange(2**53 - 400, 2**53 + 2)[None])
    for positions in (past, past.shift(side), Positions((past.coords * 2.0).double())):
        with pytest.raises(PositionError, match=words + "-?[1-9][0-9.e+]+$"):
            scheme(positions)
    if "rotate" in scheme.doors:  # what is added is added to queries alone
        with pytest.raises(PositionError, match=words):
            scheme(Positions.arange(3), past)
