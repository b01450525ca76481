"""Rotations of which one call changes the next."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc_check import Rotary
from tests.check.mutants import Mutant

HEAD_DIM = 16


def phases_of(positions: Tensor, base: float) -> Tensor:
    """(…, pairs) of float64"""
    pairs = torch.arange(0, HEAD_DIM, 2, dtype=torch.float64, device=positions.device)
    return positions[..., None] * base ** (-pairs / HEAD_DIM)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The pairs of channels (2c, 2c + 1)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class Rotating(nn.Module):
    """cos and sin are made at every call, and forgotten."""

    def __init__(self, base: float = 300.0) -> None:
        super().__init__()
        self.base = base

    def tables(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angle = phases_of(positions, self.base)[:, None]
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotated(x, *self.tables(x, positions))


class Growing(Rotating):
    """Tables that grow to the longest row so far, in the dtype of whoever made them grow."""

    kept: tuple[Tensor, Tensor] | None = None

    def tables(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        longest = int(positions.max()) + 1
        if self.kept is None or self.kept[0].size(2) < longest:
            self.kept = super().tables(x, torch.arange(longest)[None])
        cos, sin = self.kept
        return cos[0, 0, positions][:, None], sin[0, 0, positions][:, None]


class InPlace(Rotating):
    """Writes the result into what it was given."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x.copy_(super().forward(x.clone(), positions))
        return x


class Stretched(Rotating):
    """A base that follows the longest row seen so far, and stays there."""

    seen = 8

    def tables(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        self.seen = max(self.seen, positions.size(1))
        angle = phases_of(positions, self.base * self.seen / 8)[:, None]
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


class Everywhere(Rotating):
    """One table for all, by the length alone: the base is that of whoever came last with a longer row."""

    table: list[Tensor] = []  # noqa: RUF012

    def tables(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        longest = int(positions.max()) + 1
        if not self.table or len(self.table[0]) < longest:
            self.table[:] = [phases_of(torch.arange(longest), self.base)]
        angle = self.table[0][positions][:, None]
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def rotate(made: Any, x: Tensor, positions: Tensor) -> Tensor:
    return made(x, positions)


def mutant(name: str, build: type[Rotating], pain: int) -> Mutant:
    return Mutant(name, Rotary(build=build, call=rotate, relative=True, varied={"base": 20.0}), caught_by=5, pain=pain)


CORRECT = (Rotary(build=Rotating, call=rotate, relative=True, base=300.0, layout="interleaved", varied={"base": 20.0}),)
MUTANTS = (
    mutant("tables that grow in the dtype of the caller", Growing, 1),
    mutant("a rotation in place", InPlace, 15),
    mutant("a base that remembers the longest row", Stretched, 6),
    mutant("one table for all bases", Everywhere, 5),
)
