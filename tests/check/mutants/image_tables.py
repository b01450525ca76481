"""What is added to patches: sines of MAE and DETR, learned tables that are resized, rows and columns, convolutions."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.tools.check import Layer
from tests.check.mutants import Mutant

Grid = tuple[int, int]


def add(made: Any, x: Tensor, grid: Any = None) -> Tensor:
    return made(x, grid)


class Adder(nn.Module):
    """Adds a vector to every patch, and a zero to the tokens before the patches. What is no grid is one row."""

    def __init__(self, front: int = 0) -> None:
        super().__init__()
        self.front = front

    def code(self, grid: Grid) -> Tensor:
        """(patches, 32)"""
        raise NotImplementedError

    def placed(self, grid: Grid) -> Tensor:
        """(tokens, 32)"""
        return F.pad(self.code(grid), (0, 0, self.front, 0))

    def forward(self, x: Tensor, grid: Grid | None) -> Tensor:
        front = min(self.front, x.size(1) - 1)
        grid = (1, x.size(1) - front) if grid is None else grid
        return x + self.placed(grid)[self.front - front :].to(x.dtype)


# -- learned -----------------------------------------------------------------------------------------------------------


class Rows(Adder):
    """DETR's learned vectors: of the column for half of the channels, of the row for the others."""

    def __init__(self, front: int = 0, limits: Grid = (12, 12)) -> None:
        super().__init__(front)
        self.rows, self.columns = (nn.Embedding(limit, 16) for limit in limits)

    def of(self, table: nn.Embedding, side: int) -> Tensor:
        if side > table.num_embeddings:
            raise ValueError(f"grid must be at most {table.num_embeddings} on each side, got {side}")
        return table(torch.arange(side))

    def code(self, grid: Grid) -> Tensor:
        columns, rows = self.of(self.columns, grid[1]), self.of(self.rows, grid[0])
        return torch.cat((columns.repeat(grid[0], 1), self.down(rows, grid[1])), -1)

    def down(self, rows: Tensor, width: int) -> Tensor:
        """The vector of each row, for all its patches."""
        return rows.repeat_interleave(width, 0)


class TablesExchanged(Rows):
    """The limits are given in the order of columns and rows."""

    def __init__(self, front: int = 0, limits: Grid = (12, 12)) -> None:
        super().__init__(front, (limits[1], limits[0]))


# -- convolutions ------------------------------------------------------------------------------------------------------


def learned(build: Any, **claims: Any) -> Layer:
    return Layer(build=build, call=add, **claims)


CORRECT = (learned(Rows, max_positions=12), learned(Rows, options={"limits": (6, 12)}, max_grid=(6, 12)))
MUTANTS = (
    Mutant(
        "limits of rows and columns exchanged",
        learned(TablesExchanged, options={"limits": (6, 12)}, max_grid=(6, 12)),
        caught_by=20,
        pain=14,
    ),
)
