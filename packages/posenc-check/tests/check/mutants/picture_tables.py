"""Vectors that are added to patches, as ViT, MAE, DeiT, DINO and DETR have them, and what goes wrong with them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from posenc_check import Layer
from tests.check.mutants import Mutant

DIM = 32
TRAINED = (3, 4)

Grid = tuple[int, int]


def add(made: Any, x: Tensor, grid: Grid) -> Tensor:
    return made(x, grid)


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


class ResizedAtHome(Dino):
    """The trained grid is resized too, to itself."""

    def vectors(self, grid: Grid) -> Tensor:
        places = self.resized(self.table[:, 1:].mT.unflatten(2, TRAINED), grid).flatten(2).mT
        return torch.cat((self.table[:, :1], places), 1)


def adder(build: Any, **claims: Any) -> Layer:
    return Layer(build=build, call=add, **claims)


def vit(build: Any, how: str = "bicubic") -> Layer:
    return adder(build, options={"how": how}, registers=1, trained_grid=TRAINED)


CORRECT = (
    vit(Vit),
    vit(Vit, how="bilinear"),
    vit(Vit, how="nearest"),
    adder(Vit, registers=1),  # nobody says that it is resized
    vit(Dino),
)
MUTANTS = tuple(
    Mutant(name, subject, caught_by=20, pain=12)
    for name, subject in {
        "a table resized lying down": vit(ResizedLyingDown),
        "a trained grid that is resized": vit(ResizedAtHome),
    }.items()
)
