"""Llama's attention with the caches people write: growing, static slots, a rolling window."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.tools.check import Layer
from tests.check.mutants import Mutant
from tests.check.mutants.text_rotary import rates, rotate_half

WINDOW, SLOTS = 6, 1100


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


class Static(Growing):
    """Slots for a text of the longest kind, written at their index. Those still empty have an index past all."""

    ahead = 0

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.key is None:
            self.key, self.value = (x.new_zeros(*x.shape[:2], SLOTS, x.size(3)) for x in (key, value))
        start = self.seen - self.ahead * (self.seen > 0)
        self.key[:, :, start : start + key.size(2)] = key
        self.value[:, :, start : start + key.size(2)] = value
        self.seen += key.size(2)
        return self.key, self.value, torch.arange(SLOTS)


class Rolling(Growing):
    """The last tokens of a window alone, as many as the next token may see."""

    kept = WINDOW - 1

    def keep(self, key: Tensor, value: Tensor, index: Tensor) -> None:
        super().keep(key[:, :, -self.kept :], value[:, :, -self.kept :], index[-self.kept :])


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


class StaticSlots(Attention):
    cache = Static


class Window(Attention):
    """A window over the index, beside a cache of all tokens. Padding is not told it."""

    window = WINDOW


class RollingWindow(Window):
    cache = Rolling


class Sinks(Window):
    """The first two tokens are seen by all."""

    sinks = 2

    def sees(self, asking: Tensor, asked: Tensor) -> Tensor:
        return super().sees(asking, asked) | ((asked < self.sinks) & (asked <= asking[:, None]))


def windowed(
    layer: Attention, x: Tensor, positions: Tensor | None = None, cache: Growing | None = None
) -> tuple[Tensor, Growing]:
    return cached(layer, x, positions, None, cache)


# -- bugs -------------------------------------------------------------------------------------------------------------


class ByCacheSlot(Attention):
    """cache_position for all rows: what is padded on the left or inside stands elsewhere."""

    def position_ids(self, padding: Tensor, past: int) -> Tensor:
        return torch.arange(past, padding.size(1)).expand(padding.size(0), -1)


class BySlotInDecode(Attention):
    """The prompt is counted in the mask, new tokens by their slot."""

    def position_ids(self, padding: Tensor, past: int) -> Tensor:
        positions = super().position_ids(padding, past)
        return torch.arange(past, padding.size(1)).expand_as(positions) if past else positions


class OffsetOfTheFirstRow(Attention):
    def position_ids(self, padding: Tensor, past: int) -> Tensor:
        return super().position_ids(padding, past)[:1].expand(padding.size(0), -1)


class DeafToPositions(Attention):
    """position_ids are an argument that nobody reads."""

    def waves(self, positions: Tensor, past: int) -> tuple[Tensor, Tensor]:
        return super().waves(torch.arange(past, past + positions.size(1)).expand_as(positions), past)


class WavesOfTheFirstLength(Attention):
    """cos and sin of as many tokens as the first call had, and longer ones of its last."""

    first: int | None = None

    def waves(self, positions: Tensor, past: int) -> tuple[Tensor, Tensor]:
        self.first = positions.size(1) if self.first is None else self.first
        return super().waves(positions.clamp(max=self.first - 1), past)


class PositionsInBfloat16(Attention):
    def waves(self, positions: Tensor, past: int) -> tuple[Tensor, Tensor]:
        return super().waves(positions.bfloat16(), past)


class EveryChunkFromZero(Attention):
    def position_ids(self, padding: Tensor, past: int) -> Tensor:
        return super().position_ids(padding, past) - super().position_ids(padding, past)[:, :1]


class OneTokenAhead(Attention):
    """triu(diagonal=past + 2): a chunk sees one token that comes after."""

    def sees(self, asking: Tensor, asked: Tensor) -> Tensor:
        return super().sees(asking + (asking[0] > 0).long(), asked)


class UpperLeft(Attention):
    """is_causal=True beside a cache."""

    def sees(self, asking: Tensor, asked: Tensor) -> Tensor:
        return super().sees(asking - asking[0] if len(asking) > 1 else asking, asked)


class MaskOfQueries(Attention):
    """The mask's last rows alone: padding of the prompt is seen by new tokens."""

    def real(self, mask: Tensor, index: Tensor) -> Tensor:
        return super().real(mask, index) | (index < self.seen_before(mask, index))

    def seen_before(self, mask: Tensor, index: Tensor) -> int:
        return mask.size(1) - 1 if mask.size(1) > 4 else 0


