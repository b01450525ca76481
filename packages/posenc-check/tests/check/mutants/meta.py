"""Rotations that do not survive being built without memory."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc_check import Rotary
from tests.check.mutants import Mutant


class Turning(nn.Module):
    """Rotates the pairs of channels (c, c + d/2), each by an angle that is learned on top of its frequency."""

    def __init__(self, head_dim: int = 16, base: float = 500.0) -> None:
        super().__init__()
        self.head_dim, self.base = head_dim, base
        self.drift = nn.Parameter(torch.empty(head_dim // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.drift, std=0.1)

    def frequencies(self, x: Tensor) -> Tensor:
        return self.base ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=x.device) / self.head_dim)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        angle = positions[:, None, :, None] * (self.frequencies(x) + self.drift.double())
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        left, right = x.chunk(2, -1)
        return torch.cat((left * cos - right * sin, left * sin + right * cos), -1)


class InABuffer(Turning):
    """Frequencies in a buffer that is not saved: garbage after to_empty."""

    def __init__(self, head_dim: int = 16, base: float = 500.0) -> None:
        super().__init__(head_dim, base)
        self.register_buffer("table", super().frequencies(self.drift), persistent=False)

    def frequencies(self, x: Tensor) -> Tensor:
        return self.table


def turn(made: Any, x: Tensor, positions: Tensor) -> Tensor:
    return made(x, positions)


CORRECT = (Rotary(build=Turning, call=turn, relative=True),)
MUTANTS = tuple(
    Mutant(f"frequencies {how}", Rotary(build=build, call=turn, relative=True), caught_by=3, pain=2)
    for how, build in (("in a buffer that is not saved", InABuffer),)
)
