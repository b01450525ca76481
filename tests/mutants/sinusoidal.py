"""Sinusoidal with other frequencies, in another order, or in too little precision."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from posenc import Positions, Sinusoidal
from posenc.phases import frequencies, phases
from posenc.schemes import sinusoidal
from tests.mutants import Mutant, oracles
from tests.schemes import test_precision

Table = Callable[..., Tensor]


def table(
    theta: Callable[[Sinusoidal], Tensor] = lambda self: frequencies(self.dim, self.base),
    coords: Callable[[Positions], Tensor] = lambda positions: positions.scalar("Sinusoidal"),
    first: str = "sin",
    interleaved: str = "interleaved",
) -> Table:
    """The method as it is, but for one thing."""

    def wrong(self: Sinusoidal, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        angle = phases(coords(positions), theta(self))
        waves = (angle.sin(), angle.cos()) if first == "sin" else (angle.cos(), angle.sin())
        return torch.stack(waves, -1 if self.layout == interleaved else -2).flatten(-2).to(dtype)

    return wrong


def over_all_but_one(self: Sinusoidal) -> Tensor:
    k = torch.arange(self.dim // 2, dtype=torch.float64)
    return self.base ** (-k / (self.dim / 2 - 1))


def single_precision(coords: Tensor, theta: Tensor) -> Tensor:
    return coords.float()[..., None] * theta.float()


def by_index(positions: Positions) -> Tensor:
    return torch.arange(len(positions))[None]


COMPARED = oracles("sinusoidal")
PRECISE = partial(test_precision.check_sinusoidal, "built", "interleaved")
MUTANTS = (
    Mutant("divides by dim/2 - 1, as tensor2tensor does", Sinusoidal, "table", table(theta=over_all_but_one), COMPARED),
    Mutant("ignores the base", Sinusoidal, "table", table(theta=lambda s: frequencies(s.dim, 10_000.0)), COMPARED),
    Mutant("swaps the layouts", Sinusoidal, "table", table(interleaved="concatenated"), COMPARED),
    Mutant("puts the cosine first", Sinusoidal, "table", table(first="cos"), COMPARED),
    Mutant("counts tokens and reads no coordinates", Sinusoidal, "table", table(coords=by_index), COMPARED),
    Mutant("holds positions in bfloat16", Sinusoidal, "table", table(coords=lambda p: p.coords.bfloat16()), PRECISE),
    Mutant("computes phases in single precision", sinusoidal, "phases", single_precision, PRECISE),
)
