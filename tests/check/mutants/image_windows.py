"""Swin, BEiT and axial attention over grids of patches: windows, shifts, masks and tables of differences."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.tools.check import Layer
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


class MeshOfColumnsFirst(Whole):
    """The default of NumPy's meshgrid: patches are numbered column by column."""

    def places(self, grid: Grid) -> Tensor:
        return torch.stack(torch.meshgrid(*map(torch.arange, grid), indexing="xy")).flatten(1)


class ReadAsAnotherWindow(Whole):
    """The index of the whole window is cut to the first tokens, as if a smaller grid had as long rows."""

    def bias(self, grid: Grid) -> Tensor:
        tokens = grid[0] * grid[1]
        return super().bias(self.window)[:, :tokens, :tokens]


class DistancesAlone(Whole):
    """The sign of a difference is lost."""

    def number(self, down: Tensor, right: Tensor) -> Tensor:
        return super().number(down.abs(), right.abs())


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


class JoinedSidesExchanged(Windows):
    """Window reverse with height and width exchanged."""

    def join(self, x: Tensor, grid: Grid) -> Tensor:
        height, width = self.window
        x = x.view(x.size(0), grid[1] // width, grid[0] // height, height, width, -1)
        return x.permute(0, 2, 3, 1, 4, 5).reshape(x.size(0), *grid, -1)


class CutWithoutTranspose(Windows):
    """Windows are runs of the raster: nothing is transposed, here and there."""

    def cut(self, x: Tensor) -> Tensor:
        return x.flatten(1, 2).unflatten(1, (-1, self.window[0] * self.window[1]))

    def join(self, x: Tensor, grid: Grid) -> Tensor:
        return x.reshape(x.size(0), *grid, -1)


class NoShiftMask(Windows):
    """What the roll brought from the other side is seen."""

    def bounds(self, side: int, axis: int) -> list[int]:
        return []


class OneBound(Windows):
    """The mask is cut a shift from the beginning, as if the roll had gone the other way."""

    def bounds(self, side: int, axis: int) -> list[int]:
        return [self.shift[axis], self.window[axis]] if self.shift[axis] else []


class MaskOfRowsAlone(Windows):
    def bounds(self, side: int, axis: int) -> list[int]:
        return [] if axis else super().bounds(side, axis)


class NotRolledBack(Windows):
    def unrolled(self, x: Tensor) -> Tensor:
        return x


class RolledOn(Windows):
    """The sign of the second roll is that of the first."""

    def unrolled(self, x: Tensor) -> Tensor:
        return self.rolled(x)


class ShiftsExchanged(Windows):
    """Rolls rows by the shift of columns, there and back."""

    def rolled(self, x: Tensor) -> Tensor:
        return x.roll((-self.shift[1], -self.shift[0]), (1, 2))

    def unrolled(self, x: Tensor) -> Tensor:
        return x.roll((self.shift[1], self.shift[0]), (1, 2))


class PaddingSeen(Windows):
    """Zeros beside the image have a share of the softmax."""

    def regions(self, grid: Grid, whole: Grid) -> Tensor:
        return super().regions(whole, whole)


class MaskKept(Windows):
    """The mask is made once for each number of windows."""

    def __init__(self, window: Grid = (3, 4), shift: Grid = (0, 0)) -> None:
        super().__init__(window, shift)
        self.masks: dict[int, Tensor] = {}

    def visible(self, grid: Grid, whole: Grid) -> Tensor:
        made = super().visible(grid, whole)
        return self.masks.setdefault(len(made), made)


class MasksInRuns(Windows):
    """In a batch, the mask of the first window is that of all rows' first few windows."""

    def spread(self, visible: Tensor, rows: int) -> Tensor:
        return visible.repeat_interleave(rows, 0)


class Cosines(Whole):
    """Swin v2: cosines with a learned scale, and a bias that a small network makes of logarithms of differences."""

    def __init__(self, window: Grid = (5, 7)) -> None:
        super().__init__(window)
        del self.table
        self.tau = nn.Parameter(torch.full((HEADS,), math.log(10)) + 0.1 * torch.randn(HEADS))
        self.inner, self.outer = nn.Linear(2, 16), nn.Linear(16, HEADS, bias=False)

    def coordinates(self, places: Tensor) -> Tensor:
        """From -1 to 1 and then to logarithms."""
        most = torch.tensor([max(side - 1, 1) for side in self.window], dtype=torch.float64)
        away = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) / most * 8
        return away.sign() * torch.log2(away.abs() + 1) / math.log2(8)

    def bias(self, grid: Grid) -> Tensor:
        away = self.coordinates(self.places(grid)).to(self.tau.dtype)
        return 16 * self.outer(self.inner(away).relu()).sigmoid().permute(2, 0, 1)

    def attend(self, x: Tensor, grid: Grid, visible: Tensor | None = None) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scale = self.tau.clamp(max=math.log(100)).exp()[:, None, None]
        scores = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).mT * scale + self.bias(grid)
        return self.proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class LogarithmsWithoutASign(Cosines):
    """Left is as right, and up as down."""

    def coordinates(self, places: Tensor) -> Tensor:
        return super().coordinates(places).abs()


