"""Layers with a cache, padding and documents, and what goes wrong with them."""

import torch
from torch import Tensor, nn

from posenc.tools.check import Layer
from tests.check.mutants import Mutant

HEADS, HEAD_DIM = 4, 8
THRESHOLD = 16

Cache = tuple[Tensor, ...] | None


class Rotating(nn.Module):
    """Causal attention that turns queries and keys. Its cache holds keys, values, order and positions, in that shape:
    (rows, heads or 1, tokens, head_dim or 1)."""

    def __init__(self, base: float = 100.0) -> None:
        super().__init__()
        self.base = base
        self.project, self.out = nn.Linear(32, 3 * HEADS * HEAD_DIM), nn.Linear(HEADS * HEAD_DIM, 32)

    def forward(
        self, x: Tensor, positions: Tensor | None, document: Tensor | None, order: Tensor | None, cache: Cache
    ) -> tuple[Tensor, Cache]:
        rows, start = x.size(0), 0 if cache is None else cache[0].size(2)
        if document is None:
            document = torch.zeros(rows, start + x.size(1)).long()
        positions = self.place(positions, document, start)
        if order is None:
            order = torch.arange(start, document.size(1)).expand(rows, -1)
        query, key, value = self.project(self.add(x, positions)).unflatten(-1, (3, HEADS, HEAD_DIM)).unbind(2)
        places = positions[:, None, :, None]
        new = (self.keep(key.transpose(1, 2), places), value.transpose(1, 2), order[:, None, :, None], places)
        cache = new if cache is None else tuple(torch.cat(pair, 2) for pair in zip(cache, new, strict=True))
        visible = self.sees(document, start) & self.before(cache[2], order)
        met = self.meet(cache[0], cache[3])
        scores = self.turn(query.transpose(1, 2), places, cache[3]) @ met.mT / HEAD_DIM**0.5
        return self.out((self.weigh(scores, visible) @ cache[1]).transpose(1, 2).flatten(2)), cache

    def place(self, told: Tensor | None, document: Tensor, start: int) -> Tensor:
        """The positions of new tokens: if nobody tells them, how many of their document there were before them."""
        return count(document)[:, start:] if told is None else told

    def add(self, x: Tensor, positions: Tensor) -> Tensor:
        return x

    def turn(self, x: Tensor, places: Tensor, all_places: Tensor) -> Tensor:
        return turned(x, places, self.base)

    def keep(self, key: Tensor, places: Tensor) -> Tensor:
        """What the cache keeps of new keys."""
        return self.turn(key, places, places)

    def meet(self, kept: Tensor, places: Tensor) -> Tensor:
        """What queries meet of it."""
        return kept

    def sees(self, document: Tensor, start: int) -> Tensor:
        """(rows, 1, new, all): tokens see their own document."""
        same = document[:, start:, None] == document[:, None, :]
        return (same & (document != -1)[:, None, :])[:, None]

    def before(self, orders: Tensor, order: Tensor) -> Tensor:
        """(rows, 1, new, all)"""
        return orders.mT <= order[:, None, :, None]

    def weigh(self, scores: Tensor, visible: Tensor) -> Tensor:
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return torch.where(visible.any(-1, keepdim=True), weights, 0.0)


def count(document: Tensor) -> Tensor:
    """How many of its document each token has before it."""
    same = document[:, :, None] == document[:, None, :]
    return same.tril(-1).sum(-1)


