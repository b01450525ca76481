"""The plainest laws of the catalog, measured again, apart from `posenc_lab.laws`: what claims one has it, what
does not claim it has it not. tests/laws holds every claim to the measurements of `posenc_lab.laws`."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Encoding, PositionError, Positions
from posenc.encoding.context import projected_at_random
from posenc.scheme import with_random_parameters
from posenc.schemes.catalog import CATALOG, Entry, Shape
from tests.rows import named

HEADS, KV_HEADS, HEAD_DIM, TOKENS = 12, 4, 6, 9
DIM = HEADS * HEAD_DIM
SHIFTS = (1, 1000, 100_000)
SHAPE = Shape(DIM, HEADS, HEAD_DIM, max_positions=max(SHIFTS) + TOKENS, num_kv_heads=KV_HEADS)
FARTHEST = 2**20 - 1

# Double precision. An angle p theta at p = 10^5 is off by at most 10^5 * 2^-52 (theta and the product, rounded), and so
# is a distance; sums of some 10^2 terms of order 1 add 10^2 * 2^-53. Scores here are of order 1 to 10.
TOLERANCE = 10 * 1e5 * 2.0**-52
# What counts as different is not rounding by a wide margin: a table drawn at 0.02 moves scores by some 10^-2.
DIFFERENT = 1e-4


def features(batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(batch, TOKENS, DIM, generator=generator, dtype=torch.float64)


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    heads = x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    return heads, heads[:, 2 : 2 + KV_HEADS]


def segments(entry: Entry, positions: Positions) -> Positions:
    """Alternating segments, where the scheme asks for them; more coordinates, where it must have several."""
    kind = torch.arange(len(positions))[None] % 2
    if entry.least_axes > 1:
        several = (positions.coords, positions.coords.flip(1), positions.coords + 3)
        positions = Positions(torch.stack(several[: entry.least_axes], -1))
    return positions.with_segment(kind) if entry.needs_segments else positions


def built(entry: Entry, shape: Shape = SHAPE) -> posenc.Scheme:
    torch.default_generator.manual_seed(0)
    return with_random_parameters(entry.build(shape).double())


def scores(scheme: posenc.Scheme, positions: Positions, x: Tensor) -> Tensor:
    """The logits of x at these positions, every door open."""
    encoding = with_features(scheme(positions, dtype=torch.float64), x)
    return torch.nan_to_num(posenc.logits(*split(encoding.add(x)), encoding), neginf=-1e4)  # what a scheme hides


def with_features(encoding: Encoding, x: Tensor) -> Encoding:
    """With what a layer makes of x, if the scheme wants something."""
    return encoding.with_projected(projected_at_random(encoding.wanted, x)) if encoding.wanted else encoding


def moved(entry: Entry) -> dict[int, float]:
    """How far the scores go, at most, when all positions move, by how far these do."""
    scheme, positions, x = built(entry), segments(entry, Positions.arange(TOKENS)), features(1)
    before = scores(scheme, positions, x)
    return {shift: (scores(scheme, positions.shift(shift), x) - before).abs().max().item() for shift in SHIFTS}


def check_relative(entry: Entry) -> None:
    for shift, change in moved(entry).items():
        assert change <= TOLERANCE, f"a shift by {shift} changes the scores by {change}"


def check_absolute(entry: Entry) -> None:
    for shift, change in moved(entry).items():
        assert change > DIFFERENT, f"a shift by {shift} changes the scores by {change} alone"


def check_encodes(entry: Entry, positions: Positions) -> None:
    found = scores(built(entry), segments(entry, positions), features(1)[:, : len(positions)])
    assert found.isfinite().all()


def check_length_free(entry: Entry) -> None:
    for far in (FARTHEST, 2**31):
        try:
            check_encodes(entry, Positions(torch.tensor([[0, 3, far]])))
        except PositionError as error:
            raise AssertionError(f"position {far} has no encoding: {error}") from error


def check_fractional(entry: Entry) -> None:
    for dtype in (torch.float32, torch.float64):
        positions = Positions(torch.tensor([[0.5, 2.75, 1.125]], dtype=dtype))
        try:
            check_encodes(entry, positions)
        except ValueError as error:
            if "needs int64 coordinates" not in str(error):
                raise
            raise AssertionError(f"fractional positions have no encoding: {error}") from error
    scheme, x = built(entry), features(1)[:, :3]
    close, closer = (
        scores(scheme, segments(entry, Positions(torch.tensor([[0.0, 2.5, 4.0 + step]], dtype=torch.float64))), x)
        for step in (1e-7, 0.0)
    )
    # Real positions are not rounded to integers on the way: the scores are continuous in them.
    assert (close - closer).abs().max() < 1e-5
    apart = scores(scheme, segments(entry, Positions(torch.tensor([[0.0, 1.5, 7.0]], dtype=torch.float64))), x)
    if not torch.equal(apart, closer):  # else it sees the order alone, or nothing
        assert (close - closer).abs().max() > 0


def check_order_free(entry: Entry) -> None:
    """Tokens change places, with what is their own (their segment), and positions stay: the output permutes."""
    shuffle = torch.tensor([4, 1, 8, 0, 6, 2, 7, 3, 5])
    scheme, x = built(entry), features()
    positions = segments(entry, Positions.arange(TOKENS))
    moved = positions if positions.segment is None else positions.with_segment(positions.segment[:, shuffle])

    def output(where: Positions, what: Tensor) -> Tensor:
        encoding = with_features(scheme(where, dtype=torch.float64), what)
        query, key = split(encoding.add(what))
        value = what.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)[:, :KV_HEADS]
        everything = torch.ones(query.size(2), key.size(2), dtype=torch.bool)  # stated, so that no scheme objects
        out = posenc.attention(query, key, value, encoding, attn_mask=everything)
        assert isinstance(out, Tensor)
        return out

    torch.testing.assert_close(
        output(moved, x[:, shuffle]), output(positions, x)[:, :, shuffle], rtol=TOLERANCE, atol=TOLERANCE
    )


def check_parameter_free(entry: Entry) -> None:
    assert [name for name, _ in built(entry).named_parameters()] == []


LAWS: dict[str, Callable[[Entry], None]] = {
    "relative": check_relative,
    "absolute": check_absolute,
    "length_free": check_length_free,
    "fractional": check_fractional,
    "order_free": check_order_free,
    "parameter_free": check_parameter_free,
}


def check_claim(entry: Entry, law: str) -> None:
    """The law holds if it is claimed, and does not hold if it is not."""
    if law in entry.laws:
        LAWS[law](entry)
        return
    try:
        LAWS[law](entry)
    except AssertionError:
        return
    raise AssertionError(f"{entry.name} is {law}, and the catalog does not say so")


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)
def test_a_scheme_has_the_laws_it_claims_and_no_others(entry: Entry) -> None:
    for law in LAWS:
        with named(law):
            check_claim(entry, law)


@pytest.mark.parametrize("law", LAWS)
def test_every_law_is_had_by_some_scheme_and_not_by_another(law: str) -> None:
    assert {law in entry.laws for entry in CATALOG} == {True, False}