class Classified(Whole):
    """BEiT: before the patches a class token, which has three entries of its own: to patches, of patches, of itself."""

    def __init__(self, window: Grid = (5, 7)) -> None:
        super().__init__(window)
        height, width = window
        self.table = nn.Parameter(torch.randn((2 * height - 1) * (2 * width - 1) + 3, HEADS))

    def index(self, grid: Grid) -> Tensor:
        whole = F.pad(super().index(grid), (1, 0, 1, 0))
        last = self.table.size(0)
        whole[0, :], whole[:, 0], whole[0, 0] = last - 3, last - 2, last - 1
        return whole

    def forward(self, x: Tensor, grid: Grid | None) -> Tensor:
        return super().forward(x, (1, x.size(1) - 1) if grid is None else grid)


class ClassAtTheEnd(Classified):
    """The entries of the class token go to the last token; the first is taken for a patch."""

    def index(self, grid: Grid) -> Tensor:
        return super().index(grid).roll((-1, -1), (0, 1))


class ClassIsAPatch(Classified):
    """The class token stands in the corner, and has no entries of its own."""

    def places(self, grid: Grid) -> Tensor:
        return F.pad(super().places(grid), (1, 0))

    def index(self, grid: Grid) -> Tensor:
        return Whole.index(self, grid)