def turned(x: Tensor, places: Tensor, base: float | Tensor) -> Tensor:
    """Pairs of channels turned by p · base^(-2c/head_dim)."""
    angle = places.double() * base ** -torch.linspace(0, 1, HEAD_DIM // 2 + 1).double()[:-1]
    left, right = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((left * cos - right * sin, left * sin + right * cos), -1).to(x.dtype)


def call(
    layer: Rotating,
    x: Tensor,
    positions: Tensor | None = None,
    padding: Tensor | None = None,
    document: Tensor | None = None,
    order: Tensor | None = None,
    cache: Cache = None,
) -> tuple[Tensor, Cache]:
    if document is None and padding is not None:
        document = padding.long() - 1
    return layer(x, positions, document, order, cache)


class Standing(Rotating):
    """Adds sinusoids, and turns nothing."""

    def add(self, x: Tensor, positions: Tensor) -> Tensor:
        angle = positions[..., None].double() * self.base ** -torch.linspace(0, 1, 17).double()[:-1]
        return x + torch.cat((angle.sin(), angle.cos()), -1).to(x.dtype)

    def turn(self, x: Tensor, places: Tensor, all_places: Tensor) -> Tensor:
        return x


class Dynamic(Rotating):
    """Grows its base with the length so far, and keeps keys as they were before they are turned."""

    def turn(self, x: Tensor, places: Tensor, all_places: Tensor) -> Tensor:
        length = all_places.amax(2, keepdim=True).double() + 1
        return turned(x, places, self.base * (length / THRESHOLD).clamp(min=1) ** (HEAD_DIM / (HEAD_DIM - 2)))

    def keep(self, key: Tensor, places: Tensor) -> Tensor:
        return key

    def meet(self, kept: Tensor, places: Tensor) -> Tensor:
        return self.turn(kept, places, places)


def call_dynamic(
    layer: Dynamic, x: Tensor, positions: Tensor | None = None, cache: Cache = None
) -> tuple[Tensor, Cache]:
    return layer(x, positions, None, None, cache)


class Crossing(nn.Module):
    """Attention to a memory, which has positions of its own."""

    def __init__(self, base: float = 100.0) -> None:
        super().__init__()
        self.base = base
        self.ask, self.answer = nn.Linear(32, HEADS * HEAD_DIM), nn.Linear(32, 2 * HEADS * HEAD_DIM)

    def forward(self, x: Tensor, positions: Tensor, memory: Tensor, memory_positions: Tensor) -> Tensor:
        query = self.ask(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        key, value = self.answer(memory).unflatten(-1, (2, HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        query = turned(query, positions[:, None, :, None], self.base)
        key = turned(key, memory_positions[:, None, :, None], self.base)
        return ((query @ key.mT / HEAD_DIM**0.5).softmax(-1) @ value).transpose(1, 2).flatten(2)


def cross(
    layer: Crossing,
    x: Tensor,
    positions: Tensor | None = None,
    memory: Tensor | None = None,
    memory_positions: Tensor | None = None,
) -> Tensor:
    if positions is None:
        positions = torch.arange(x.size(1)).expand(x.size(0), -1)
    if memory is None or memory_positions is None:
        memory, memory_positions = x, positions
    return layer(x, positions, memory, memory_positions)


# -- bugs -------------------------------------------------------------------------------------------------------------


class Deaf(Standing):
    """Takes positions and goes by the index."""

    def place(self, told: Tensor | None, document: Tensor, start: int) -> Tensor:
        return torch.arange(start, document.size(1)).expand(document.size(0), -1)


class PaddingCounts(Standing):
    """Counts padding when nobody tells it positions."""

    def place(self, told: Tensor | None, document: Tensor, start: int) -> Tensor:
        return torch.arange(start, document.size(1)).expand(document.size(0), -1) if told is None else told


class ZeroedAfterwards(Rotating):
    """Padding takes its share of the softmax, and only then is set to zero."""

    def weigh(self, scores: Tensor, visible: Tensor) -> Tensor:
        past = visible | ~visible.any(-2, keepdim=True)  # padding is what nobody sees
        return super().weigh(scores, past) * visible


class QueriesMasked(Rotating):
    """Padding asks nothing, but it is asked."""

    def sees(self, document: Tensor, start: int) -> Tensor:
        return (document != -1)[:, None, start:, None].expand(-1, -1, -1, document.size(1))


class MaskOfTheFirstRow(Rotating):
    def sees(self, document: Tensor, start: int) -> Tensor:
        return super().sees(document[:1], start)


class TurnedAgain(Rotating):
    """Turns all keys at each step, those of the cache once more."""

    def keep(self, key: Tensor, places: Tensor) -> Tensor:
        return self.turn(key, places, places) if places.size(2) > 1 else key

    def meet(self, kept: Tensor, places: Tensor) -> Tensor:
        return self.turn(kept, places, places) if kept.size(2) > 1 else kept


class FromZero(Rotating):
    """Every chunk begins at 0."""

    def place(self, told: Tensor | None, document: Tensor, start: int) -> Tensor:
        return count(document[:, start:]) if told is None else told


class BySlot(Rotating):
    """Counts the tokens of a prompt, and after that the slots of the cache."""

    def place(self, told: Tensor | None, document: Tensor, start: int) -> Tensor:
        slots = torch.arange(start, document.size(1)).expand(document.size(0), -1)
        return slots if told is None and start else super().place(told, document, start)


class OneOffset(Rotating):
    """New tokens stand where they would in the first row."""

    def place(self, told: Tensor | None, document: Tensor, start: int) -> Tensor:
        positions = super().place(told, document, start)
        return positions[:1].expand_as(positions) if start else positions


class UpperLeft(Rotating):
    """The first token of a chunk sees the first key alone."""

    def before(self, orders: Tensor, order: Tensor) -> Tensor:
        return torch.ones(order.size(1), orders.size(2)).tril().bool()[None, None]


class ByIndex(Rotating):
    """Causality by the index, whatever order it is told."""

    def before(self, orders: Tensor, order: Tensor) -> Tensor:
        return torch.ones(order.size(1), orders.size(2)).tril(orders.size(2) - order.size(1)).bool()[None, None]


class Leaking(Rotating):
    """Positions begin again in each document, and documents see one another."""

    def sees(self, document: Tensor, start: int) -> Tensor:
        return super().sees(document.clamp(max=0), start)


class Counting(Standing):
    """Documents do not see one another, and positions count on: those it is told it takes for the padding's sake."""

    def place(self, told: Tensor | None, document: Tensor, start: int) -> Tensor:
        return count(document.clamp(max=0))[:, start:]


class OlderBase(Dynamic):
    """Keeps keys as they were turned when the text was shorter."""

    def keep(self, key: Tensor, places: Tensor) -> Tensor:
        return self.turn(key, places, places)

    def meet(self, kept: Tensor, places: Tensor) -> Tensor:
        return kept


class Shared(Crossing):
    """The memory stands where the first query does, and after it."""

    def forward(self, x: Tensor, positions: Tensor, memory: Tensor, memory_positions: Tensor) -> Tensor:
        return super().forward(x, positions, memory, positions[:, :1] + torch.arange(memory.size(1)))


ROTATING = Layer(build=Rotating, call=call, causal=True, relative=True)
STANDING = Layer(build=Standing, call=call, causal=True, relative=False)
DYNAMIC = Layer(build=Dynamic, call=call_dynamic, causal=True, threshold=THRESHOLD)
CROSSING = Layer(build=Crossing, call=cross, relative=True)


def built(build: type, **claims: object) -> Layer:
    return Layer(**{"build": build, "call": call, "causal": True, **claims})  # type: ignore[arg-type]


CORRECT = (ROTATING, STANDING, DYNAMIC, CROSSING)
MUTANTS = (
    Mutant("absolute and called relative", built(Standing, relative=True), 6, 3),
    Mutant("deaf to positions", built(Deaf, relative=False), 6, 3),
    Mutant("padding counts", built(PaddingCounts), 7, 3),
    Mutant("padding leaks through the softmax", built(ZeroedAfterwards), 7, 3),
    Mutant("queries masked, keys not", built(QueriesMasked), 7, 3),
    Mutant("the first row's mask for all", built(MaskOfTheFirstRow), 7, 3),
    Mutant("cached keys turned again", built(TurnedAgain), 8, 5),
    Mutant("every chunk begins at 0", built(FromZero), 8, 5),
    Mutant("the slot of the cache as position", built(BySlot), 8, 3),
    Mutant("one offset for ragged rows", built(OneOffset), 8, 5),
    Mutant("a chunk's mask from the upper left", built(UpperLeft), 8, 5),
    Mutant("a memory that shares the query's positions", Layer(build=Shared, call=cross), 9, 18),
    Mutant("a layer's causality by index", built(ByIndex), 10, 3),
    Mutant("positions begin again and attention leaks", built(Leaking), 11, 4),
    Mutant("attention is separate and positions count on", built(Counting), 11, 4),
    Mutant("a cache of keys of an older base", built(OlderBase, call=call_dynamic, threshold=THRESHOLD), 13, 6),
)
