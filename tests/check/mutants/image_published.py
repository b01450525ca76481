"""Schemes of images that are as published, and that are so but for one thing: nothing but the published one tells."""

import math
from typing import Any

import torch
from torch import Tensor, nn

import posenc
from posenc.tools.check import Layer, Rotary
from tests.check.mutants import Mutant
from tests.check.mutants.image_rotary import Mixed, Video
from tests.check.mutants.image_tables import Masked, add
from tests.check.mutants.image_windows import Cosines, Whole, look
from tests.check.mutants.phase import Turn, turn


class StrideOfTheHeight(Whole):
    """2·Wh - 1 for 2·Ww - 1: differences that are not the same share an entry."""

    def number(self, down: Tensor, right: Tensor) -> Tensor:
        height, width = self.window
        return (down + height - 1) * (2 * height - 1) + right + width - 1


class ColumnsFirst(Whole):
    """The table is that of columns and rows."""

    def number(self, down: Tensor, right: Tensor) -> Tensor:
        height, width = self.window
        return (right + width - 1) * (2 * height - 1) + down + height - 1


class KeyLessQuery(Whole):
    def number(self, down: Tensor, right: Tensor) -> Tensor:
        return super().number(-down, -right)


class BiasScaled(Whole):
    """The bias is divided by the root as the product is."""

    def bias(self, grid: tuple[int, int]) -> Tensor:
        return super().bias(grid) / 8**0.5


class SizesOfTheOtherSide(Cosines):
    """Rows are counted in the width, columns in the height."""

    def coordinates(self, places: Tensor) -> Tensor:
        most = torch.tensor([side - 1 for side in self.window[::-1]], dtype=torch.float64)
        away = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) / most * 8
        return away.sign() * torch.log2(away.abs() + 1) / math.log2(8)


class NaturalLogarithms(Cosines):
    """ln without the division by log2 8."""

    def coordinates(self, places: Tensor) -> Tensor:
        return super().coordinates(places) * math.log(8)


class NoSixteen(Cosines):
    def bias(self, grid: tuple[int, int]) -> Tensor:
        return super().bias(grid) / 16


class ByThisGrid(Cosines):
    """Differences are counted in this image's sides, not in those of the window."""

    def coordinates(self, places: Tensor) -> Tensor:
        most = places.amax(1).clamp(min=1).double()
        away = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) / most * 8
        return away.sign() * torch.log2(away.abs() + 1) / math.log2(8)


class Eva(Turn):
    """Rotary by rows and then by columns, each with the frequencies of half of the channels; neighbours are pairs."""

    order = (0, 1)

    def __init__(self, base: float = 10_000.0) -> None:
        super().__init__(base=base, layout="interleaved")

    def theta(self) -> Tensor:
        return super().theta()[::2]

    def phases(self, positions: Tensor, x: Tensor) -> Tensor:
        return torch.cat([positions[..., axis, None].double() * self.theta() for axis in self.order], -1)


class ColumnsBeforeRows(Eva):
    order = (1, 0)


class FrequenciesOfTheWholeHead(Eva):
    """Half of the frequencies of the whole head, the fast ones, for each axis."""

    def theta(self) -> Tensor:
        return Turn.theta(self)[:4]


class AxesInTurns(Eva):
    """Pairs go by row and column in turns."""

    def phases(self, positions: Tensor, x: Tensor) -> Tensor:
        return (positions[..., None, :].double() * self.theta()[:, None]).flatten(-2)


class RatesOfTheOtherAxis(Mixed):
    def phase(self, positions: Tensor) -> Tensor:
        return super().phase(positions.flip(-1))


class RatesOfTheFirstHead(Mixed):
    """All heads turn by the rates of the first."""

    def phase(self, positions: Tensor) -> Tensor:
        return super().phase(positions)[:, :1]


class Sections(Turn):
    """Qwen2-VL: the first two pairs go by time, three by the row, three by the column."""

    dealt = (0, 0, 1, 1, 1, 2, 2, 2)

    def phases(self, positions: Tensor, x: Tensor) -> Tensor:
        return positions[..., list(self.dealt)].double() * self.theta()


class SectionsWidthFirst(Sections):
    """The order is time, column, row."""

    dealt = (0, 0, 2, 2, 2, 1, 1, 1)


class SectionsCumulated(Sections):
    """Sections are taken for their ends: 2, 3, 3 gives pairs up to 2, up to 3, and the rest."""

    dealt = (0, 0, 1, 2, 2, 2, 2, 2)


class SectionsInTurns(Sections):
    """As in Qwen3-VL."""

    dealt = (0, 1, 2, 0, 1, 2, 1, 2)


class SharedFrequencies(Video):
    """The frequencies of the whole head are split among the axes, instead of each having its own."""

    def phases(self, positions: Tensor, x: Tensor) -> Tensor:
        return positions[..., [0, 0, 0, 0, 1, 1, 2, 2]].double() * self.theta()


class SizesBeforeFrames(Video):
    """The row has the frame's share, as if positions came in another order."""

    def axes(self, positions: Tensor) -> list[Tensor]:
        frame, row, column = positions.unbind(-1)
        return [row, column, frame]


class FramesOfARaster(Video):
    """The number of the patch among all, in frames of 5 × 7, for the frame."""

    def axes(self, positions: Tensor) -> list[Tensor]:
        frame, row, column = positions.unbind(-1)
        return [frame * 35 + row * 7 + column, row, column]


class FramesSlowed(Video):
    """Frames are counted in seconds of four."""

    def axes(self, positions: Tensor) -> list[Tensor]:
        frame, row, column = positions.unbind(-1)
        return [frame / 4, row, column]


