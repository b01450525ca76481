"""Layers with a cache, padding and documents, and what goes wrong with them."""

import torch
from torch import Tensor, nn

from posenc_check import Layer
from tests.check.mutants import Mutant

HEADS, HEAD_DIM = 4, 8


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


# -- bugs -------------------------------------------------------------------------------------------------------------


class Deaf(Standing):
    """Takes positions and uses the index."""

    def place(self, told: Tensor | None, document: Tensor, start: int) -> Tensor:
        return torch.arange(start, document.size(1)).expand(document.size(0), -1)


class BySlot(Rotating):
    """Counts the tokens of a prompt, and after that the slots of the cache."""

    def place(self, told: Tensor | None, document: Tensor, start: int) -> Tensor:
        slots = torch.arange(start, document.size(1)).expand(document.size(0), -1)
        return slots if told is None and start else super().place(told, document, start)


class OffsetOfTheFirstRow(Rotating):
    def place(self, told: Tensor | None, document: Tensor, start: int) -> Tensor:
        places = super().place(told, document, start)
        return places[:1].expand_as(places) if told is None else places


class WavesOfTheFirstLength(Rotating):
    """cos and sin of as many tokens as the first call had, and for later ones its last."""

    first: int | None = None

    def turn(self, x: Tensor, places: Tensor, all_places: Tensor) -> Tensor:
        self.first = all_places.size(2) if self.first is None else self.first
        return super().turn(x, places.clamp(max=self.first - 1), all_places)


class EarlierDocumentsSeen(Rotating):
    def sees(self, document: Tensor, start: int) -> Tensor:
        earlier = document[:, start:, None] >= document[:, None, :]
        return (earlier & (document != -1)[:, None, :])[:, None]


ROTATING = Layer(build=Rotating, call=call, causal=True, relative=True)
STANDING = Layer(build=Standing, call=call, causal=True, relative=False)


def built(build: type, **claims: object) -> Layer:
    return Layer(**{"build": build, "call": call, "causal": True, **claims})  # type: ignore[arg-type]


CORRECT = (ROTATING, STANDING)
MUTANTS = (
    Mutant("deaf to positions", built(Deaf, relative=False), 6, 3),
    Mutant("the slot of the cache as position", built(BySlot), 8, 3),
    Mutant("the first row's offset for all", built(OffsetOfTheFirstRow), 7, 5),
    Mutant("waves of the first length", built(WavesOfTheFirstLength), 8, 6),
    Mutant("earlier documents seen", built(EarlierDocumentsSeen), 11, 4),
)
