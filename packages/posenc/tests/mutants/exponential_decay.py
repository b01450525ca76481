"""ExponentialDecay at other rates."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import ExponentialDecay, Positions
from tests.hard.wrong import numbers, sizes
from tests.mutants import Lawless, Mutant, oracles


def geometric(self: ExponentialDecay) -> Tensor:
    return self.longest ** (torch.arange(1, self.dim + 1, dtype=torch.float64) / self.dim)


def table(
    tau: Callable[[ExponentialDecay], Tensor] = geometric,
    coords: Callable[[Positions], Tensor] = lambda positions: positions.coords.double(),
    decay: Callable[[Tensor], Tensor] = lambda age: (-age).exp(),
) -> Callable[..., Tensor]:
    """The method as it is, but for one thing."""

    def wrong(self: ExponentialDecay, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        return decay(coords(positions)[..., None] / tau(self)).to(dtype)

    return wrong


def mutant(bug: str, wrong: object) -> Mutant:
    return Mutant(bug, ExponentialDecay, "table", wrong, oracles("exponential_decay"))


MUTANTS = (
    mutant("has one rate for all channels", table(lambda self: torch.full((self.dim,), self.longest).double())),
    mutant("has the slowest channel first", table(lambda self: geometric(self).flip(0))),
    mutant("takes times for rates", table(lambda self: 1 / geometric(self))),
)


class HyperbolicDecay(ExponentialDecay):
    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        tau = self.longest ** (torch.arange(1, self.dim + 1, dtype=torch.float64) / self.dim)
        return (1 / (1 + positions.scalar("decay").double()[..., None] / tau)).to(dtype)


LAWLESS = (Lawless("exponential_decay", lambda shape: HyperbolicDecay(shape.dim), "linear"),)

REFUSED = {
    "ExponentialDecay": [
        *sizes(ExponentialDecay, {"dim": 8}, "dim"),
        *numbers(ExponentialDecay, {"dim": 8}, "longest", 1),
    ],
}
