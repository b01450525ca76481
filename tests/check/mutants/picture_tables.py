"""Vectors that are added to patches, as ViT, MAE, DeiT, DINO and DETR have them, and what goes wrong with them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from posenc.tools.check import Layer
from tests.check.mutants import Mutant

DIM = 32
TRAINED = (3, 4)

Grid = tuple[int, int]


class Adder(nn.Module):
    """Adds a vector to each patch, and nothing to the tokens in front of them."""

    def vectors(self, grid: Grid) -> Tensor:
        """(patches, dim)"""
        raise NotImplementedError

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return x + pad(self.vectors(grid), (0, 0, x.size(1) - grid[0] * grid[1], 0)).to(x.dtype)


def add(made: Any, x: Tensor, grid: Grid) -> Tensor:
    return made(x, grid)


# -- sines and cosines -------------------------------------------------------------------------------------------------


def sines(dim: int, places: Tensor) -> Tensor:
    """(…) to (…, dim)"""
    phase = places.reshape(-1)[:, None].double() * 100.0 ** (-torch.arange(dim // 2, dtype=torch.float64) / (dim // 2))
    return torch.cat((phase.sin(), phase.cos()), 1)


class Mae(Adder):
    """The first half by the column, the second by the row: w goes first."""

    def grid(self, high: int, wide: int) -> Tensor:
        across, down = torch.meshgrid(torch.arange(wide), torch.arange(high), indexing="xy")
        return torch.stack((across, down))

    def vectors(self, grid: Grid) -> Tensor:
        across, down = self.grid(*grid)
        return torch.cat((sines(DIM // 2, across), sines(DIM // 2, down)), 1)


class MaeOfTheOtherGrid(Mae):
    """The two arguments exchanged: for a grid lying down."""

    def grid(self, high: int, wide: int) -> Tensor:
        return super().grid(wide, high)


class MaeByTheOtherIndexing(Mae):
    def grid(self, high: int, wide: int) -> Tensor:
        return torch.stack(torch.meshgrid(torch.arange(wide), torch.arange(high), indexing="ij"))


class NumberedByTheLongerSide(Adder):
    """One number for each place, that of a square of the longer side."""

    def vectors(self, grid: Grid) -> Tensor:
        rows, columns = torch.cartesian_prod(*map(torch.arange, grid)).unbind(-1)
        return sines(DIM, rows * max(grid) + columns)


class Numbered(Adder):
    """One number for each place, as in a text."""

    def vectors(self, grid: Grid) -> Tensor:
        return sines(DIM, torch.arange(grid[0] * grid[1]))


class DetrSine(Adder):
    """Rows and columns counted from 1, as shares of the last of them, times 2π."""

    def vectors(self, grid: Grid) -> Tensor:
        rows, columns = (torch.cartesian_prod(*map(torch.arange, grid)) + 1.0).double().unbind(-1)
        high, wide = self.ends(grid)
        rows, columns = (2 * torch.pi * part for part in (rows / (high + 1e-6), columns / (wide + 1e-6)))
        return torch.cat((sines(DIM // 2, rows), sines(DIM // 2, columns)), 1)

    def ends(self, grid: Grid) -> Grid:
        return grid


class SharesOfTheOtherSide(DetrSine):
    def ends(self, grid: Grid) -> Grid:
        return grid[1], grid[0]


class SharesOfTheLongerSide(DetrSine):
    """Both by the longer side, so that patches stay square: as right as each by its own."""

    def ends(self, grid: Grid) -> Grid:
        return max(grid), max(grid)


# -- tables of rows and columns ----------------------------------------------------------------------------------------


class DetrLearned(Adder):
    """A vector for each of seven rows, and one for each of nine columns."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.column = nn.Embedding(7, DIM // 2), nn.Embedding(9, DIM // 2)

    def refuse(self, grid: Grid) -> None:
        for side, most, name in zip(grid, (7, 9), ("rows", "columns"), strict=True):
            if side > most:
                raise ValueError(f"there are {most} {name}, got {side}")

    def vectors(self, grid: Grid) -> Tensor:
        self.refuse(grid)
        rows, columns = torch.cartesian_prod(*map(torch.arange, grid)).unbind(-1)
        return torch.cat((self.column(columns), self.row(rows)), -1)


