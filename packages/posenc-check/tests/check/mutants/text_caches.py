"""Llama's attention with the caches people write: growing, static slots, a rolling window."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_check import Layer
from tests.check.mutants import Mutant


def rates(dim: int, base: float) -> Tensor:
    """base^(-2c/dim), in float32."""
    return 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Growing:
    """Keys and values of all tokens so far, and the index of each."""

    def __init__(self) -> None:
        self.key = self.value = self.index = None
        self.seen = 0

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        index = torch.arange(self.seen, self.seen + key.size(2))
        if self.key is not None:
            key, value = torch.cat((self.key, key), 2), torch.cat((self.value, value), 2)
            index = torch.cat((self.index, index))
        self.keep(key, value, index)
        self.seen = int(index[-1]) + 1
        return key, value, index

    def keep(self, key: Tensor, value: Tensor, index: Tensor) -> None:
        self.key, self.value, self.index = key, value, index


class Attention(nn.Module):
    """Four heads of queries, two of keys; positions follow from the mask where nobody tells them."""

    window: int | None = None
    cache: type[Growing] = Growing

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(32, 32), nn.Linear(32, 32)
        self.k_proj, self.v_proj = nn.Linear(32, 16), nn.Linear(32, 16)

    def position_ids(self, padding: Tensor, past: int) -> Tensor:
        return (padding.long().cumsum(-1) - 1).clamp(min=0)[:, past:]

    def waves(self, positions: Tensor, past: int) -> tuple[Tensor, Tensor]:
        phase = positions[..., None].float() * rates(8, 100.0)
        waves = torch.cat((phase, phase), -1)[:, None]
        return waves.cos(), waves.sin()

    def turned(self, x: Tensor, positions: Tensor, past: int) -> Tensor:
        cos, sin = (wave.to(x.dtype) for wave in self.waves(positions, past))
        return x * cos + rotate_half(x) * sin

    def sees(self, asking: Tensor, asked: Tensor) -> Tensor:
        """(new, all), by their indices."""
        behind = asking[:, None] - asked
        return (behind >= 0) & (behind < self.window) if self.window else behind >= 0

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None,
        padding: Tensor | None,
        cache: Growing,
        document: Tensor | None = None,
    ) -> Tensor:
        past, total = cache.seen, cache.seen + x.size(1)
        mask = torch.ones(x.size(0), total).bool() if padding is None else padding
        if positions is None:
            positions = self.position_ids(mask, past)
        query, key, value = (
            p(x).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = self.turned(query, positions, past), self.turned(key, positions, past)
        key, value, index = cache.update(key, value)
        visible = self.sees(torch.arange(past, total), index)
        visible = visible & self.real(mask, index)[:, None]
        if document is not None:
            visible = visible & self.same(document)
        visible = visible | ~visible.any(-1, keepdim=True)  # padding sees all, or its softmax is of nothing
        key, value = (y.repeat_interleave(2, 1) for y in (key, value))
        out = F.scaled_dot_product_attention(query, key, value, visible[:, None])
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def real(self, mask: Tensor, index: Tensor) -> Tensor:
        """(rows, all)"""
        return mask[:, index.clamp(max=mask.size(1) - 1)]

    def same(self, document: Tensor) -> Tensor:
        return document[:, :, None] == document[:, None, :]


def cached(
    layer: Attention,
    x: Tensor,
    positions: Tensor | None = None,
    padding: Tensor | None = None,
    cache: Growing | None = None,
) -> tuple[Tensor, Growing]:
    cache = layer.cache() if cache is None else cache
    return layer(x, positions, padding, cache), cache


# -- bugs -------------------------------------------------------------------------------------------------------------


class OffsetOfTheFirstRow(Attention):
    def position_ids(self, padding: Tensor, past: int) -> Tensor:
        return super().position_ids(padding, past)[:1].expand(padding.size(0), -1)


class WavesOfTheFirstLength(Attention):
    """cos and sin of as many tokens as the first call had, and longer ones of its last."""

    first: int | None = None

    def waves(self, positions: Tensor, past: int) -> tuple[Tensor, Tensor]:
        self.first = positions.size(1) if self.first is None else self.first
        return super().waves(positions.clamp(max=self.first - 1), past)


def of_cache(build: Any = Attention, **claims: Any) -> Layer:
    return Layer(**{"build": build, "call": cached, "causal": True, "relative": True, "like": rope, **claims})


def rope() -> Any:
    import posenc

    return posenc.RoPE(8, 100.0)


CORRECT = (of_cache(),)
MUTANTS = (
    Mutant("Llama's cache, the first row's offset", of_cache(OffsetOfTheFirstRow), 7, 5),
    Mutant("Llama's cache, waves of the first length", of_cache(WavesOfTheFirstLength), 8, 6),
)
