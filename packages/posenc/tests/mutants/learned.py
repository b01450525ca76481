"""Learned that reads another row, or holds what it should not."""

from functools import partial

import torch
from torch import Tensor, nn

from posenc import Learned, Positions
from posenc.positions.tiles import table_index
from tests.hard.wrong import sizes
from tests.mutants import Lawless, Mutant, moved, oracles
from tests.schemes import test_life_cycle


def next_row(self: Learned, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
    return self.weight[(table_index(positions, "Learned", self.weight.size(0)) + 1) % self.weight.size(0)].to(dtype)


def with_a_buffer(self: Learned, max_positions: int, dim: int) -> None:
    super(Learned, self).__init__()
    self.weight = nn.Parameter(torch.empty(max_positions, dim))
    self.register_buffer("position_ids", torch.arange(max_positions))
    self.reset_parameters()


MUTANTS = (
    Mutant("is off by one", Learned, "table", next_row, oracles("learned")),
    Mutant("keeps position_ids", Learned, "__init__", with_a_buffer, partial(test_life_cycle.check_state, "learned")),
    Mutant(
        "does not draw its parameters",
        Learned,
        "reset_parameters",
        lambda self: None,
        partial(test_life_cycle.check_meta, "learned"),
    ),
)


class ClampedLearned(Learned):
    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        return super().table(moved(positions, lambda p: p.clamp(0, len(self.weight) - 1)), dtype)


LAWLESS = (Lawless("learned", lambda shape: ClampedLearned(shape.max_positions, shape.dim), "length_free"),)

REFUSED = {
    "Learned": sizes(Learned, {"max_positions": 9, "dim": 8}, "max_positions", "dim"),
}