class Crossed(nn.Module):
    """Axial attention: along the row, and along the column, each with a bias by distance; the sum of both."""

    def __init__(self) -> None:
        super().__init__()
        self.along = nn.ModuleList(nn.Linear(32, 96) for _ in range(2))
        self.tables = nn.ParameterList(nn.Parameter(torch.randn(HEADS, 63)) for _ in range(2))

    def line(self, x: Tensor, axis: int) -> Tensor:
        """(lines, tokens, dim)"""
        place = torch.arange(x.size(1))
        query, key, value = self.along[axis](x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        bias = self.tables[axis][:, place - place[:, None] + 31]
        return ((query @ key.mT / 8**0.5 + bias).softmax(-1) @ value).transpose(1, 2).flatten(2)

    def columns(self, image: Tensor) -> Tensor:
        turned = image.transpose(1, 2)
        return self.line(turned.flatten(0, 1), 0).view(turned.shape).transpose(1, 2)

    def forward(self, x: Tensor, grid: Grid | None) -> Tensor:
        grid = (1, x.size(1)) if grid is None else grid
        if max(grid) > 32:
            raise ValueError(f"grid must be within (32, 32), got {grid}")
        image = x.unflatten(1, grid)
        rows = self.line(image.flatten(0, 1), 1).view(image.shape)
        return (rows + self.columns(image)).flatten(1, 2)


class ColumnsNotTurnedBack(Crossed):
    """What comes of the columns is read as if it came of rows."""

    def columns(self, image: Tensor) -> Tensor:
        return self.line(image.transpose(1, 2).flatten(0, 1), 0).view(image.shape)


class ColumnsByView(Crossed):
    """A view of other sides instead of a transpose."""

    def columns(self, image: Tensor) -> Tensor:
        turned = image.reshape(image.size(0), image.size(2), image.size(1), -1)
        return self.line(turned.flatten(0, 1), 0).view(image.shape)


class ColumnsOfAllRows(Crossed):
    """Columns of several images stand in one line."""

    def columns(self, image: Tensor) -> Tensor:
        turned = image.permute(2, 1, 0, 3)
        return self.line(turned.flatten(1, 2), 0).view(turned.shape).permute(2, 1, 0, 3)


def whole(build: Any, **claims: Any) -> Layer:
    claims = {"relative": True, "max_grid": (5, 7), "normalized": True, **claims}
    return Layer(build=build, call=look, **claims)


def windows(build: Any, shift: Grid = (0, 0)) -> Layer:
    claims: dict[str, Any] = {"options": {"shift": shift}, "window": (3, 4), "window_shift": shift}
    return Layer(build=build, call=look, relative=True, normalized=True, **claims)


def crossed(build: Any) -> Layer:
    return Layer(build=build, call=look, relative=True, max_positions=32)


CORRECT = (
    whole(Whole, directed=True),
    windows(Windows),
    windows(Windows, (1, 2)),
    whole(Cosines, directed=True),
    whole(Classified, registers=1),
    crossed(Crossed),
)
MUTANTS = (
    Mutant("a window's mesh of columns first", whole(MeshOfColumnsFirst), caught_by=20, pain=12),
    Mutant("a smaller grid read as rows of the window", whole(ReadAsAnotherWindow), caught_by=20, pain=12),
    Mutant("distances for differences", whole(DistancesAlone, directed=True), caught_by=20, pain=12),
    Mutant("masks of windows in runs", windows(MasksInRuns, (1, 2)), caught_by=19, pain=18),
    Mutant("logarithms without a sign", whole(LogarithmsWithoutASign, directed=True), caught_by=20, pain=12),
    Mutant("window reverse with its sides exchanged", windows(JoinedSidesExchanged), caught_by=20, pain=12),
    Mutant("windows cut without a transpose", windows(CutWithoutTranspose), caught_by=20, pain=12),
    Mutant("no mask for the shift", windows(NoShiftMask, (1, 2)), caught_by=20, pain=12),
    Mutant("the shift's mask from the wrong end", windows(OneBound, (1, 2)), caught_by=20, pain=12),
    Mutant("the shift's mask for rows alone", windows(MaskOfRowsAlone, (1, 2)), caught_by=20, pain=12),
    Mutant("windows not rolled back", windows(NotRolledBack, (1, 2)), caught_by=20, pain=12),
    Mutant("windows rolled on", windows(RolledOn, (1, 2)), caught_by=20, pain=12),
    Mutant("shifts of rows and columns exchanged", windows(ShiftsExchanged, (1, 2)), caught_by=20, pain=12),
    Mutant("padding of windows is seen", windows(PaddingSeen), caught_by=20, pain=12),
    Mutant("a mask kept by the number of windows", windows(MaskKept, (1, 2)), caught_by=5, pain=12),
    Mutant("the class token's entries at the end", whole(ClassAtTheEnd, registers=1), caught_by=20, pain=12),
    Mutant("the class token in the corner", whole(ClassIsAPatch, registers=1), caught_by=20, pain=12),
    Mutant("columns not turned back", crossed(ColumnsNotTurnedBack), caught_by=20, pain=12),
    Mutant("columns by a view", crossed(ColumnsByView), caught_by=20, pain=12),
    Mutant("columns through all images", crossed(ColumnsOfAllRows), caught_by=19, pain=18),
)
