"""Learned that reads another row, or holds what it should not."""

from functools import partial

import torch
from torch import Tensor, nn

from posenc import Learned, Positions
from posenc.positions.visibility import table_index
from posenc.schemes.catalog import entries_of
from tests.cases import DIM
from tests.hard.wrong import sizes
from tests.mutants import Lawless, Mutant, Untrue, moved, oracles
from tests.schemes import test_laws, test_life_cycle


def next_row(self: Learned, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
    return self.weight[(table_index(positions, "Learned", self.weight.size(0)) + 1) % self.weight.size(0)].to(dtype)


def row_of_the_index(self: Learned, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
    return self.weight[: len(positions)].to(dtype)[None]


def clamped(self: Learned, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
    return self.weight[positions.coords.clamp(0, self.weight.size(0) - 1)].to(dtype)


def times_root_of_dim(self: Learned, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
    return self.weight.size(1) ** 0.5 * self.weight[table_index(positions, "Learned", self.weight.size(0))].to(dtype)


def with_a_buffer(self: Learned, max_positions: int, dim: int) -> None:
    super(Learned, self).__init__()
    self.weight = nn.Parameter(torch.empty(max_positions, dim))
    self.register_buffer("position_ids", torch.arange(max_positions))
    self.reset_parameters()


def of_a_fixed_length() -> None:
    test_laws.check_claim(*entries_of("learned"), "length_free")


MUTANTS = (
    Mutant("is off by one", Learned, "table", next_row, oracles("learned")),
    Mutant("counts tokens and reads no coordinates", Learned, "table", row_of_the_index, oracles("learned")),
    Mutant("is scaled", Learned, "table", times_root_of_dim, oracles("learned")),
    Mutant("clamps positions past its table", Learned, "table", clamped, of_a_fixed_length),
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


class HalvedLearned(Learned):
    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        return super().table(moved(positions, lambda p: p // 2), dtype)


class ScaledLearned(Learned):
    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        return super().table(positions, dtype) * self.weight.size(1) ** 0.5


LAWLESS = (
    Lawless("learned", lambda shape: ClampedLearned(shape.max_positions, shape.dim), "length_free"),
    Lawless("learned", lambda shape: HalvedLearned(shape.max_positions, shape.dim), "unique"),
)
UNTRUE = (Untrue("learned", lambda: ScaledLearned(20, DIM).double()),)

REFUSED = {
    "Learned": sizes(Learned, {"max_positions": 9, "dim": 8}, "max_positions", "dim"),
}
