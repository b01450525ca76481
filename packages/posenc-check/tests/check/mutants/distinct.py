"""Neighbours that low precision makes one and the same."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc_check import Bias, Model, Rotary
from tests.check.mutants import Mutant
from tests.check.mutants.phase import Slopes, Turn, bias, turn


class PositionsInTheDtypeOfX(Turn):
    """Above 256, bfloat16 holds every other position."""

    def phases(self, positions: Tensor, x: Tensor) -> Tensor:
        return positions.to(x.dtype).double()[..., None] * self.theta()


class Angles(nn.Module):
    """Sinusoids of positions that it is told, added to the embedding; positions are cast with ``before``."""

    def __init__(self, before: torch.dtype | None = None) -> None:
        super().__init__()
        self.embedding, self.before = nn.Embedding(48, 32), before

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        theta = 100.0 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)
        positions = positions if self.before is None else positions.to(self.before)
        phase = positions.double()[..., None] * theta
        return self.embedding(ids) + torch.cat((phase.sin(), phase.cos()), -1).to(self.embedding.weight.dtype)


def text(made: Any, ids: Tensor, positions: Tensor) -> Tensor:
    return made(ids, positions)


def rotary(build: Any) -> Rotary:
    return Rotary(build=build, call=turn, causal=True)


CORRECT = (Model(build=Angles, call=text, relative=False, distinct_to=1024),)
MUTANTS = (
    Mutant("rotations collide in bfloat16", rotary(PositionsInTheDtypeOfX), caught_by=2, pain=1),
    Mutant(
        "a bias that bfloat16 holds no more",
        Bias(build=Slopes, call=bias, heads=4, relative=True, distinct_to=4096),
        caught_by=2,
        pain=1,
    ),
    Mutant(
        "positions in float16",
        Model(build=Angles, call=text, options={"before": torch.float16}, distinct_to=4096),
        caught_by=2,
        pain=1,
    ),
)
