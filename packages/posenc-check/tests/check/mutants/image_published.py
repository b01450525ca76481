"""Schemes of images that are as published, and that are so but for one thing: nothing but the published one tells."""

from typing import Any

import torch
from torch import Tensor, nn

import posenc
from posenc_check import Layer, Rotary
from tests.check.mutants import Mutant
from tests.check.mutants.phase import Turn, turn

HEADS = 4
Grid = tuple[int, int]


class Whole(nn.Module):
    """Attention among the patches of one window, with a learned bias for each difference (Swin's WindowAttention). A
    smaller grid is the upper left corner of the window; what is no grid is one row."""

    def __init__(self, window: Grid = (5, 7)) -> None:
        super().__init__()
        self.window = window
        self.qkv, self.proj = nn.Linear(32, 96), nn.Linear(32, 32)
        height, width = window
        self.table = nn.Parameter(torch.randn((2 * height - 1) * (2 * width - 1), HEADS))

    def number(self, down: Tensor, right: Tensor) -> Tensor:
        """The entry of a difference, query less key."""
        height, width = self.window
        return (down + height - 1) * (2 * width - 1) + right + width - 1

    def bias(self, grid: Grid) -> Tensor:
        places = torch.stack(torch.meshgrid(*map(torch.arange, grid), indexing="ij")).flatten(1)
        return self.table[self.number(*(places[:, :, None] - places[:, None, :]))].permute(2, 0, 1)

    def forward(self, x: Tensor, grid: Grid | None) -> Tensor:
        grid = (1, x.size(1)) if grid is None else grid
        if grid[0] > self.window[0] or grid[1] > self.window[1]:
            raise ValueError(f"grid must be within {self.window}, got {grid}")
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT * query.size(-1) ** -0.5 + self.bias(grid)
        return self.proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


def look(made: Any, x: Tensor, grid: Any = None) -> Tensor:
    return made(x, grid)


class KeyLessQuery(Whole):
    def number(self, down: Tensor, right: Tensor) -> Tensor:
        return super().number(-down, -right)


class Sections(Turn):
    """Qwen2-VL: the first two pairs go by time, three by the row, three by the column."""

    dealt = (0, 0, 1, 1, 1, 2, 2, 2)

    def phases(self, positions: Tensor, x: Tensor) -> Tensor:
        return positions[..., list(self.dealt)].double() * self.theta()


class SectionsWidthFirst(Sections):
    """The order is time, column, row."""

    dealt = (0, 0, 2, 2, 2, 1, 1, 1)


def table_of(made: Whole, scheme: Any) -> None:
    scheme.weight.data.copy_(made.table)


def swin(build: Any) -> Layer:
    like = posenc.Swin((5, 7), 4)
    claims: dict[str, Any] = {"max_grid": (5, 7), "normalized": True, "directed": True}
    return Layer(build=build, call=look, like=like, match=table_of, **claims)


def rotary(build: Any, like: nn.Module, axes: int, layout: str = "interleaved") -> Rotary:
    return Rotary(build=build, call=turn, axes=axes, relative=True, layout=layout, like=like)


def sections(build: Any) -> Rotary:
    return rotary(build, posenc.MRoPE(16, (2, 3, 3)), 3, "half")


CORRECT = (swin(Whole), sections(Sections))
MUTANTS = (
    Mutant("differences of the other sign", swin(KeyLessQuery), caught_by=21, pain=12),
    Mutant("sections of time, column, row", sections(SectionsWidthFirst), caught_by=21, pain=13),
)