class RowsTakenForColumns(DetrLearned):
    def vectors(self, grid: Grid) -> Tensor:
        self.refuse(grid)
        rows, columns = torch.cartesian_prod(*map(torch.arange, grid)).unbind(-1)
        return torch.cat((self.row(columns), self.column(rows)), -1)


class OneEndForBoth(DetrLearned):
    """More than nine rows are refused, and with eight or nine the last has the vector of the seventh."""

    def refuse(self, grid: Grid) -> None:
        if max(grid) > 9:
            raise ValueError(f"there are 9 places on a side, got {max(grid)}")

    def vectors(self, grid: Grid) -> Tensor:
        self.refuse(grid)
        rows, columns = torch.cartesian_prod(*map(torch.arange, grid)).unbind(-1)
        return torch.cat((self.column(columns), self.row(rows.clamp(max=6))), -1)


class RasterOfTheTable(Adder):
    """A table of 7 x 9 places, of which a smaller grid takes the first ones."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 63, DIM))

    def vectors(self, grid: Grid) -> Tensor:
        if grid[0] > 7 or grid[1] > 9:
            raise ValueError(f"there are 7 rows and 9 columns, got {grid[0]} and {grid[1]}")
        return self.table[0, : grid[0] * grid[1]]


class CutOut(RasterOfTheTable):
    """The upper left part of it."""

    def vectors(self, grid: Grid) -> Tensor:
        super().vectors(grid)
        return self.table.view(7, 9, DIM)[: grid[0], : grid[1]].flatten(0, 1)


# -- resized tables ----------------------------------------------------------------------------------------------------


class Vit(nn.Module):
    """A vector for the class token and for each place of 3 x 4; for other grids those of places are resized."""

    def __init__(self, how: str = "bicubic") -> None:
        super().__init__()
        self.how, self.table = how, nn.Parameter(torch.randn(1, 1 + TRAINED[0] * TRAINED[1], DIM))

    def resized(self, table: Tensor, grid: Grid) -> Tensor:
        """(1, dim, 3, 4) to (1, dim, height, width)"""
        return interpolate(table, grid, mode=self.how, antialias=self.how == "bilinear")

    def vectors(self, grid: Grid) -> Tensor:
        front, places = self.table[:, :1], self.table[:, 1:]
        if grid != TRAINED:
            places = self.resized(places.mT.unflatten(2, TRAINED), grid).flatten(2).mT
        return torch.cat((front, places), 1)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        height, width = grid
        assert x.size(1) == 1 + height * width
        return x + self.vectors(grid)


class Dino(Vit):
    """A factor that is a little too high, against rounding: it shifts all by part of a patch."""

    def resized(self, table: Tensor, grid: Grid) -> Tensor:
        factor = [(side + 0.1) / trained for side, trained in zip(grid, TRAINED, strict=True)]
        return interpolate(table, scale_factor=factor, mode=self.how)


class ResizedLyingDown(Vit):
    def resized(self, table: Tensor, grid: Grid) -> Tensor:
        return super().resized(table, (grid[1], grid[0]))


class TableLyingDown(Vit):
    """The table is read as 4 x 3."""

    def resized(self, table: Tensor, grid: Grid) -> Tensor:
        return super().resized(table.flatten(2).unflatten(2, (TRAINED[1], TRAINED[0])), grid)


class SizesByTheirArea(Vit):
    """As many patches as there were need no other table."""

    def vectors(self, grid: Grid) -> Tensor:
        return super().vectors(TRAINED if grid[0] * grid[1] == TRAINED[0] * TRAINED[1] else grid)


class ClassTokenResized(Vit):
    """The class token's vector is resized with the others, and stands before them as it was."""

    def vectors(self, grid: Grid) -> Tensor:
        if grid == TRAINED:
            return super().vectors(grid)
        line = interpolate(self.table.mT, grid[0] * grid[1], mode="linear")
        return torch.cat((self.table[:, :1], line.mT), 1)


class ClassTokenOfTheMean(Vit):
    def vectors(self, grid: Grid) -> Tensor:
        found = super().vectors(grid)
        if grid == TRAINED:
            return found
        return torch.cat((found.mean(1, keepdim=True), found[:, 1:]), 1)


