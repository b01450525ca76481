"""Learned that reads another row, or holds what it should not."""

from functools import partial

import torch
from torch import Tensor, nn

from posenc import Learned, Positions
from tests.mutants import Lawless, Mutant, lines, moved, oracles, undrawn
from tests.schemes import test_life_cycle


def with_a_buffer(self: Learned, max_positions: int, dim: int) -> None:
    super(Learned, self).__init__()
    self.weight = nn.Parameter(torch.empty(max_positions, dim))
    self.register_buffer("position_ids", torch.arange(max_positions))
    self.reset_parameters()


MUTANTS = (
    *lines(
        oracles("learned"),
        ("is off by one", Learned, "table", "self.max_positions)]", "self.max_positions).add(1) % self.max_positions]"),
    ),
    Mutant("keeps position_ids", Learned, "__init__", with_a_buffer, partial(test_life_cycle.check_state, "learned")),
    undrawn(Learned, "learned"),
)


class ClampedLearned(Learned):
    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        return super().table(moved(positions, lambda p: p.clamp(0, len(self.weight) - 1)), dtype)


LAWLESS = (Lawless("learned", lambda shape: ClampedLearned(shape.max_positions, shape.dim), "length_free"),)
