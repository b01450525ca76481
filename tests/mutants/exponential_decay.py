"""ExponentialDecay at other rates."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import ExponentialDecay, Positions
from tests.cases import DIM
from tests.hard.wrong import numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, moved, oracles


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


def from_one(self: ExponentialDecay) -> Tensor:
    return self.longest ** (torch.arange(self.dim, dtype=torch.float64) / self.dim)


def arithmetic(self: ExponentialDecay) -> Tensor:
    return self.longest * torch.arange(1, self.dim + 1, dtype=torch.float64) / self.dim


def of_10_000(self: ExponentialDecay) -> Tensor:
    return 10_000.0 ** (torch.arange(1, self.dim + 1, dtype=torch.float64) / self.dim)


def in_pairs(self: ExponentialDecay) -> Tensor:
    """As a sinusoid's frequencies, every other of them twice."""
    return self.longest ** (2 * (torch.arange(self.dim, dtype=torch.float64) // 2) / self.dim)


def mutant(bug: str, wrong: object) -> Mutant:
    return Mutant(bug, ExponentialDecay, "table", wrong, oracles("exponential_decay"))


MUTANTS = (
    mutant("ignores longest", table(of_10_000)),
    mutant("starts at a time of 1 and never gets to longest", table(from_one)),
    mutant("has two channels per rate", table(in_pairs)),
    mutant("spaces its times evenly", table(arithmetic)),
    mutant("has one rate for all channels", table(lambda self: torch.full((self.dim,), self.longest).double())),
    mutant("has the slowest channel first", table(lambda self: geometric(self).flip(0))),
    mutant("takes times for rates", table(lambda self: 1 / geometric(self))),
    mutant("grows", table(decay=torch.exp)),
    mutant("rises to 1", table(decay=lambda age: 1 - (-age).exp())),
    mutant("takes times for half-lives", table(decay=lambda age: torch.exp2(-age))),
    mutant("counts tokens and reads no coordinates", table(coords=lambda p: torch.arange(len(p))[None].double())),
    mutant("counts from 1", table(coords=lambda positions: positions.coords.double() + 1)),
    mutant("computes ages in single precision", table(coords=lambda p: p.coords, decay=lambda a: (-a.float()).exp())),
)


class HyperbolicDecay(ExponentialDecay):
    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        tau = self.longest ** (torch.arange(1, self.dim + 1, dtype=torch.float64) / self.dim)
        return (1 / (1 + positions.scalar("decay").double()[..., None] / tau)).to(dtype)


class OneRateDecay(ExponentialDecay):
    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.exp(-positions.scalar("decay").double() / 10)[..., None].expand(-1, -1, self.dim).to(dtype)


class SlowerDecay(ExponentialDecay):
    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        return super().table(moved(positions, lambda p: p / 2), dtype)


LAWLESS = (
    Lawless("exponential_decay", lambda shape: HyperbolicDecay(shape.dim), "linear"),
    Lawless("exponential_decay", lambda shape: OneRateDecay(shape.dim), "unique"),
)
UNTRUE = (Untrue("exponential decay", lambda: SlowerDecay(DIM, longest=313.0)),)

REFUSED = {
    "ExponentialDecay": [
        *sizes(ExponentialDecay, {"dim": 8}, "dim"),
        *numbers(ExponentialDecay, {"dim": 8}, "longest", 1),
    ],
}
