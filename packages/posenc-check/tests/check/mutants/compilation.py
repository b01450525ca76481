"""A layer that compiles and is exported, and what breaks, repeats or fixes its graph."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_check import Layer
from tests.check.mutants import Mutant

WIDTH, PARTS = 32, 2


class Attending(nn.Module):
    """Causal attention whose queries and keys are rotated, in real numbers, at any length."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        pairs = torch.arange(0, x.size(-1), 2, device=x.device) / x.size(-1)
        angle = positions[:, None, :, None] * 500.0**-pairs
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        left, right = x.chunk(2, -1)
        return torch.cat((left * cos - right * sin, left * sin + right * cos), -1)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        query, key, value = self.project(x).view(rows, tokens, 3, PARTS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        query, key = self.rotated(query, positions), self.rotated(key, positions)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Complex(Attending):
    """Pairs as complex numbers."""

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        pairs = torch.arange(0, x.size(-1), 2, device=x.device) / x.size(-1)
        angle = (positions[:, None, :, None] * 500.0**-pairs).to(x.dtype)
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
            torch.ones_like(angle), angle
        )
        return torch.view_as_real(turned).flatten(-2)


class ByLength(Attending):
    """The positions of every length, kept by the length: a graph of its own for each."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = {tokens: [float(n) for n in range(tokens)] for tokens in range(1, 64)}

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        if x.size(2) in self.kept:
            positions = positions * 0 + torch.tensor(self.kept[x.size(2)], device=x.device)
        return super().rotated(x, positions)


def attended(made: Any, x: Tensor, positions: Tensor) -> Tensor:
    return made(x, positions)


def layer(build: type[Attending], **claims: bool) -> Layer:
    return Layer(build=build, call=attended, causal=True, relative=True, **claims)


CORRECT = (layer(Attending, compiles=True, exports=True),)
MUTANTS = (
    Mutant("complex numbers", layer(Complex, compiles=True), caught_by=18, pain=15),
    Mutant("complex numbers, exported", layer(Complex, exports=True), caught_by=18, pain=15),
    Mutant("a graph for every length", layer(ByLength, compiles=True), caught_by=18, pain=10),
)
