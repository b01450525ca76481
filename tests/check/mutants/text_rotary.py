"""Rotations as people write them: Llama's cos and sin, GPT-J's table, NeoX's share of the channels, Meta's complex."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check import Rotary
from tests.check.mutants import Mutant

# rows of the tables


def rates(dim: int, base: float) -> Tensor:
    """base^(-2c/dim), in float32 as they all do."""
    return 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Llama(nn.Module):
    """cos and sin of the positions it is given, each half alike."""

    def __init__(self, head_dim: int = 16, base: float = 10_000.0) -> None:
        super().__init__()
        self.head_dim, self.base = head_dim, base

    def inv_freq(self) -> Tensor:
        return rates(self.head_dim, self.base)

    def waves(self, position_ids: Tensor) -> Tensor:
        freqs = position_ids[..., None].float() * self.inv_freq()
        return torch.cat((freqs, freqs), -1)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        waves = self.waves(position_ids)
        return waves.cos().to(x.dtype), waves.sin().to(x.dtype)

    rotate = staticmethod(rotate_half)

    def turn(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return query * cos + self.rotate(query) * sin, key * cos + self.rotate(key) * sin


def llama(made: Llama, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    return made.turn(query, key, *made(query, positions))


class NeoX(Llama):
    """The first quarter of the channels, in halves."""

    def __init__(self, head_dim: int = 16, rotary_pct: float = 0.5, base: float = 10_000.0) -> None:
        super().__init__(head_dim, base)
        self.rotary_ndims = int(head_dim * rotary_pct)

    def inv_freq(self) -> Tensor:
        return rates(self.rotary_ndims, self.base)

    def turn(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        end = self.rotary_ndims
        turned = super().turn(query[..., :end], key[..., :end], cos, sin)
        return torch.cat((turned[0], query[..., end:]), -1), torch.cat((turned[1], key[..., end:]), -1)


# -- the schemes that they are ----------------------------------------------------------------------------------------


def rope() -> Any:
    import posenc

    return posenc.RoPE(16)


def rope_of_a_long_text() -> Any:
    import posenc

    return posenc.RoPE(16, base=500_000.0)


def rope_of_a_share() -> Any:
    import posenc

    return posenc.RoPE(16, rotary_dim=8)


# -- bugs -------------------------------------------------------------------------------------------------------------


class OneAhead(Llama):
    """Queries stand one place after themselves: the new token is counted twice."""

    def turn(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        one = self(query, torch.ones(1, 1).long())
        return super().turn(super().turn(query, query, *one)[0], key, cos, sin)


class ShareOverTheHead(NeoX):
    """head_dim in the exponent, though half of it turns."""

    def inv_freq(self) -> Tensor:
        return rates(self.head_dim, self.base)[: self.rotary_ndims // 2]


def of_llama(build: Any = Llama, **claims: Any) -> Rotary:
    said = {"relative": True, "causal": True, "base": 10_000.0, "layout": "half", "direction": "forward", "like": rope}
    return Rotary(**{"build": build, "call": llama, **said, **claims})


def of_neox(build: Any = NeoX) -> Rotary:
    return of_llama(build, rotary_dim=8, like=rope_of_a_share, options={"rotary_pct": 0.5})


LONG = {"options": {"base": 500_000.0}, "base": 500_000.0, "like": rope_of_a_long_text}

CORRECT = (of_llama(), of_llama(**LONG), of_neox())
MUTANTS = (
    Mutant("Llama, queries one place ahead", of_llama(OneAhead), 14, 5),
    Mutant("NeoX, head_dim in the exponent of a share", of_neox(ShareOverTheHead), 14, 8),
)