class MaskedRowsFirst(Masked):
    """MAE's sines with the row first, as MoCo v3 has them."""

    def code(self, grid: tuple[int, int]) -> Tensor:
        column, row = self.mesh(grid)
        return torch.cat((self.wave(row), self.wave(column)), -1)


class OfTheWholeWidth(MaskedRowsFirst):
    """omega = arange(dim / 4) / (dim / 2): it is divided once too often by 2."""

    def wave(self, place: Tensor) -> Tensor:
        omega = 10_000.0 ** -(torch.arange(8, dtype=torch.float64) / 16)
        return torch.cat(((place[:, None] * omega).sin(), (place[:, None] * omega).cos()), -1)


class CosinesFirst(MaskedRowsFirst):
    def wave(self, place: Tensor) -> Tensor:
        return super().wave(place).roll(8, -1)


class CountedFromOne(MaskedRowsFirst):
    """Rows and columns begin at 1, as a cumulated mask has it."""

    def mesh(self, grid: tuple[int, int]) -> Tensor:
        return super().mesh(grid) + 1


def table_of(made: Whole, scheme: Any) -> None:
    scheme.weight.data.copy_(made.table)


def network_of(made: Cosines, scheme: Any) -> None:
    scheme.tau.data.copy_(made.tau)
    scheme.inner.load_state_dict(made.inner.state_dict())
    scheme.outer.load_state_dict(made.outer.state_dict())


def rates_of(made: Mixed, scheme: Any) -> None:
    scheme.frequencies.data.copy_(made.rates)


def swin(build: Any) -> Layer:
    like = posenc.Swin((5, 7), 4)
    return Layer(build=build, call=look, relative=True, max_grid=(5, 7), like=like, match=table_of)


def swin_v2(build: Any) -> Layer:
    like = posenc.SwinV2((5, 7), 4, hidden=16)
    return Layer(build=build, call=look, relative=True, max_grid=(5, 7), like=like, match=network_of)


def rotary(build: Any, like: nn.Module, axes: int, layout: str = "interleaved") -> Rotary:
    return Rotary(build=build, call=turn, axes=axes, relative=True, layout=layout, like=like)


def axial(build: Any) -> Rotary:
    return rotary(build, posenc.AxialRoPE(16, "eva", extent=(5, 7)), 2)


def mixed(build: Any) -> Rotary:
    return Rotary(
        build=build,
        call=turn,
        axes=2,
        relative=True,
        layout="interleaved",
        like=posenc.MixedRoPE(16, 3),
        match=rates_of,
    )


def sections(build: Any) -> Rotary:
    return rotary(build, posenc.MRoPE(16, (2, 3, 3)), 3, "half")


def video(build: Any) -> Rotary:
    return rotary(build, posenc.RoPE3D(16, (8, 4, 4)), 3)


def sines(build: Any) -> Layer:
    like = posenc.Sinusoidal(32, layout="concatenated", axes=2)
    return Layer(build=build, call=add, options={"front": 1}, registers=1, like=like)


CORRECT = (
    swin(Whole),
    swin_v2(Cosines),
    axial(Eva),
    mixed(Mixed),
    sections(Sections),
    video(Video),
    sines(MaskedRowsFirst),
)
MUTANTS = (
    Mutant("the stride of the height", swin(StrideOfTheHeight), caught_by=21, pain=12),
    Mutant("a window's table by columns", swin(ColumnsFirst), caught_by=21, pain=12),
    Mutant("differences of the other sign", swin(KeyLessQuery), caught_by=21, pain=12),
    Mutant("a window's bias scaled", swin(BiasScaled), caught_by=21, pain=12),
    Mutant("logarithms by the other side", swin_v2(SizesOfTheOtherSide), caught_by=21, pain=12),
    Mutant("logarithms by this grid's sides", swin_v2(ByThisGrid), caught_by=21, pain=12),
    Mutant("natural logarithms", swin_v2(NaturalLogarithms), caught_by=21, pain=12),
    Mutant("a bias without its 16", swin_v2(NoSixteen), caught_by=21, pain=12),
    Mutant("columns before rows", axial(ColumnsBeforeRows), caught_by=21, pain=12),
    Mutant("the fast half of frequencies for each axis", axial(FrequenciesOfTheWholeHead), caught_by=21, pain=7),
    Mutant("axes in turns", axial(AxesInTurns), caught_by=21, pain=8),
    Mutant("rates of the other axis", mixed(RatesOfTheOtherAxis), caught_by=21, pain=12),
    Mutant("rates of the first head", mixed(RatesOfTheFirstHead), caught_by=21, pain=12),
    Mutant("sections of time, column, row", sections(SectionsWidthFirst), caught_by=21, pain=13),
    Mutant("sections taken for their ends", sections(SectionsCumulated), caught_by=21, pain=13),
    Mutant("sections in turns", sections(SectionsInTurns), caught_by=21, pain=13),
    Mutant("frequencies split among axes", video(SharedFrequencies), caught_by=21, pain=7),
    Mutant("rows with the frames' share", video(SizesBeforeFrames), caught_by=21, pain=13),
    Mutant("frames by the raster of all", video(FramesOfARaster), caught_by=21, pain=13),
    Mutant("frames slowed", video(FramesSlowed), caught_by=21, pain=13),
    Mutant("MAE's columns first, said to be rows", sines(Masked), caught_by=21, pain=12),
    Mutant("frequencies divided once too often", sines(OfTheWholeWidth), caught_by=21, pain=7),
    Mutant("cosines first", sines(CosinesFirst), caught_by=21, pain=8),
    Mutant("rows and columns from 1", sines(CountedFromOne), caught_by=21, pain=12),
)
