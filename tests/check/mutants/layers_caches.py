"""Decoders with windows, sinks, static caches and shared heads, in the style of those that people run."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check import Layer
from tests.check.mutants import Mutant

HEADS, SHARED, HEAD_DIM = 4, 2, 8


def turned(x: Tensor, places: Tensor) -> Tensor:
    """Halves of (rows, heads, tokens, 8) turned at places (rows, tokens)."""
    phase = places[:, None, :, None].double() * 100.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
    phase = torch.cat((phase, phase), -1)
    across = torch.cat((-x[..., 4:], x[..., :4]), -1)
    return x * phase.cos().to(x.dtype) + across * phase.sin().to(x.dtype)


@dataclass(frozen=True)
class Kept:
    """Keys and values (rows, heads, kept, 8), the number of each in the text (kept,), how many there have been, and
    the next position of each row."""

    key: Tensor
    value: Tensor
    number: Tensor
    count: int
    following: Tensor


class Decoder(nn.Module):
    """Mistral: each token sees itself and so many before it; two heads of queries share one of keys; the cache rolls.

    Positions that nobody tells follow the last one."""

    def __init__(self, window: int = 5, sinks: int = 0) -> None:
        super().__init__()
        self.window, self.sinks = window, sinks
        self.query, self.rest = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
        self.out = nn.Linear(32, 32, bias=False)
        nn.init.normal_(self.query.weight, std=0.3)

    def places(self, told: Tensor | None, x: Tensor, cache: Kept | None) -> Tensor:
        if told is not None:
            return told
        new = torch.arange(x.size(1)).expand(x.shape[:2])
        return new if cache is None else new + cache.following[:, None]

    def seen(self, query: Tensor, key: Tensor) -> Tensor:
        """By the numbers of queries and keys in the text."""
        back = query[:, None] - key
        return (back >= 0) & ((back < self.window) | (key < self.sinks))

    def stays(self, number: Tensor, count: int) -> Tensor:
        """What the cache keeps for the next token."""
        return (number > count - self.window) | (number < self.sinks)

    def keys(self, kept: Kept) -> Tensor:
        """What queries meet."""
        return kept.key

    def shared(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(HEADS // SHARED, 1)

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def forward(self, x: Tensor, told: Tensor | None, cache: Kept | None) -> tuple[Tensor, Kept]:
        places = self.places(told, x, cache)
        query = turned(self.query(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2), places)
        key, value = self.rest(x).unflatten(-1, (2, SHARED, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        kept = self.grown(cache, turned(key, places), value, places)
        number = torch.arange(kept.count - x.size(1), kept.count)
        scores = query @ self.shared(self.keys(kept)).mT / HEAD_DIM**0.5
        scores = scores.masked_fill(~self.seen(number, kept.number), -torch.inf)
        out = self.weigh(scores) @ self.shared(kept.value)
        return self.out(out.transpose(1, 2).flatten(2)), self.evicted(kept)

    def grown(self, cache: Kept | None, key: Tensor, value: Tensor, places: Tensor) -> Kept:
        following = places.amax(1) + 1
        if cache is None:
            return Kept(key, value, torch.arange(key.size(2)), key.size(2), following)
        count = cache.count + key.size(2)
        number = torch.cat((cache.number, torch.arange(cache.count, count)))
        key, value = torch.cat((cache.key, key), 2), torch.cat((cache.value, value), 2)
        return Kept(key, value, number, count, following)

    def evicted(self, kept: Kept) -> Kept:
        stays = self.stays(kept.number, kept.count)
        return Kept(kept.key[:, :, stays], kept.value[:, :, stays], kept.number[stays], kept.count, kept.following)


def decode(layer: Any, x: Tensor, positions: Tensor | None = None, cache: Any = None) -> Any:
    return layer(x, positions, cache)


class OneTooFew(Decoder):
    """The cache gives a key up a token early."""

    def stays(self, number: Tensor, count: int) -> Tensor:
        return super().stays(number - 1, count)


class OneTooMany(Decoder):
    """Sees as many before it as the window is wide, and itself."""

    def seen(self, query: Tensor, key: Tensor) -> Tensor:
        back = query[:, None] - key
        return (back >= 0) & (back <= self.window)

    def stays(self, number: Tensor, count: int) -> Tensor:
        return super().stays(number + 1, count)


class PromptWithoutWindow(Decoder):
    """The window is the cache's alone: prompts are read whole."""

    def seen(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query[:, None]


class NoWindow(PromptWithoutWindow):
    """The window of the configuration is never read."""

    def stays(self, number: Tensor, count: int) -> Tensor:
        return number >= 0


class TurnedBySlot(Decoder):
    """A token by itself is turned as the slot says that it is kept in."""

    def places(self, told: Tensor | None, x: Tensor, cache: Kept | None) -> Tensor:
        if cache is not None and x.size(1) == 1:
            return torch.full(x.shape[:2], cache.key.size(2))
        return super().places(told, x, cache)


class Lost(Decoder):
    """First tokens go with the others out of the cache."""

    def stays(self, number: Tensor, count: int) -> Tensor:
        return number > count - self.window


class SinksTakeFromTheWindow(Decoder):
    """The cache is as large as the window, sinks and all."""

    def stays(self, number: Tensor, count: int) -> Tensor:
        return (number > count - self.window + self.sinks) | (number < self.sinks)


class NoSinks(Lost):
    """Sinks of the configuration are never read."""

    def seen(self, query: Tensor, key: Tensor) -> Tensor:
        back = query[:, None] - key
        return (back >= 0) & (back < self.window)


class SinksTurnedAgain(Decoder):
    """Once something was evicted, first tokens are moved towards the window, and the prompt did not have them there."""

    def keys(self, kept: Kept) -> Tensor:
        gap = kept.count - len(kept.number)
        moved = torch.where(kept.number < self.sinks, gap, 0)[None]
        return turned(kept.key, moved)


class Weighed(Decoder):
    """gpt-oss: a learned number of each head stands in the softmax beside the scores, and has no value."""

    def __init__(self, window: int = 5, sinks: int = 0) -> None:
        super().__init__(window, sinks)
        self.sink = nn.Parameter(torch.randn(HEADS))

    def weigh(self, scores: Tensor) -> Tensor:
        sink = self.sink.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return self.dropped(torch.cat((scores, sink), -1).softmax(-1))

    def dropped(self, weights: Tensor) -> Tensor:
        return weights[..., :-1]


class DroppedAtTheWrongEnd(Weighed):
    """The sink stands last, and the first key is dropped."""

    def dropped(self, weights: Tensor) -> Tensor:
        return weights[..., 1:]


class Chunked(Decoder):
    """Llama 4: a token sees the tokens of its own chunk of the text, up to itself."""

    def seen(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query[:, None]) & (query[:, None] // self.window == key // self.window)


class ChunksOfTheCall(Chunked):
    """Chunks are counted from the first token of each call."""

    def seen(self, query: Tensor, key: Tensor) -> Tensor:
        start = int(query[0])
        return (key <= query[:, None]) & ((query - start)[:, None] // self.window == (key - start) // self.window)


class ChunkOfTheLast(Chunked):
    """The chunk of the last token is that of all, which decoding forgives."""

    def seen(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query[:, None]) & (key // self.window == query[-1] // self.window) | (key == query[:, None])


class Slots(Decoder):
    """StaticCache: keys are written into slots at cache_position; slots after the query are not seen."""

    limit = 32

    def grown(self, cache: Any, key: Tensor, value: Tensor, places: Tensor) -> Any:
        slots = self.slots(cache, key.size(2))
        for place in (int(slots[-1]), int(places.max()), int(places.min())):
            if not 0 <= place < self.limit:
                raise ValueError(f"positions must be within 0..{self.limit - 1}, got {place}")
        empty = key.new_zeros(*key.shape[:2], self.limit, HEAD_DIM)
        old = (empty, empty) if cache is None else (cache.key, cache.value)
        key, value = (o.index_copy(2, slots, new) for o, new in zip(old, (key, value), strict=True))
        return Kept(key, value, torch.arange(self.limit), int(slots[-1]) + 1, places.amax(1) + 1)

    def slots(self, cache: Any, new: int) -> Tensor:
        start = 0 if cache is None else cache.count
        return torch.arange(start, start + new)

    def evicted(self, kept: Kept) -> Kept:
        return kept


class EmptySlotsSeen(Slots):
    """A token by itself needs no mask, it is thought."""

    def seen(self, query: Tensor, key: Tensor) -> Tensor:
        return super().seen(query, key) if len(query) > 1 else torch.ones(1, len(key)).bool()


class OverwritesTheLast(Slots):
    """The next token is written over the last one: the length is taken for the index of the last."""

    def slots(self, cache: Any, new: int) -> Tensor:
        return super().slots(cache, new) - int(cache is not None)


class SlotsOfTheModule(Slots):
    """Slots are the module's, and a new text finds those of the last one: sees more than were written."""

    def __init__(self, window: int = 5, sinks: int = 0) -> None:
        super().__init__(window, sinks)
        self.held: Kept | None = None

    def grown(self, cache: Any, key: Tensor, value: Tensor, places: Tensor) -> Any:
        if self.held is not None and len(self.held.key) == len(key):
            cache = cache or Kept(self.held.key, self.held.value, self.held.number, 0, self.held.following)
        self.held = super().grown(cache, key, value, places)
        return self.held

    def seen(self, query: Tensor, key: Tensor) -> Tensor:
        """A mask of the slots that are not empty."""
        assert self.held is not None
        written = self.held.key.abs().sum((0, 1, 3)) > 0
        return super().seen(query, key) | (written & (key > query[-1]))


class UpperLeft(Slots):
    """The mask of a chunk is cut from the upper left of the square of slots."""

    def seen(self, query: Tensor, key: Tensor) -> Tensor:
        return super().seen(query - query[0], key)


class Latent(nn.Module):
    """MLA: keys of each head from a latent vector, beside one turned slice that all heads share; the cache keeps both.
    A token by itself asks the latent vectors themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.down = nn.Linear(32, HEADS * 16, bias=False), nn.Linear(32, 12 + 8, bias=False)
        self.up = nn.Parameter(torch.randn(2, HEADS, 12, 8) / 3)
        nn.init.normal_(self.query.weight, std=0.3)

    def kept(self, slice_: Tensor, places: Tensor) -> Tensor:
        return turned(slice_[:, None], places)

    def met(self, slice_: Tensor, places: Tensor) -> Tensor:
        return slice_

    def absorbed_scale(self) -> float:
        return 16**-0.5

    def forward(self, x: Tensor, told: Tensor | None, cache: Any) -> tuple[Tensor, Any]:
        before = 0 if cache is None else cache[0].size(1)
        places = torch.arange(before, before + x.size(1)).expand(x.shape[:2]) if told is None else told
        plain, turning = self.query(x).unflatten(-1, (HEADS, 16)).transpose(1, 2).chunk(2, -1)
        latent, slice_ = self.down(x).split((12, 8), -1)
        new = (latent, self.kept(slice_, places)[:, 0], places)
        latent, slice_, places_so_far = cache = (
            new if cache is None else tuple(torch.cat(both, 1) for both in zip(cache, new, strict=True))
        )
        turning = turned(turning, places) @ self.met(slice_[:, None], places_so_far).mT
        to_key, to_value = self.up
        if x.size(1) == 1:
            scores = (plain @ to_key.mT @ latent[:, None].mT + turning) * self.absorbed_scale()
            out = scores.softmax(-1) @ latent[:, None] @ to_value
        else:
            scores = (plain @ (latent[:, None] @ to_key).mT + turning) * 16**-0.5
            seen = torch.ones(x.size(1), latent.size(1)).tril(before).bool()
            out = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ (latent[:, None] @ to_value)
        return out.transpose(1, 2).flatten(2), cache


class ScaledByTheLatent(Latent):
    """The root is that of what the absorbed queries are as wide as."""

    def absorbed_scale(self) -> float:
        return (12 + 8) ** -0.5


class SliceTurnedAgain(Latent):
    """The slice is turned when it is kept, and all that is kept at each step."""

    def met(self, slice_: Tensor, places: Tensor) -> Tensor:
        return turned(slice_, places) if places.size(1) > 1 else slice_


class SliceTurnedLate(Latent):
    """The slice is kept as it is, and turned as far as it is from the beginning of the cache's last chunk."""

    def kept(self, slice_: Tensor, places: Tensor) -> Tensor:
        return turned(slice_[:, None], torch.arange(places.size(1)).expand_as(places))


def decoder(build: Any, **claims: Any) -> Layer:
    claims = {"relative": True, "window": 5, "normalized": True, **claims}
    return Layer(build=build, call=decode, causal=True, **claims)


def sinking(build: Any) -> Layer:
    return decoder(build, options={"sinks": 2}, sinks=2)


def slots(build: Any) -> Layer:
    return decoder(build, options={"window": 64}, max_positions=32, window=None)


def latent(build: Any) -> Layer:
    return decoder(build, window=None, normalized=False)


CORRECT = (
    decoder(Decoder),
    sinking(Decoder),
    decoder(Weighed, normalized=False),
    decoder(Chunked, relative=None, window=None),
    slots(Slots),
    latent(Latent),
)
MUTANTS = (
    Mutant("a rolling cache one key short", decoder(OneTooFew), caught_by=8, pain=5),
    Mutant("a window one token wider", decoder(OneTooMany), caught_by=19, pain=5),
    Mutant("a prompt without its window", decoder(PromptWithoutWindow), caught_by=8, pain=5),
    Mutant("a window never read", decoder(NoWindow), caught_by=19, pain=7),
    Mutant("turned by the slot of a rolling cache", decoder(TurnedBySlot), caught_by=8, pain=5),
    Mutant("sinks evicted", sinking(Lost), caught_by=8, pain=5),
    Mutant("sinks take from the window", sinking(SinksTakeFromTheWindow), caught_by=8, pain=5),
    Mutant("sinks never read", sinking(NoSinks), caught_by=19, pain=7),
    Mutant("sinks moved to the window", sinking(SinksTurnedAgain), caught_by=8, pain=5),
    Mutant("the first key dropped for a sink", decoder(DroppedAtTheWrongEnd, normalized=False), caught_by=19, pain=18),
    Mutant("chunks of each call", decoder(ChunksOfTheCall, relative=None, window=None), caught_by=8, pain=5),
    Mutant("the last token's chunk", decoder(ChunkOfTheLast, relative=None, window=None), caught_by=8, pain=5),
    Mutant("empty slots seen", slots(EmptySlotsSeen), caught_by=8, pain=5),
    Mutant("the last slot written twice", slots(OverwritesTheLast), caught_by=8, pain=5),
    Mutant("slots of the text before", slots(SlotsOfTheModule), caught_by=5, pain=5),
    Mutant("slots from the upper left", slots(UpperLeft), caught_by=8, pain=5),
    Mutant("MLA scaled by the latent", latent(ScaledByTheLatent), caught_by=8, pain=5),
    Mutant("MLA's slice turned again", latent(SliceTurnedAgain), caught_by=6, pain=5),
    Mutant("MLA's slice turned by the chunk", latent(SliceTurnedLate), caught_by=8, pain=5),
)
