"""Schemes of images that are as published, and that are so but for one thing: nothing but the published one tells."""

from typing import Any

from torch import Tensor, nn

import posenc
from posenc_check import Layer, Rotary
from tests.check.mutants import Mutant
from tests.check.mutants.image_windows import Whole, look
from tests.check.mutants.phase import Turn, turn


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
    return Layer(build=build, call=look, relative=True, max_grid=(5, 7), like=like, match=table_of)


def rotary(build: Any, like: nn.Module, axes: int, layout: str = "interleaved") -> Rotary:
    return Rotary(build=build, call=turn, axes=axes, relative=True, layout=layout, like=like)


def sections(build: Any) -> Rotary:
    return rotary(build, posenc.MRoPE(16, (2, 3, 3)), 3, "half")


CORRECT = (swin(Whole), sections(Sections))
MUTANTS = (
    Mutant("differences of the other sign", swin(KeyLessQuery), caught_by=21, pain=12),
    Mutant("sections of time, column, row", sections(SectionsWidthFirst), caught_by=21, pain=13),
)
