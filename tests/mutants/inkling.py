"""Inkling with other profiles, or other queries that mix them."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import Inkling, Positions
from posenc.schemes import inkling
from tests.cases import HEADS
from tests.hard.wrong import NO_NUMBERS, NO_SIZES, each, sizes
from tests.mutants import Lawless, Mutant, Untrue, drawn, oracles
from tests.oracles.inkling import EXTENT, WIDTH

COMPARED = oracles("inkling")
OF_LAYER = inkling._of_layer


def profiles(
    back: Callable[[Tensor], Tensor] = torch.neg,
    inside: Callable[[Tensor, int], Tensor] = lambda back, extent: (back >= 0) & (back < extent),
    factor: float = 1.0,
) -> Callable[[Inkling, Tensor], Tensor]:
    """The method as it is, but for one thing."""

    def wrong(self: Inkling, r: Tensor) -> Tensor:
        at = back(r)
        kept = inside(at, self.extent)
        return (factor * self.B[at.clamp(0, self.extent - 1)] * kept[..., None])[None]

    return wrong


def growth(n: Callable[[Tensor], Tensor], floor: float | None = 1.0) -> Callable[..., Tensor]:
    """tau as it is, but for one thing."""

    def wrong(length: int, strength: float, positions: object, dtype: object) -> Tensor:
        tokens = n(positions.coords.double())[:, None, :, None] / length  # type: ignore[attr-defined]
        return 1 + strength * tokens.clamp(min=floor or 1e-3).log()

    return wrong


def each_number(clip: float | None, n: int | None, a: float, r: Tensor, p: Positions) -> Tensor:
    return OF_LAYER(None, n, a, r if clip is None else r.clamp(-clip, clip), p)


def after_growth(clip: float | None, n: int | None, a: float, r: Tensor, p: Positions) -> Tensor:
    return OF_LAYER(clip, None, a, OF_LAYER(None, n, a, r, p), p)


MUTANTS = (
    Mutant("looks ahead", Inkling, "_at", profiles(back=lambda r: r), COMPARED),
    Mutant("goes on with its last profile", Inkling, "_at", profiles(inside=lambda b, n: b >= 0), COMPARED),
    Mutant("rewards what comes after too", Inkling, "_at", profiles(inside=lambda b, n: b < n), COMPARED),
    Mutant("is off by one", Inkling, "_at", profiles(back=lambda r: -r - 1), COMPARED),
    Mutant("scales what the layer makes", Inkling, "_at", profiles(factor=WIDTH**-0.5), COMPARED),
    Mutant(
        "grows queries and not their bias",
        inkling,
        "_of_layer",
        lambda c, n, a, r, p: OF_LAYER(c, None, a, r, p),
        COMPARED,
    ),
    Mutant("clips nothing", inkling, "_of_layer", lambda c, n, a, r, p: OF_LAYER(None, n, a, r, p), COMPARED),
    Mutant("clips each number", inkling, "_of_layer", each_number, COMPARED),
    Mutant("clips what has grown", inkling, "_of_layer", after_growth, COMPARED),
    Mutant("counts from 0", inkling, "_factor", growth(lambda p: p), COMPARED),
    Mutant("shrinks before it grows", inkling, "_factor", growth(lambda p: p + 1, floor=None), COMPARED),
)


class BlindInkling(Inkling):
    """The same to either side."""

    _at = profiles(back=torch.abs)


class TurnedInkling(Inkling):
    """Its profiles in the opposite order: every law holds."""

    _at = profiles(back=lambda r: EXTENT - 1 + r, inside=lambda back, n: (back >= 0) & (back < n))


LAWLESS = (Lawless("inkling", lambda shape: BlindInkling(shape.num_heads, 16, 256), "directed"),)
UNTRUE = (Untrue("inkling", lambda: drawn(TurnedInkling(HEADS, WIDTH, EXTENT))),)

GOOD = {"num_heads": 4}
REFUSED = {
    "Inkling": [
        *sizes(Inkling, GOOD, "num_heads", "width", "extent"),
        *each(Inkling, GOOD, "length", NO_SIZES, "a whole number of at least 1"),
        *each(Inkling, GOOD, "strength", NO_NUMBERS, "a finite number"),
        *each(
            Inkling, GOOD, "clip", [(0, "0"), (-1.0, "-1.0"), ("8", "'8'"), (True, "True")], "a finite number above 0"
        ),
    ]
}
