"""Pairs of channels that are not those of the weights."""

from typing import Any

import torch
from torch import Tensor

from posenc.tools.check import Rotary
from tests.check.mutants import Mutant
from tests.check.mutants.phase import Turn, turn


class HalfRunAsInterleaved(Turn):
    """Runs the weights of one layout in the other."""

    def pairs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[..., 0::2], x[..., 1::2]

    def joined(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.stack((first, second), -1).flatten(-2)


class LeftInHalves(Turn):
    """Takes interleaved pairs, and puts them back as halves."""

    def joined(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.cat((first, second), -1)


class TurnsAll(Turn):
    """Turns every channel, whatever rotary_dim says."""

    def __init__(self, rotary_dim: int | None = None, **options: Any) -> None:
        super().__init__(**options)


class RoundsTheRest(Turn):
    """The channels that are not turned pass through bfloat16."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        out = super().forward(x, positions)
        return torch.cat((out[..., : self.rotary_dim], out[..., self.rotary_dim :].bfloat16().to(x)), -1)


class OneSine(Turn):
    """cos and sin of unlike channels: lengths change."""

    def joined(self, first: Tensor, second: Tensor) -> Tensor:
        return super().joined(first, second.flip(-1))


def rotary(build: Any, layout: str = "half") -> Rotary:
    other = "interleaved" if layout == "half" else "half"
    return Rotary(
        build=build,
        call=turn,
        options={"layout": layout, "rotary_dim": 12},
        layout=layout,
        rotary_dim=12,
        other_layout={"layout": other},
        relative=True,
        causal=True,
    )


CORRECT = ()  # that of configuration.py makes all claims that are made here
MUTANTS = (
    Mutant("halves run as interleaved", rotary(HalfRunAsInterleaved), caught_by=15, pain=8),
    Mutant("interleaved pairs put back as halves", rotary(LeftInHalves, "interleaved"), caught_by=15, pain=8),
    Mutant("every channel is turned", rotary(TurnsAll), caught_by=15, pain=8),
    Mutant("the channels that are not turned are rounded", rotary(RoundsTheRest), caught_by=15, pain=8),
    Mutant("halves that are not of one pair", rotary(OneSine), caught_by=15, pain=8),
)
