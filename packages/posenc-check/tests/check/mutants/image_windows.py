"""Swin, BEiT and axial attention over grids of patches: windows, shifts, masks and tables of differences."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_check import Layer
from tests.check.mutants import Mutant

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

    def places(self, grid: Grid) -> Tensor:
        """(2, patches)"""
        return torch.stack(torch.meshgrid(*map(torch.arange, grid), indexing="ij")).flatten(1)

    def number(self, down: Tensor, right: Tensor) -> Tensor:
        """The entry of a difference, query less key."""
        height, width = self.window
        return (down + height - 1) * (2 * width - 1) + right + width - 1

    def index(self, grid: Grid) -> Tensor:
        places = self.places(grid)
        return self.number(*(places[:, :, None] - places[:, None, :]))

    def bias(self, grid: Grid) -> Tensor:
        return self.table[self.index(grid)].permute(2, 0, 1)

    def attend(self, x: Tensor, grid: Grid, visible: Tensor | None = None) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT * query.size(-1) ** -0.5 + self.bias(grid)
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        return self.proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, grid: Grid | None) -> Tensor:
        grid = (1, x.size(1)) if grid is None else grid
        if grid[0] > self.window[0] or grid[1] > self.window[1]:
            raise ValueError(f"grid must be within {self.window}, got {grid}")
        return self.attend(x, grid)


def look(made: Any, x: Tensor, grid: Any = None) -> Tensor:
    return made(x, grid)


class Windows(Whole):
    """A layer of Swin: pads to whole windows, rolls, cuts, attends, puts together, rolls back and crops. Padding and
    what the roll brought together are not seen."""

    def __init__(self, window: Grid = (3, 4), shift: Grid = (0, 0)) -> None:
        super().__init__(window)
        self.shift = shift

    def cut(self, x: Tensor) -> Tensor:
        """(rows, height, width, …) to (rows, windows, patches, …)."""
        height, width = self.window
        x = x.unflatten(2, (-1, width)).unflatten(1, (-1, height)).transpose(2, 3)
        return x.flatten(3, 4).flatten(1, 2)

    def join(self, x: Tensor, grid: Grid) -> Tensor:
        """The reverse."""
        height, width = self.window
        x = x.view(x.size(0), grid[0] // height, grid[1] // width, height, width, -1)
        return x.transpose(2, 3).reshape(x.size(0), *grid, -1)

    def rolled(self, x: Tensor) -> Tensor:
        return x.roll((-self.shift[0], -self.shift[1]), (1, 2))

    def unrolled(self, x: Tensor) -> Tensor:
        return x.roll(self.shift, (1, 2))

    def bounds(self, side: int, axis: int) -> list[int]:
        """Where along an axis, after the roll, another region begins."""
        window, shift = self.window[axis], self.shift[axis]
        return [side - window, side - shift] if shift else []

    def regions(self, grid: Grid, whole: Grid) -> Tensor:
        """(height, width): a number for each region that sees itself alone, -1 for padding."""
        down, right = (
            torch.bucketize(torch.arange(side), torch.tensor(self.bounds(side, axis)).long(), right=True)
            for axis, side in enumerate(whole)
        )
        real = F.pad(torch.ones(grid), (0, whole[1] - grid[1], 0, whole[0] - grid[0]))
        return (3 * down[:, None] + right).masked_fill(self.rolled(real[None])[0] == 0, -1)

    def visible(self, grid: Grid, whole: Grid) -> Tensor:
        """(windows, 1, patches, patches)"""
        region = self.cut(self.regions(grid, whole)[None])[0]
        return (region[:, :, None] == region[:, None, :])[:, None]

    def spread(self, visible: Tensor, rows: int) -> Tensor:
        return visible.repeat(rows, 1, 1, 1)

    def forward(self, x: Tensor, grid: Grid | None) -> Tensor:
        grid = (1, x.size(1)) if grid is None else grid
        height, width = (-(-side // window) * window for side, window in zip(grid, self.window, strict=True))
        image = F.pad(x.unflatten(1, grid), (0, 0, 0, width - grid[1], 0, height - grid[0]))
        cut = self.cut(self.rolled(image))
        visible = self.spread(self.visible(grid, (height, width)), len(x))
        out = self.attend(cut.flatten(0, 1), self.window, visible).unflatten(0, cut.shape[:2])
        return self.unrolled(self.join(out, (height, width)))[:, : grid[0], : grid[1]].flatten(1, 2)


class NotRolledBack(Windows):
    def unrolled(self, x: Tensor) -> Tensor:
        return x


def whole(build: Any, **claims: Any) -> Layer:
    claims = {"relative": True, "max_grid": (5, 7), "normalized": True, **claims}
    return Layer(build=build, call=look, **claims)


def windows(build: Any, shift: Grid = (0, 0)) -> Layer:
    claims: dict[str, Any] = {"options": {"shift": shift}, "window": (3, 4), "window_shift": shift}
    return Layer(build=build, call=look, relative=True, normalized=True, **claims)


CORRECT = (whole(Whole, directed=True), windows(Windows), windows(Windows, (1, 2)))
MUTANTS = (Mutant("windows not rolled back", windows(NotRolledBack, (1, 2)), caught_by=20, pain=12),)
