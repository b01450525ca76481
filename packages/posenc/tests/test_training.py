"""Positions in training: what is drawn is what the papers draw, for each document of each row, and all else stays."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import Positions
from posenc.positions.training import abacus, bilevel, cape, random_floats, randomized, shape
from tests.cases import TOKENS, positions_cases
from tests.errors.wrong_calls import Row
from tests.oracles import training as oracle
from tests.rounding import of_sums

SEED = 7
CASES = {name: positions for name, positions in positions_cases().items() if name != "fractional"}
PLACES = pytest.mark.parametrize("name", CASES)
Change = Callable[[Positions, torch.Generator | None], Positions]
CHANGES: dict[str, Change] = {
    "randomized": partial(randomized, length=200),
    "random floats": partial(random_floats, trained=8, length=40),
    "shape": partial(shape, most=30),
    "cape": partial(cape, shift=5.0, jitter=0.4, stretch=2.0),
    "cape, centred": partial(cape, shift=5.0, center=True),
    "abacus": lambda positions, generator: abacus(positions, generator, positions.order % 3 != 0, most=30),
}


def drawn(name: str, positions: Positions, seed: int = SEED) -> Positions:
    return CHANGES[name](positions, torch.Generator().manual_seed(seed))


def texts(positions: Positions) -> list[tuple[int, Tensor]]:
    """The row of each document, and which of its tokens are the document's."""
    return [
        (row, document == which)
        for row, document in enumerate(positions.document)
        for which in document.unique().tolist()
        if which != -1
    ]


# --- all of them ------------------------------------------------------------------------------------------------------


@PLACES
@pytest.mark.parametrize("change", CHANGES)
def test_order_documents_and_padding_stay_and_a_seed_gives_the_same_again(change: str, name: str) -> None:
    before = CASES[name].expand(2)
    after = drawn(change, before)
    assert torch.equal(after.order, before.order)
    assert torch.equal(after.document, before.document)
    assert after.segment is not None
    assert before.segment is not None
    assert torch.equal(after.segment, before.segment)
    if change not in ("abacus", "randomized", "random floats"):
        padding = before.document == -1
        assert torch.equal(after.coords[padding], before.coords[padding].to(after.coords.dtype))
    assert torch.equal(after.coords, drawn(change, before).coords)
    assert not torch.equal(after.coords, drawn(change, before, SEED + 1).coords)


@pytest.mark.parametrize("change", ["randomized", "shape", "cape"])
def test_without_training_nothing_is_drawn(change: str) -> None:
    positions, generator = CASES["packed"], torch.Generator().manual_seed(SEED)
    state = generator.get_state()
    made = CHANGES[change](positions, generator, training=False)  # type: ignore[call-arg]
    assert made is positions
    assert torch.equal(generator.get_state(), state)


# --- drawn places -----------------------------------------------------------------------------------------------------


@PLACES
@pytest.mark.parametrize(("change", "length"), [("randomized", 200), ("random floats", 40)])
def test_places_keep_their_order(change: str, length: int, name: str) -> None:
    before = CASES[name].expand(2)
    after = drawn(change, before)
    for row, tokens in texts(before):
        p, u = before.coords[row, tokens], after.coords[row, tokens]
        assert torch.equal(u[:, None] < u, p[:, None] < p)
        assert 0 <= u.min() <= u.max() < length


def test_random_floats_are_uniform_in_training_and_midpoints_in_evaluation() -> None:
    """The k-th of n sorted numbers has the mean k / (n + 1) and the variance k (n + 1 - k) / ((n + 1)^2 (n + 2))."""
    n, rows, length = 5, 2000, 40.0
    found = random_floats(Positions.arange(n).expand(rows), torch.Generator().manual_seed(SEED), n, length=length)
    k = torch.arange(1.0, n + 1, dtype=torch.float64)
    error = (k * (n + 1 - k) / (n + 2) / rows).sqrt() / (n + 1)
    assert ((found.coords.mean(0) / length - k / (n + 1)).abs() < 4 * error).all()
    text = Positions.packed([3, 5])
    spaced = random_floats(text, None, 4, length=80, training=False)
    assert spaced.coords[0].tolist() == [10.0, 30.0, 50.0, 8.0, 24.0, 40.0, 56.0, 72.0]


# --- SHAPE ------------------------------------------------------------------------------------------------------------


@PLACES
def test_a_text_moves_as_one(name: str) -> None:
    before = CASES[name].expand(2)
    after = shape(before, torch.Generator().manual_seed(SEED), 1000)
    moves = []
    for row, tokens in texts(before):
        by = (after.coords - before.coords)[row, tokens]
        assert by.unique().numel() == 1
        assert 0 <= by[0] <= 1000
        moves.append(int(by[0]))
    assert len(set(moves)) == len(moves)


def test_every_shift_up_to_the_most_is_drawn_and_none_beyond_it() -> None:
    """4 shifts, 400 draws: a shift is left out with probability 0.75^400."""
    texts = Positions.arange(3, start=5).expand(400)
    found = shape(texts, torch.Generator().manual_seed(SEED), 3)
    assert set((found.coords - texts.coords).flatten().tolist()) == {0, 1, 2, 3}
    assert shape(texts, None, 0) is texts


# --- CAPE -------------------------------------------------------------------------------------------------------------


def cape_of(positions: Positions, **how: float | bool) -> Tensor:
    return cape(positions, torch.Generator().manual_seed(SEED), **how).coords  # type: ignore[arg-type]


