"""Rows and columns taken for one another, or one of them for none; and what follows an image."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc_check import Layer, Rotary
from tests.check.mutants import Mutant
from tests.check.mutants.phase import Turn, turn


class Axial(Turn):
    """The first half of the pairs is turned by the row, the second by the column."""

    def coordinates(self, positions: Tensor) -> list[Tensor]:
        return [*positions.unbind(-1)]

    def theta(self) -> Tensor:
        return super().theta()[::2]

    def phases(self, positions: Tensor, x: Tensor) -> Tensor:
        return torch.cat([axis[..., None].double() * self.theta() for axis in self.coordinates(positions)], -1)


class ColumnsAlone(Axial):
    """The row is never looked at."""

    def coordinates(self, positions: Tensor) -> list[Tensor]:
        return [positions[..., 1], positions[..., 1]]


class RowsInPowers(Axial):
    """Rows of which each next is further away."""

    def coordinates(self, positions: Tensor) -> list[Tensor]:
        return [positions[..., 0] ** 2, positions[..., 1]]


class Sections(Turn):
    """M-RoPE: of eight pairs, two go by time, three by the row and three by the column; text has one position."""

    def phases(self, positions: Tensor, x: Tensor) -> Tensor:
        if positions.dim() == 2:
            positions = positions[..., None].expand(*positions.shape, 3)
        return positions[..., [0, 0, 1, 1, 1, 2, 2, 2]].double() * self.theta()


class SectionsThatStartAnew(Sections):
    """Each section begins with the fastest frequency."""

    def phases(self, positions: Tensor, x: Tensor) -> Tensor:
        theta = self.theta()
        if positions.dim() == 2:
            return positions[..., None].double() * theta
        return positions[..., [0, 0, 1, 1, 1, 2, 2, 2]].double() * theta[[0, 1, 0, 1, 2, 0, 1, 2]]


class Reader(nn.Module):
    """Causal attention with M-RoPE, one head of 16 channels, and a cache of turned keys."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.rope = nn.Linear(32, 48, bias=False), Sections()
        nn.init.normal_(self.project.weight, std=0.25)

    def places(self, positions: Tensor | None, before: int, x: Tensor) -> Tensor:
        if positions is None:
            return torch.arange(before, before + x.size(1)).expand(x.shape[:2])
        return positions

    def forward(self, x: Tensor, positions: Tensor | None, cache: list[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        before = 0 if cache is None else cache[0].size(2)
        query, key, value = (part[:, None] for part in self.project(x).chunk(3, -1))
        places = self.places(positions, before, x)
        query, key = self.rope(query, places), self.rope(key, places)
        if cache is not None:
            key, value = torch.cat((cache[0], key), 2), torch.cat((cache[1], value), 2)
        seen = torch.ones(x.size(1), key.size(2)).tril(before).bool()
        scores = (query @ key.mT / 4).masked_fill(~seen, -torch.inf)
        return (scores.softmax(-1) @ value)[:, 0], [key, value]


class SlotsTakenForPositions(Reader):
    """Goes on, once there is a cache, from how much is in it."""

    def places(self, positions: Tensor | None, before: int, x: Tensor) -> Tensor:
        return super().places(None if before else positions, before, x)


def read(made: Any, x: Tensor, positions: Tensor | None = None, cache: Any = None) -> Any:
    return made(x, positions, cache)


class Patches(nn.Module):
    """Attention among patches, with a learned bias for each step down and each to the right, up to 31. Tokens before
    the patches have no place, and get none. What is no grid is one row."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 96, bias=False)
        self.down, self.right = (nn.Parameter(torch.randn(63)) for _ in range(2))

    def raster(self, height: int, width: int) -> Tensor:
        return torch.cartesian_prod(torch.arange(height), torch.arange(width))

    def places(self, grid: tuple[int, int], tokens: int) -> Tensor:
        return self.raster(*grid)

    def bias(self, places: Tensor) -> Tensor:
        down, right = (places[..., None, :, :] - places[..., :, None, :] + 31).unbind(-1)
        return self.down[down] + self.right[right]

    def forward(
        self, x: Tensor, positions: Tensor | None, grid: tuple[int, int] | None, padding: Tensor | None
    ) -> Tensor:
        tokens = x.size(1)
        if positions is None and grid is None:
            real = torch.ones(x.shape[:2]).bool() if padding is None else padding
            line = (real.cumsum(-1) - 1).clamp(min=0)
            positions = torch.stack((torch.zeros_like(line), line), -1)
        elif positions is None:
            positions = self.places(grid or (1, tokens), tokens)[None]
        for place in (int(positions.min()), int(positions.max())):
            if not 0 <= place < 32:
                raise ValueError(f"rows and columns must be within 0..31, got {place}")
        front = tokens - positions.size(1)
        query, key, value = self.project(x).chunk(3, -1)
        scores = query @ key.mT / 32**0.5
        scores = scores + nn.functional.pad(self.bias(positions), (front, 0, front, 0))
        if padding is not None:
            scores = scores.masked_fill(~padding[:, None], -torch.inf)
        weights = scores.softmax(-1)
        return weights.nan_to_num(0.0) @ value


class SquaresAlone(Patches):
    def raster(self, height: int, width: int) -> Tensor:
        return torch.stack([torch.arange(height * width) // height, torch.arange(height * width) % height], -1)


class RowsNeverAdded(Patches):
    def bias(self, places: Tensor) -> Tensor:
        return super().bias(torch.stack((torch.zeros_like(places[..., 0]), places[..., 1]), -1))


def seen(made: Any, x: Tensor, grid: Any = None, padding: Tensor | None = None) -> Tensor:
    return made(x, None, grid, padding)


def seen_or_told(made: Any, x: Tensor, positions: Tensor | None = None, grid: Any = None) -> Tensor:
    return made(x, positions, grid, None)


def axial(build: Any) -> Rotary:
    return Rotary(build=build, call=turn, axes=2, relative=True)


def sections(build: Any) -> Rotary:
    return Rotary(build=build, call=turn, axes=3, relative=True, causal=True, flat={})


def reader(build: Any) -> Layer:
    return Layer(build=build, call=read, axes=3, relative=True, causal=True, flat={})


def patches(build: Any, registers: int = 0) -> Layer:
    return Layer(build=build, call=seen, relative=True, registers=registers, max_grid=(32, 32))


def told(build: Any) -> Layer:
    return Layer(build=build, call=seen_or_told, axes=2, relative=True, max_positions=32)


CORRECT = (axial(Axial), reader(Reader), patches(Patches, registers=2), told(Patches))
MUTANTS = (
    Mutant("the row is never looked at", axial(ColumnsAlone), caught_by=20, pain=12),
    Mutant("rows that are not relative", axial(RowsInPowers), caught_by=20, pain=12),
    Mutant("text alone is no RoPE", sections(SectionsThatStartAnew), caught_by=20, pain=13),
    Mutant("cache slots taken for positions", reader(SlotsTakenForPositions), caught_by=20, pain=13),
    Mutant("squares alone", patches(SquaresAlone), caught_by=20, pain=12),
    Mutant("the row offset is never added", patches(RowsNeverAdded), caught_by=20, pain=12),
)
