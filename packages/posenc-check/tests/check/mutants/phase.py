"""Phases and distances in low precision. The correct twins of rotations and slopes stand with other checks."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_check import Bias, Model, Rotary
from tests.check.mutants import Mutant


class Turn(nn.Module):
    """RoPE as it should be: phases from integer positions in float64, cast last."""

    def __init__(
        self,
        head_dim: int = 16,
        base: float = 10_000.0,
        layout: str = "half",
        rotary_dim: int | None = None,
        factor: float = 1.0,
        lengthening: float = 1.0,
    ) -> None:
        super().__init__()
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        if head_dim % 2 or self.rotary_dim % 2 or not 0 < self.rotary_dim <= head_dim:
            raise ValueError(f"head_dim and rotary_dim must be even, rotary_dim at most {head_dim}: got {rotary_dim}")
        self.base, self.layout, self.factor, self.lengthening = base, layout, factor, lengthening

    def theta(self) -> Tensor:
        return self.base ** (-torch.arange(0, self.rotary_dim, 2, dtype=torch.float64) / self.rotary_dim) / self.factor

    def phases(self, positions: Tensor, x: Tensor) -> Tensor:
        return positions[..., None].double() * self.theta()

    def pairs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.layout == "half":
            first, second = x.chunk(2, -1)
            return first, second
        return x[..., 0::2], x[..., 1::2]

    def joined(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.stack((first, second), -2 if self.layout == "half" else -1).flatten(-2)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        phase = self.phases(positions, x)[:, None]
        cos, sin = (self.lengthening * wave.to(x.dtype) for wave in (phase.cos(), phase.sin()))
        first, second = self.pairs(x[..., : self.rotary_dim])
        turned = self.joined(first * cos - second * sin, second * cos + first * sin)
        return torch.cat((turned, x[..., self.rotary_dim :]), -1)


class PositionsInTheDtypeOfX(Turn):
    def phases(self, positions: Tensor, x: Tensor) -> Tensor:
        return positions[..., None].to(x.dtype) * self.theta().to(x.dtype)


class FrequenciesInABuffer(Turn):
    """In a buffer that is not saved: garbage after to_empty."""

    def __init__(self) -> None:
        super().__init__(base=500.0)
        self.register_buffer("table", super().theta(), persistent=False)

    def theta(self) -> Tensor:
        return self.table


def turn(made: Any, x: Tensor, positions: Tensor) -> Tensor:
    return made(x, positions)


class Slopes(nn.Module):
    """ALiBi for four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor([2.0 ** (-2 * h) for h in range(1, 5)]))

    def distances(self, query: Tensor, key: Tensor) -> Tensor:
        return (query[:, :, None] - key[:, None, :]).abs()

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return -self.slopes[:, None, None] * self.distances(query, key)[:, None]


class PositionsInTheDtypeOfTheSlopes(Slopes):
    def distances(self, query: Tensor, key: Tensor) -> Tensor:
        return (query[:, :, None].to(self.slopes.dtype) - key[:, None, :].to(self.slopes.dtype)).abs()


def bias(made: Any, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return made(query_positions, key_positions)


class Text(nn.Module):
    """A sinusoid added to the embedding, which finds its positions itself, and one block without any."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(48, 32), nn.Linear(32, 32)

    def places(self, tokens: int) -> Tensor:
        return torch.arange(tokens, dtype=torch.float64)

    def forward(self, ids: Tensor) -> Tensor:
        theta = 10_000.0 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)
        phase = self.places(ids.size(1))[:, None].double() * theta
        x = self.embedding(ids)
        x = x + torch.cat((phase.sin(), phase.cos()), -1).to(x.dtype)
        return self.out(F.scaled_dot_product_attention(x, x, x, is_causal=True))


class PlacesInTheDtypeOfTheWeights(Text):
    def places(self, tokens: int) -> Tensor:
        return torch.arange(tokens, dtype=self.out.weight.dtype)


def text(made: Any, ids: Tensor) -> Tensor:
    return made(ids)


def rotary(build: Any, **claims: Any) -> Rotary:
    options = {"base": 500.0}
    return Rotary(build=build, call=turn, options=options, relative=True, causal=True, **{"base": 500.0, **claims})


def biased(build: Any) -> Bias:
    return Bias(build=build, call=bias, heads=4 if issubclass(build, Slopes) else 3, relative=True)


CORRECT = (Model(build=Text, call=text, causal=True),)
MUTANTS = (
    Mutant("positions in the dtype of x", rotary(PositionsInTheDtypeOfX), caught_by=1, pain=1),
    Mutant("positions in the dtype of the slopes", biased(PositionsInTheDtypeOfTheSlopes), caught_by=1, pain=1),
    Mutant("rotations collide in bfloat16", rotary(PositionsInTheDtypeOfX), caught_by=2, pain=1),
    Mutant("a bias that bfloat16 holds no more", replace(biased(Slopes), distinct_to=4096), caught_by=2, pain=1),
    Mutant("frequencies in a buffer that is not saved", Rotary(build=FrequenciesInABuffer, call=turn), 3, 2),
    Mutant(
        "a model that counts in the dtype of its weights",
        Model(build=PlacesInTheDtypeOfTheWeights, call=text, causal=True),
        caught_by=1,
        pain=1,
    ),
)
