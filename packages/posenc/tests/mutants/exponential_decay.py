"""ExponentialDecay at other rates."""

import torch
from torch import Tensor

from posenc import ExponentialDecay, Positions
from tests.mutants import Lawless, lines, oracles

MUTANTS = lines(
    oracles("exponential_decay"),
    ("has one rate for all channels", ExponentialDecay, "table", "**-powers", "**-powers[-1:].expand(self.dim)"),
    ("has the slowest channel first", ExponentialDecay, "table", "**-powers", "**-powers.flip(0)"),
    ("takes times for rates", ExponentialDecay, "table", "**-powers", "**powers"),
)


class HyperbolicDecay(ExponentialDecay):
    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        tau = self.longest ** (torch.arange(1, self.dim + 1, dtype=torch.float64) / self.dim)
        return (1 / (1 + positions.scalar("decay").double()[..., None] / tau)).to(dtype)


LAWLESS = (Lawless("exponential_decay", lambda shape: HyperbolicDecay(shape.dim), "linear"),)