class ResizedAtHome(Dino):
    """The trained grid is resized too, to itself."""

    def vectors(self, grid: Grid) -> Tensor:
        places = self.resized(self.table[:, 1:].mT.unflatten(2, TRAINED), grid).flatten(2).mT
        return torch.cat((self.table[:, :1], places), 1)


class Repeated(Vit):
    """In place of being resized, begins anew past the trained grid."""

    def resized(self, table: Tensor, grid: Grid) -> Tensor:
        times = [-(-side // trained) for side, trained in zip(grid, TRAINED, strict=True)]
        return table.repeat(1, 1, *times)[..., : grid[0], : grid[1]]


class Seer(nn.Module):
    """One head behind a table that is resized, whose class token must be there and is never padding."""

    def __init__(self) -> None:
        super().__init__()
        self.add, self.project = self.table(), nn.Linear(DIM, 3 * DIM)
        nn.init.normal_(self.project.weight, std=0.25)

    def table(self) -> nn.Module:
        return Vit("bilinear")

    def forward(self, x: Tensor, grid: Grid, padding: Tensor | None) -> Tensor:
        query, key, value = self.project(self.add(x, grid)).chunk(3, -1)
        scores = query @ key.mT / DIM**0.5
        if padding is not None:
            assert padding[:, 0].all(), "the class token is no padding"
            scores = scores.masked_fill(~padding[:, None], -torch.inf)
        return scores.softmax(-1) @ value


class Distilled(nn.Module):
    """A table with a vector for the class token, for that of distillation, and for each of up to 7 x 9 places."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.places = nn.Parameter(torch.randn(1, 2, DIM)), CutOut()

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        assert x.size(1) == 2 + grid[0] * grid[1]
        return torch.cat((x[:, :2] + self.front, self.places(x[:, 2:], grid)), 1)


class DeiT(Seer):
    """One head behind that."""

    def table(self) -> nn.Module:
        return Distilled()


def seen(made: Any, x: Tensor, grid: Grid = TRAINED, padding: Tensor | None = None) -> Tensor:
    return made(x, grid, padding)


def adder(build: Any, **claims: Any) -> Layer:
    return Layer(build=build, call=add, **claims)


def vit(build: Any, how: str = "bicubic") -> Layer:
    return adder(build, options={"how": how}, registers=1, trained_grid=TRAINED)


CORRECT = (
    adder(Mae, registers=1),
    adder(DetrSine),
    adder(SharesOfTheLongerSide),
    adder(DetrLearned, max_grid=(7, 9)),
    adder(CutOut, max_grid=(7, 9)),
    vit(Vit),
    vit(Vit, how="bilinear"),
    vit(Vit, how="nearest"),
    adder(Vit, registers=1),  # nobody says that it is resized
    vit(Dino),
    Layer(build=Seer, call=seen, registers=1),
    adder(Distilled, registers=2, max_grid=(7, 9)),
    Layer(build=DeiT, call=seen, registers=2, max_grid=(7, 9)),
)
MUTANTS = tuple(
    Mutant(name, subject, caught_by=20, pain=12)
    for name, subject in {
        "sines of a grid lying down": adder(MaeOfTheOtherGrid, registers=1),
        "sines by the other indexing": adder(MaeByTheOtherIndexing, registers=1),
        "places numbered by the longer side": adder(NumberedByTheLongerSide),
        "places numbered as in a text": adder(Numbered),
        "shares of the other side": adder(SharesOfTheOtherSide),
        "rows taken for columns": adder(RowsTakenForColumns, max_grid=(7, 9)),
        "one end for both axes": adder(OneEndForBoth, max_grid=(7, 9)),
        "a table that is read on as one line": adder(RasterOfTheTable, max_grid=(7, 9)),
        "a table resized lying down": vit(ResizedLyingDown),
        "a table lying down resized": vit(TableLyingDown),
        "sizes compared by their area": vit(SizesByTheirArea),
        "a class token that is resized": vit(ClassTokenResized),
        "a class token of the mean": vit(ClassTokenOfTheMean),
        "a trained grid that is resized": vit(ResizedAtHome),
        "a table that begins anew": vit(Repeated),
    }.items()
)
