"""Rotations by rows and columns, in layers with registers; by time, row and column, with a cache; learned rates."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check import Layer, Rotary
from tests.check.mutants import Mutant
from tests.check.mutants.phase import Turn, turn

HEADS = 4
Grid = tuple[int, int]


def waves(phase: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of phases (rows, tokens, pairs) for pairs of neighbours, (rows, 1, tokens, channels)."""
    phase = phase.repeat_interleave(2, -1)[:, None]
    return phase.cos().to(x.dtype), phase.sin().to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Channels 2c and 2c + 1 are a pair."""
    across = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    return x * cos + across * sin


class Eva(nn.Module):
    """EVA: attention whose queries and keys are turned by row and column, those of the class token and of registers
    not. What is no grid is one row."""

    def __init__(self, front: int = 0) -> None:
        super().__init__()
        self.front = front
        self.qkv, self.proj = nn.Linear(32, 96), nn.Linear(32, 32)
        nn.init.normal_(self.qkv.weight, std=0.3)

    def places(self, grid: Grid) -> tuple[Tensor, Tensor]:
        place = torch.arange(grid[0] * grid[1])
        return place // grid[1], place % grid[1]

    def theta(self) -> Tensor:
        return 100.0 ** -(torch.arange(2, dtype=torch.float64) / 2)

    def phase(self, grid: Grid) -> Tensor:
        """(patches, 4)"""
        return torch.cat([place[:, None] * self.theta() for place in self.places(grid)], -1)

    def turned(self, x: Tensor, grid: Grid) -> Tensor:
        front = x.size(2) - grid[0] * grid[1]
        return torch.cat((x[:, :, :front], rotated(x[:, :, front:], *waves(self.phase(grid)[None], x))), 2)

    def turned_key(self, x: Tensor, grid: Grid) -> Tensor:
        return self.turned(x, grid)

    def forward(self, x: Tensor, grid: Grid | None) -> Tensor:
        grid = (1, x.size(1) - min(self.front, x.size(1) - 1)) if grid is None else grid
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = self.turned(query, grid) @ self.turned_key(key, grid).mT / 8**0.5
        return self.proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


def look(made: Any, x: Tensor, grid: Any = None) -> Tensor:
    return made(x, grid)


class ByRaster(Eva):
    """RoPE for text, over the raster."""

    def places(self, grid: Grid) -> tuple[Tensor, Tensor]:
        place = torch.arange(grid[0] * grid[1])
        return place, place


class DividedByRows(Eva):
    """The number in the raster is divided by the height."""

    def places(self, grid: Grid) -> tuple[Tensor, Tensor]:
        place = torch.arange(grid[0] * grid[1])
        return place // grid[0], place % grid[0]


class DividedByBoth(Eva):
    """RoPE-Mixed's init_t_xy with the row divided by the height and the column by the width."""

    def places(self, grid: Grid) -> tuple[Tensor, Tensor]:
        place = torch.arange(grid[0] * grid[1])
        return place // grid[0], place % grid[1]


class RegistersTurned(Eva):
    """The class token is turned as the first patch is, and the last patches are not."""

    def turned(self, x: Tensor, grid: Grid) -> Tensor:
        patches = grid[0] * grid[1]
        return torch.cat((rotated(x[:, :, :patches], *waves(self.phase(grid)[None], x)), x[:, :, patches:]), 2)