class EmptySlotsSeen(StaticSlots):
    """The mask is of what is written for a prompt, and of all slots for one token."""

    def sees(self, asking: Tensor, asked: Tensor) -> Tensor:
        return super().sees(asking, asked) if len(asking) > 1 else torch.ones(1, len(asked)).bool()


class OneSlotBack(Static):
    """The first new token is written over the last of the prompt."""

    ahead = 1


class OverwritesASlot(StaticSlots):
    cache = OneSlotBack


class WindowOneMore(Window):
    """<= where it is <."""

    window = WINDOW + 1


class WindowOneLess(Window):
    window = WINDOW - 1


class WindowForgotten(Window):
    window = None


class WindowInChunksOnly(Window):
    """One token sees the whole cache."""

    def sees(self, asking: Tensor, asked: Tensor) -> Tensor:
        return super().sees(asking, asked) if len(asking) > 1 else torch.ones(1, len(asked)).bool()


class OneSink(Sinks):
    sinks = 1


class OneTooFew(Rolling):
    kept = WINDOW - 2


class RollsTooSoon(RollingWindow):
    cache = OneTooFew


class KeptLength(Rolling):
    """get_seq_length() is how many keys are kept."""

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = super().update(key, value)
        self.index = torch.arange(len(self.index))
        self.seen = len(self.index)
        return found


class StuckAtTheWindow(RollingWindow):
    cache = KeptLength


def of_cache(build: Any = Attention, **claims: Any) -> Layer:
    return Layer(**{"build": build, "call": cached, "causal": True, "relative": True, "like": rope, **claims})


def rope() -> Any:
    import posenc

    return posenc.RoPE(8, 100.0)


def of_window(build: Any = Window, **claims: Any) -> Layer:
    return of_cache(build, call=windowed, window=WINDOW, like=None, **claims)


CORRECT = (
    of_cache(),
    of_cache(StaticSlots),
    of_window(),
    of_window(RollingWindow),
    of_window(Sinks, sinks=2),
)
MUTANTS = (
    Mutant("Llama's cache, the slot as position", of_cache(ByCacheSlot), 7, 3),
    Mutant("Llama's cache, the slot as position in decode", of_cache(BySlotInDecode), 8, 3),
    Mutant("Llama's cache, the first row's offset", of_cache(OffsetOfTheFirstRow), 7, 5),
    Mutant("Llama's cache, deaf to positions", of_cache(DeafToPositions), 7, 3),
    Mutant("Llama's cache, waves of the first length", of_cache(WavesOfTheFirstLength), 8, 6),
    Mutant("Llama's cache, positions in bfloat16", of_cache(PositionsInBfloat16), 6, 1),
    Mutant("Llama's cache, every chunk from 0", of_cache(EveryChunkFromZero), 8, 5),
    Mutant("Llama's cache, a chunk sees one token ahead", of_cache(OneTokenAhead), 8, 5),
    Mutant("Llama's cache, is_causal beside a cache", of_cache(UpperLeft), 8, 5),
    Mutant("Llama's cache, padding seen by new tokens", of_cache(MaskOfQueries), 7, 3),
    Mutant("static slots, empty ones seen", of_cache(EmptySlotsSeen), 8, 5),
    Mutant("static slots, one written over", of_cache(OverwritesASlot), 8, 5),
    Mutant("a window of one token more", of_window(WindowOneMore), 19, 5),
    Mutant("a window of one token less", of_window(WindowOneLess), 19, 5),
    Mutant("a window forgotten", of_window(WindowForgotten), 19, 5),
    Mutant("a window, but not of one token", of_window(WindowInChunksOnly), 8, 5),
    Mutant("a window with one sink of two", of_window(OneSink, sinks=2), 19, 5),
    Mutant("a rolling cache that drops one too many", of_window(RollsTooSoon), 8, 5),
    Mutant("a rolling cache, positions stuck at the window", of_window(StuckAtTheWindow), 8, 5),
)
