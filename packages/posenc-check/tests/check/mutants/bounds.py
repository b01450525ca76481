"""Positions past the end, slopes of other numbers of heads, and axes taken for one another."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from posenc_check import Bias, Model, Rotary
from tests.check.mutants import Mutant
from tests.check.mutants.phase import Turn, bias, turn

PLACES = 40


class Table(nn.Module):
    """A learned vector for each of 40 positions, added to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.table = nn.Embedding(48, 32), nn.Parameter(torch.randn(PLACES, 32))

    def rows(self, positions: Tensor) -> Tensor:
        for position in (int(positions.min()), int(positions.max())):
            if not 0 <= position < PLACES:
                raise ValueError(f"positions must be within 0..{PLACES - 1}, got {position}")
        return self.table[positions]

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.embedding(ids) + self.rows(positions)


class OnlyWhereItIsNotCompiled(Table):
    def rows(self, positions: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return self.table[positions.clamp(0, PLACES - 1)]
        return super().rows(positions)


def told(made: Any, ids: Tensor, positions: Tensor) -> Tensor:
    return made(ids, positions)


class TurnFromATable(Turn):
    """cos and sin of 64 positions, made in advance; the tokens of a call begin at an offset."""

    def rows(self, start: int, tokens: int) -> Tensor:
        if start < 0 or start + tokens > 64:
            raise ValueError(f"offset must be from 0, and the last token before 64, got {start} and {tokens} tokens")
        return torch.arange(64)[start : start + tokens]


class TurnFromTheEndOfATable(TurnFromATable):
    """What would run over the end is taken from before it."""

    def rows(self, start: int, tokens: int) -> Tensor:
        return super().rows(max(0, min(start, 64 - tokens)), tokens)


def turn_from(made: Any, x: Tensor, offset: int) -> Tensor:
    return made(x, made.rows(offset, x.size(2))[None])


class OddIsRoundedDown(Turn):
    def __init__(self, head_dim: int = 16, **options: Any) -> None:
        super().__init__(head_dim - head_dim % 2, **options)


class Alibi(nn.Module):
    """For any number of heads, and for both directions."""

    def __init__(self, num_heads: int = 12) -> None:
        super().__init__()
        self.num_heads = num_heads

    def exponents(self) -> list[float]:
        power = 2 ** int(math.log2(self.num_heads))
        between = [4 * h / power for h in range(1, 2 * power, 2)]
        return [8 * h / power for h in range(1, power + 1)] + between[: self.num_heads - power]

    def away(self, query: Tensor, key: Tensor) -> Tensor:
        return (query[:, :, None] - key[:, None, :]).abs()

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        slopes = torch.tensor([2.0**-e for e in self.exponents()])
        return -slopes[:, None, None] * self.away(query, key)[:, None]


class SlopesOfAPowerOfTwo(Alibi):
    def exponents(self) -> list[float]:
        return [8 * h / self.num_heads for h in range(1, self.num_heads + 1)]


def table(build: Any, **claims: Any) -> Model:
    return Model(build=build, call=told, relative=False, max_positions=PLACES, **claims)


def offset(build: Any) -> Rotary:
    return Rotary(
        build=build, call=turn_from, causal=True, relative=True, max_positions=64, base=10_000.0, layout="half"
    )


def sized(build: Any) -> Rotary:
    return Rotary(build=build, call=turn, refused=[{"head_dim": 15}, {"rotary_dim": 18}, {"rotary_dim": 5}])


def slopes(build: Any) -> Bias:
    return Bias(build=build, call=bias, heads=12, relative=True, heads_option="num_heads", distinct_to=4096)


CORRECT = (table(Table), offset(TurnFromATable), slopes(Alibi))
MUTANTS = (
    Mutant("clamped where it is compiled", table(OnlyWhereItIsNotCompiled, compiles=True), caught_by=19, pain=14),
    Mutant("an offset past the end", offset(TurnFromTheEndOfATable), caught_by=19, pain=14),
    Mutant("an odd width rounded down", sized(OddIsRoundedDown), caught_by=19, pain=18),
    Mutant("slopes of a power of two for 12 heads", slopes(SlopesOfAPowerOfTwo), caught_by=19, pain=16),
)