class CountedOn(Eva):
    """Registers stand in the raster before the patches."""

    def turned(self, x: Tensor, grid: Grid) -> Tensor:
        rows = -(-x.size(2) // grid[1])
        return rotated(x, *waves(self.phase((rows, grid[1]))[None, : x.size(2)], x))


class QueriesAlone(Eva):
    """Keys are not turned."""

    def turned_key(self, x: Tensor, grid: Grid) -> Tensor:
        return x


class Mixed(nn.Module):
    """RoPE-Mixed: every pair of every head has rates of its own for the column and for the row."""

    def __init__(self, heads: int = 3) -> None:
        super().__init__()
        rates = 10.0 ** -(torch.arange(8) / 8)
        angle = torch.rand(heads, 1) * 2 * torch.pi
        self.rates = nn.Parameter(torch.stack((rates * angle.cos(), rates * angle.sin())))

    def phase(self, positions: Tensor) -> Tensor:
        """(rows, heads, tokens, pairs)"""
        row, column = positions[:, None, :, :, None].double().unbind(-2)
        across, down = self.rates.double()[:, :, None]
        return column * across + row * down

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        phase = self.phase(positions).repeat_interleave(2, -1)
        return rotated(x, phase.cos().to(x.dtype), phase.sin().to(x.dtype))


class ProductsOfWaves(Mixed):
    """Multiplies the waves of both axes instead of adding their phases."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        none = torch.zeros_like(positions[..., 0])
        across = self.phase(torch.stack((none, positions[..., 1]), -1)).repeat_interleave(2, -1)
        down = self.phase(torch.stack((positions[..., 0], none), -1)).repeat_interleave(2, -1)
        cos, sin = across.cos() * down.cos(), across.sin() * down.sin()
        return rotated(x, cos.to(x.dtype), sin.to(x.dtype))


class Video(Turn):
    """Wan: of eight pairs, four go by the frame, two by the row, two by the column, each with frequencies of its own;
    neighbours are pairs."""

    def __init__(self) -> None:
        super().__init__(layout="interleaved")

    def axes(self, positions: Tensor) -> list[Tensor]:
        return list(positions.unbind(-1))

    def phases(self, positions: Tensor, x: Tensor) -> Tensor:
        shares = [10_000.0 ** -(torch.arange(n, dtype=torch.float64) / n) for n in (4, 2, 2)]
        axes = zip(self.axes(positions), shares, strict=True)
        return torch.cat([axis[..., None].double() * theta for axis, theta in axes], -1)


class FramesNeverLookedAt(Video):
    """An image model, frame by frame."""

    def axes(self, positions: Tensor) -> list[Tensor]:
        _, row, column = positions.unbind(-1)
        return [row, row, column]


class Reader(nn.Module):
    """Qwen2-VL: causal attention with M-RoPE, heads of keys shared by two of queries, and a cache of turned keys.

    A token that nobody tells where it is follows the highest position so far, on all axes."""

    sections = (2, 1, 1)

    def __init__(self) -> None:
        super().__init__()
        self.query, self.rest, self.out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        nn.init.normal_(self.query.weight, std=0.3)

    def following(self, x: Tensor, cache: Any) -> Tensor:
        new = torch.arange(x.size(1)).expand(x.shape[:2])
        if cache is not None:
            new = new + cache[2].flatten(1).amax(1)[:, None] + 1
        return new[..., None].expand(-1, -1, 3)

    def places(self, told: Tensor | None, x: Tensor, cache: Any) -> Tensor:
        if told is None:
            return self.following(x, cache)
        return told if told.dim() == 3 else told[..., None].expand(-1, -1, 3)

    def wave(self, phase: Tensor) -> Tensor:
        """Phases of each axis (3, rows, 1, tokens, channels) to those of the axis of each channel."""
        parts = phase.split(self.sections * 2, -1)
        return torch.cat([part[n % 3] for n, part in enumerate(parts)], -1)

    def turned(self, x: Tensor, places: Tensor) -> Tensor:
        theta = 1000.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
        phase = places.movedim(-1, 0)[:, :, None, :, None].double() * theta
        phase = self.wave(torch.cat((phase, phase), -1))
        across = torch.cat((-x[..., 4:], x[..., :4]), -1)
        return x * phase.cos().to(x.dtype) + across * phase.sin().to(x.dtype)

    def forward(self, x: Tensor, told: Tensor | None, cache: Any) -> tuple[Tensor, Any]:
        places, before = self.places(told, x, cache), 0 if cache is None else cache[0].size(2)
        query = self.query(x).unflatten(-1, (HEADS, 8)).transpose(1, 2)
        key, value = self.rest(x).unflatten(-1, (2, HEADS // 2, 8)).permute(2, 0, 3, 1, 4)
        kept = [self.turned(key, places), value, places]
        if cache is not None:
            kept = [torch.cat(both, dim) for both, dim in zip(zip(cache, kept, strict=True), (2, 2, 1), strict=True)]
        key, value = (part.repeat_interleave(2, 1) for part in kept[:2])
        seen = torch.ones(x.size(1), key.size(2)).tril(before).bool()
        scores = (self.turned(query, places) @ key.mT / 8**0.5).masked_fill(~seen, -torch.inf)
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2)), kept


def read(made: Any, x: Tensor, positions: Tensor | None = None, cache: Any = None) -> Any:
    return made(x, positions, cache)


class SectionsNotDoubled(Reader):
    """Channels are dealt by the sections of pairs, so that the two of a pair go by different axes."""

    def wave(self, phase: Tensor) -> Tensor:
        parts = phase.split([2 * n for n in self.sections], -1)
        return torch.cat([part[n] for n, part in enumerate(parts)], -1)


class RowNeverRead(Reader):
    """The index runs over two axes, time and row, and then time again."""

    def wave(self, phase: Tensor) -> Tensor:
        parts = phase.split(self.sections * 2, -1)
        return torch.cat([part[n % 3 % 2] for n, part in enumerate(parts)], -1)


class DecodedByTheFirstRow(Reader):
    """A token by itself stands where the first row of the batch has come to."""

    def places(self, told: Tensor | None, x: Tensor, cache: Any) -> Tensor:
        places = super().places(told, x, cache)
        return places[:1].expand_as(places) if cache is not None and x.size(1) == 1 else places


class DecodedByTime(Reader):
    """A token by itself has one position, its time's."""

    def places(self, told: Tensor | None, x: Tensor, cache: Any) -> Tensor:
        places = super().places(told, x, cache)
        return places[..., :1].expand_as(places) if cache is not None and x.size(1) == 1 else places


class DeltaForgotten(Reader):
    """A token by itself is at its slot in the cache."""

    def places(self, told: Tensor | None, x: Tensor, cache: Any) -> Tensor:
        places = super().places(told, x, cache)
        alone = cache is not None and x.size(1) == 1
        return torch.full_like(places, cache[0].size(2)) if alone else places


class OneTooFar(Reader):
    """A token by itself stands one place on, as if the prompt had ended with a token more."""

    def places(self, told: Tensor | None, x: Tensor, cache: Any) -> Tensor:
        places = super().places(told, x, cache)
        return places + 1 if cache is not None and x.size(1) == 1 else places


def layer(build: Any, registers: int = 0) -> Layer:
    options = {"front": registers}
    return Layer(build=build, call=look, options=options, relative=True, registers=registers, normalized=True)


def rotary(build: Any, axes: int = 2) -> Rotary:
    return Rotary(build=build, call=turn, axes=axes, relative=True, layout="interleaved")


def reader(build: Any) -> Layer:
    return Layer(build=build, call=read, axes=3, relative=True, causal=True, flat={}, normalized=True)


CORRECT = (layer(Eva), layer(Eva, 3), rotary(Mixed), rotary(Video, 3), reader(Reader))
MUTANTS = (
    Mutant("patches turned by the raster", layer(ByRaster), caught_by=20, pain=12),
    Mutant("the raster divided by the height", layer(DividedByRows), caught_by=20, pain=12),
    Mutant("rows by the height, columns by the width", layer(DividedByBoth), caught_by=20, pain=12),
    Mutant("the class token turned", layer(RegistersTurned, 3), caught_by=20, pain=12),
    Mutant("the raster begins with registers", layer(CountedOn, 3), caught_by=20, pain=12),
    Mutant("queries alone turned by grids", layer(QueriesAlone), caught_by=20, pain=12),
    Mutant("products of the waves of axes", rotary(ProductsOfWaves), caught_by=15, pain=8),
    Mutant("frames never looked at", rotary(FramesNeverLookedAt, 3), caught_by=20, pain=13),
    Mutant("sections not doubled", reader(SectionsNotDoubled), caught_by=20, pain=13),
    Mutant("the row never read", reader(RowNeverRead), caught_by=20, pain=13),
    Mutant("decoding where the first row is", reader(DecodedByTheFirstRow), caught_by=8, pain=13),
    Mutant("decoding by the time alone", reader(DecodedByTime), caught_by=20, pain=13),
    Mutant("the delta forgotten", reader(DeltaForgotten), caught_by=8, pain=13),
    Mutant("decoding one place on", reader(OneTooFar), caught_by=8, pain=13),
)
