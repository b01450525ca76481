"""Sinusoidal with other frequencies, in another order, or in too little precision."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from posenc import Positions, Sinusoidal
from posenc.rotation.phases import frequencies, phases
from posenc.schemes import sinusoidal
from tests.cases import DIM
from tests.mutants import Lawless, Mutant, Untrue, moved, oracles, wide
from tests.schemes import test_precision

Table = Callable[..., Tensor]


def by_axis(positions: Positions) -> Tensor:
    return positions.coords if positions.coords.dim() == 3 else positions.coords[..., None]


def table(
    theta: Callable[[Sinusoidal], Tensor] = Sinusoidal._frequencies,
    coords: Callable[[Positions], Tensor] = by_axis,
    first: str = "sin",
    interleaved: str = "interleaved",
    axes: str = "in turn",
) -> Table:
    """The method as it is, but for one thing."""

    def wrong(self: Sinusoidal, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        angle = torch.stack([phases(axis, theta(self)) for axis in coords(positions).unbind(-1)], -2)
        angle = {
            "in turn": lambda: angle,
            "one by one": lambda: angle.mT.reshape_as(angle),
            "as one": lambda: angle.flatten(-2)[..., None, :],
            "summed": lambda: angle.sum(-2, keepdim=True).expand_as(angle),
        }[axes]()
        waves = (angle.sin(), angle.cos()) if first == "sin" else (angle.cos(), angle.sin())
        return torch.stack(waves, -1 if self.layout == interleaved else -2).flatten(-3).to(dtype)

    return wrong


def over_all_but_one(self: Sinusoidal) -> Tensor:
    pairs = self.dim // (2 * self.axes)
    return self.base ** (-torch.arange(pairs, dtype=torch.float64) / (pairs - 1))


def over_dim(self: Sinusoidal, device: torch.device | None = None) -> Tensor:
    return frequencies(self.dim // self.axes, self.base, device)


def over_all_axes(self: Sinusoidal) -> Tensor:
    return frequencies(self.dim, self.base)[: self.dim // (2 * self.axes)]


def single_precision(coords: Tensor, theta: Tensor) -> Tensor:
    return coords.float()[..., None] * theta.float()


def by_index(positions: Positions) -> Tensor:
    return torch.arange(len(positions))[None, :, None].expand(-1, -1, by_axis(positions).size(-1))


COMPARED = oracles("sinusoidal")
PRECISE = partial(test_precision.check_sinusoidal, "built", "interleaved")
MUTANTS = (
    Mutant("divides by dim/2 - 1, as tensor2tensor does", Sinusoidal, "table", table(theta=over_all_but_one), COMPARED),
    Mutant("divides tensor2tensor's by dim/2", Sinusoidal, "_frequencies", over_dim, COMPARED),
    Mutant(
        "ignores the base", Sinusoidal, "table", table(theta=lambda s: frequencies(s.dim // s.axes, 10_000.0)), COMPARED
    ),
    Mutant("swaps the layouts", Sinusoidal, "table", table(interleaved="concatenated"), COMPARED),
    Mutant("puts the cosine first", Sinusoidal, "table", table(first="cos"), COMPARED),
    Mutant("counts tokens and reads no coordinates", Sinusoidal, "table", table(coords=by_index), COMPARED),
    Mutant("holds positions in bfloat16", Sinusoidal, "table", table(coords=lambda p: by_axis(p).bfloat16()), PRECISE),
    Mutant("computes phases in single precision", sinusoidal, "phases", single_precision, PRECISE),
    Mutant("swaps the axes", Sinusoidal, "table", table(coords=lambda p: by_axis(p).flip(-1)), COMPARED),
    Mutant("takes its frequencies over dim, not dim/axes", Sinusoidal, "table", table(theta=over_all_axes), COMPARED),
    Mutant("interleaves the axes", Sinusoidal, "table", table(axes="one by one"), COMPARED),
    Mutant("puts the sines of all axes first", Sinusoidal, "table", table(axes="as one"), COMPARED),
    Mutant("sums the axes", Sinusoidal, "table", table(axes="summed"), COMPARED),
)


class AcceleratingSinusoidal(Sinusoidal):
    """What "higher positions oscillate more frequently" would mean."""

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        return super().table(moved(positions, lambda p: p.double() ** 1.5), dtype)


class GrowingSinusoidal(Sinusoidal):
    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        height = positions.coords if positions.coords.dim() == 2 else positions.coords[..., 0]
        return (super().table(positions, torch.float64) * (1 + height / 1000)[..., None]).to(dtype)


class RoundingSinusoidal(Sinusoidal):
    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        return super().table(moved(positions, lambda p: p.round()), dtype)


class SwappedSinusoidal(Sinusoidal):
    """Cosines first: every law holds."""

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        return super().table(positions, dtype).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


LAWLESS = (
    Lawless("sinusoidal", wide(AcceleratingSinusoidal), "linear"),
    Lawless("sinusoidal", wide(GrowingSinusoidal), "bounded"),
    Lawless("sinusoidal", wide(RoundingSinusoidal), "fractional"),
)
UNTRUE = (Untrue("sinusoidal", lambda: SwappedSinusoidal(DIM, base=313.0)),)