@PLACES
def test_each_part_of_cape_is_its_formula(name: str) -> None:
    before = CASES[name].expand(2)
    p, same = before.coords.double(), cape_of(before)
    torch.testing.assert_close(same, p)
    shifted, jittered = cape_of(before, shift=3.0) - p, cape_of(before, jitter=0.25) - p
    stretched, centred = cape_of(before, stretch=4.0), cape_of(before, center=True)
    shifts, factors = [], []
    for row, tokens in texts(before):
        shifts.append(shifted[row, tokens][0].item())
        torch.testing.assert_close(
            shifted[row, tokens], torch.full_like(p[row, tokens], shifts[-1]), rtol=0, atol=of_sums(torch.float64, 2, p)
        )
        assert abs(shifts[-1]) <= 3
        assert jittered[row, tokens].abs().max() <= 0.25
        assert jittered[row, tokens].unique().numel() == int(tokens.sum())
        far = p[row, tokens].abs().argmax()
        if p[row, tokens][far] != 0:
            factors.append((stretched[row, tokens][far] / p[row, tokens][far]).item())
            assert 1 / 4 <= factors[-1] <= 4
            torch.testing.assert_close(stretched[row, tokens], p[row, tokens] * factors[-1])
        torch.testing.assert_close(centred[row, tokens], p[row, tokens] - p[row, tokens].mean())
    assert len(set(shifts)) == len(shifts)
    assert len({round(factor, 9) for factor in factors}) == len(factors)


# --- made of tokens ---------------------------------------------------------------------------------------------------


def marks(rows: int) -> Tensor:
    return torch.rand(rows, TOKENS, generator=torch.Generator().manual_seed(3)) < 0.6


@PLACES
def test_abacus_is_the_oracles(name: str) -> None:
    positions, digits = CASES[name].expand(2), marks(2)
    found = abacus(positions, None, digits, most=9, training=False)
    expected = [
        oracle.abacus(*row)
        for row in zip(digits.tolist(), positions.order.tolist(), positions.document.tolist(), strict=True)
    ]
    assert found.coords.tolist() == expected
    moved = abacus(positions, torch.Generator().manual_seed(SEED), digits.long(), most=9).coords
    by = moved - found.coords
    assert not by[found.coords == 0].any()
    for row, tokens in texts(positions):
        k = by[row, tokens & (found.coords[row] > 0)].unique()
        assert k.numel() <= 1
        assert not k.numel() or 0 <= k[0] <= 9


@PLACES
@pytest.mark.parametrize("longest", [None, 2])
def test_bilevel_is_the_oracles(name: str, longest: int | None) -> None:
    positions, ends = CASES[name].expand(2), marks(2)
    expected = [
        oracle.bilevel(*row, longest)
        for row in zip(ends.tolist(), positions.order.tolist(), positions.document.tolist(), strict=True)
    ]
    found = bilevel(positions, ends, longest=longest)
    assert found.coords.tolist() == expected
    assert torch.equal(found.order, positions.order)
    assert torch.equal(found.document, positions.document)


# --- what is refused --------------------------------------------------------------------------------------------------

LINE, GRID = Positions.arange(5), Positions.grid(2, 3)
DIGITS = torch.ones(1, 5, dtype=torch.bool)
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: randomized([0, 1], None, 9), "positions must be a Positions, got [0, 1]"),
    (lambda: randomized(LINE, 7, 9), "generator must be a Generator or None, got 7"),
    (lambda: randomized(LINE, None, 0), "length must be a whole number of at least 1, got 0"),
    (lambda: randomized(LINE, None, 4), "length must be at least 5, the coordinates of a document, got 4"),
    (lambda: randomized(LINE, None, 9, training=1), "training must be True or False, got 1"),
    (lambda: randomized(GRID, None, 9), "randomized takes one coordinate per token, got positions of 2 axes"),
    (lambda: random_floats(LINE, None, 0), "trained must be a whole number of at least 1, got 0"),
    (lambda: random_floats(LINE, None, 8, length=0), "length must be a finite number above 0, got 0"),
    (lambda: random_floats(GRID, None, 8), "random_floats takes one coordinate per token, got positions of 2 axes"),
    (lambda: shape(LINE, None, -1), "most must be a whole number of at least 0, got -1"),
    (lambda: shape(GRID, None, 3), "shape takes one coordinate per token, got positions of 2 axes"),
    (lambda: cape(LINE, None, shift=-1), "shift must not be negative, got -1"),
    (lambda: cape(LINE, None, jitter=-0.5), "jitter must not be negative, got -0.5"),
    (lambda: cape(LINE, None, stretch=0.5), "stretch must be at least 1, got 0.5"),
    (lambda: cape(LINE, None, stretch="2"), "stretch must be a finite number, got '2'"),
    (lambda: cape(LINE, None, center=None), "center must be True or False, got None"),
    (lambda: abacus(LINE, None, DIGITS, most=-1), "most must be a whole number of at least 0, got -1"),
    (lambda: abacus(LINE, None, DIGITS[:, :4]), "digits must have 1 rows and 5 tokens, got (1, 4)"),
    (lambda: abacus(LINE.expand(3), None, DIGITS.expand(2, 5)), "digits must have 3 rows and 5 tokens, got (2, 5)"),
    (lambda: abacus(LINE, None, 3 * DIGITS.long()), "digits must be bool or contain only 0 and 1, got 3"),
    (lambda: bilevel(LINE, None), "ends must be a tensor (rows, tokens) of True or 1 = token, got …"),
    (lambda: bilevel(LINE, DIGITS, longest=0), "longest must be a whole number of at least 1, got 0"),
]


@pytest.mark.parametrize(("call", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_said(call: Callable[[], Any], said: str) -> None:
    Row(call, said).check()
