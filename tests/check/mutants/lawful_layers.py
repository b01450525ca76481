"""Layers and models that are right, in the styles of code that people run, and that a hasty check would accuse."""

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from posenc.tools.check import Layer, Model
from posenc.tools.check.layers import call_module
from tests.check.mutants import Mutant

DIM, HEADS, HEAD_DIM = 32, 4, 8

Cache = list[dict[str, Tensor]] | None


def split(x: Tensor) -> Tensor:
    """(rows, heads, tokens, head_dim)"""
    return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)


def half_turned(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat((-right, left), -1)


# -- a decoder whose mask is the lowest number of the dtype of its scores, and whose softmax is in float32 -------------


@dataclass
class Output:
    hidden: Tensor
    past: Cache


class Decoder(nn.Module):
    """Tokens of padding see all that others do, evenly; where a softmax casts the lowest number of float64, they see
    nothing, and are no numbers."""

    def __init__(self, layers: int = 2, base: float = 100.0) -> None:
        super().__init__()
        self.base = base
        self.norms = nn.ModuleList(nn.RMSNorm(DIM) for _ in range(layers))
        self.mix = nn.ModuleList(nn.Linear(DIM, 3 * DIM, bias=False) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(layers))
        self.dropout = nn.Dropout(0.1)

    def turns(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        rates = 1.0 / self.base ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
        angles = positions[:, None, :, None].float() * rates
        both = torch.cat((angles, angles), -1)
        return both.cos().to(like.dtype), both.sin().to(like.dtype)

    def forward(self, x: Tensor, positions: Tensor | None, mask: Tensor | None, past: Cache) -> Output:
        start = past[0]["key"].size(2) if past else 0
        if positions is None:
            known = torch.arange(start, start + x.size(1)).expand(x.size(0), -1)
            positions = known if mask is None else (mask.long().cumsum(-1) - 1).clamp(min=0)[:, start:]
        cos, sin = self.turns(positions, x)
        hidden = torch.ones(x.size(1), start + x.size(1)).triu(start + 1).bool()[None, None]
        if mask is not None:
            hidden = hidden | ~mask[:, None, None]
        kept: list[dict[str, Tensor]] = []
        for n, (norm, mix, out) in enumerate(zip(self.norms, self.mix, self.out, strict=True)):
            query, key, value = (split(part) for part in mix(norm(x)).chunk(3, -1))
            query, key = (part * cos + half_turned(part) * sin for part in (query, key))
            if past:
                key, value = torch.cat((past[n]["key"], key), 2), torch.cat((past[n]["value"], value), 2)
            kept.append({"key": key, "value": value})
            scores = query @ key.mT / math.sqrt(HEAD_DIM)
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
            weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
            x = x + out((self.dropout(weights) @ value).transpose(1, 2).flatten(2))
        return Output(x, kept)


def decoded(
    made: Decoder, x: Tensor, positions: Tensor | None = None, padding: Tensor | None = None, cache: Cache = None
) -> tuple[Tensor, Cache]:
    said = made(x, positions, padding, cache)
    return said.hidden, said.past


# -- an encoder whose learned positions begin behind the padding's, and one whose positions begin as zeros -------------


class Encoder(nn.Module):
    """Positions 2, 3, … of a table are those of tokens, and 1 that of padding."""

    def __init__(self, places: int = 130, buffered: bool = True) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(48, DIM), nn.Embedding(places, DIM, padding_idx=1)
        self.norm, self.mix, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.register_buffer("ids", torch.arange(places - 2)[None])

    def forward(self, ids: Tensor, positions: Tensor | None, mask: Tensor | None) -> Tensor:
        if positions is None:
            line = self.ids[:, : ids.size(1)].expand(ids.size(0), -1)
            positions = line if mask is None else mask.long().cumsum(-1) - 1
        if int(positions.max()) >= self.places.num_embeddings - 2 or (mask is None and int(positions.min()) < 0):
            raise ValueError(f"positions must be within 0..{self.places.num_embeddings - 3}, got {positions.tolist()}")
        at = positions + 2
        if mask is not None:
            at = at.masked_fill(~mask, 1)
        x = self.norm(self.tokens(ids) + self.places(at))
        query, key, value = (split(part) for part in self.mix(x).chunk(3, -1))
        hidden = None if mask is None else mask[:, None, None].expand(-1, -1, ids.size(1), -1)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=hidden)
        out = self.out(seen.transpose(1, 2).flatten(2))
        out += x  # in place, into what is its own
        return out


def encoded(made: Encoder, ids: Tensor, positions: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    return made(ids, positions, padding)


class FromZeros(nn.Module):
    """Learned positions that begin as zeros, and so say nothing yet."""

    def __init__(self, places: int = 64) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(places, DIM))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions]


class Frozen(nn.Module):
    """Sinusoids in a parameter that does not train."""

    def __init__(self, places: int = 64) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(places).double(), 100.0 ** (-torch.arange(0, DIM, 2).double() / DIM))
        self.table = nn.Parameter(torch.cat((angles.sin(), angles.cos()), -1).float(), requires_grad=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions].to(x.dtype)


def placed(made: nn.Module, x: Tensor, positions: Tensor) -> Tensor:
    return made(x, positions)


# -- relative attention in older styles --------------------------------------------------------------------------------


class Clipped(nn.Module):
    """A learned vector for every distance up to four, which queries meet as they meet keys."""

    def __init__(self, farthest: int = 4) -> None:
        super().__init__()
        self.farthest = farthest
        self.mix, self.distances = nn.Linear(DIM, 3 * DIM), nn.Embedding(2 * farthest + 1, HEAD_DIM)

    def forward(self, x: Tensor, positions: Tensor | None, visible: Tensor | None) -> Tensor:
        if positions is None:
            line = torch.arange(x.size(1)).expand(x.size(0), -1)
            positions = line if visible is None else (visible.long().cumsum(-1) - 1).clamp(min=0)
        query, key, value = (split(part) for part in self.mix(x).chunk(3, -1))
        way = (positions[:, None, :] - positions[:, :, None]).clamp(-self.farthest, self.farthest) + self.farthest
        scores = query @ key.mT + torch.einsum("bhqd,bqkd->bhqk", query, self.distances(way))
        scores = scores / HEAD_DIM**0.5
        if visible is not None:
            scores = scores.masked_fill(~visible[:, None, None], -1e9)
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


def clipped(made: Clipped, x: Tensor, positions: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    return made(x, positions, padding)


ROUND = 1000


class OnARing(Clipped):
    """Distances count for much, and a little where a token stands on a ring of a thousand places, as a minute in a day:
    the thousandth is the first again."""

    def __init__(self, size: float = 0.05) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor, positions: Tensor, visible: Tensor | None = None) -> Tensor:
        angle = (positions.double() % ROUND) * (2 * math.pi / ROUND)
        ring = torch.stack((angle.sin(), angle.cos()), -1).to(x.dtype) * self.size
        return super().forward(torch.cat((x[..., :2] + ring, x[..., 2:]), -1), positions, visible)


class Shifted(nn.Module):
    """Sinusoids of all distances, and a shift by a row of zeros; the memory is of inputs, which are mixed anew."""

    def __init__(self) -> None:
        super().__init__()
        self.ask, self.answer, self.far = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM, bias=False)
        self.by_content, self.by_place = (nn.Parameter(torch.randn(HEADS, 1, HEAD_DIM)) for _ in range(2))

    def forward(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        whole = x if memory is None else torch.cat((memory, x), 1)
        queries, keys = x.size(1), whole.size(1)
        rates = 1 / 100.0 ** (torch.arange(0, DIM, 2).double() / DIM)
        angles = torch.outer(torch.arange(keys - 1, -1, -1).double(), rates)
        ways = split(self.far(torch.cat((angles.sin(), angles.cos()), -1).to(x.dtype))[None])
        query = split(self.ask(x))
        key, value = (split(part) for part in self.answer(whole).chunk(2, -1))
        by_place = (query + self.by_place) @ ways.mT
        by_place = (
            nn.functional.pad(by_place, (1, 0)).view(x.size(0), HEADS, keys + 1, queries)[:, :, 1:].view_as(by_place)
        )
        scores = ((query + self.by_content) @ key.mT + by_place) / HEAD_DIM**0.5
        later = torch.ones(queries, keys).triu(keys - queries + 1).bool()
        weights = scores.float().masked_fill(later, -1e30).type_as(scores).softmax(-1)
        return (weights @ value).transpose(1, 2).flatten(2), whole


def shifted(made: Shifted, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return made(x, cache)


# -- caches of their own -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def seen(tokens: int) -> Tensor:
    """A mask for every length that was asked for of late."""
    with torch.inference_mode(False):
        return torch.ones(tokens, tokens).tril().bool()


_STAGES: WeakKeyDictionary[nn.Module, list[Tensor]] = WeakKeyDictionary()


def staged(module: nn.Module, size: int) -> Tensor:
    """One of eight pieces of memory in turn, which are made when they are first needed and kept with the module."""
    pieces = _STAGES.setdefault(module, [])
    piece = pieces.pop(0) if len(pieces) == 8 else torch.empty(0)
    if piece.numel() < size:
        with torch.inference_mode(False):
            piece = torch.empty(size, dtype=torch.float64)
    pieces.append(piece)
    return piece[:size]


class Staged(nn.Module):
    """Slopes are written to a piece of memory that was there before, and added from there."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, 3 * DIM)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.size(1)
        query, key, value = (split(part) for part in self.mix(x).chunk(3, -1))
        line = torch.arange(tokens)
        with torch.no_grad():
            slopes = staged(self, tokens * tokens).view(tokens, tokens)
            slopes.copy_(line - line[:, None]).div_(4)
        scores = query @ key.mT / HEAD_DIM**0.5 + slopes.to(x.dtype, copy=True)
        weights = scores.masked_fill(~seen(tokens), -torch.inf).softmax(-1)
        return (weights @ value).transpose(1, 2).flatten(2)


# -- what others than torch draw ---------------------------------------------------------------------------------------


class DrawnElsewhere(nn.Module):
    """A table that Python's own chance draws, as other frameworks draw by their own."""

    def __init__(self, places: int = 64) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor([[random.gauss(0, 0.5) for _ in range(DIM)] for _ in range(places)]))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions]


def sow_all(number: int) -> None:
    random.seed(number)
    torch.manual_seed(number)


# -- a mask and means that are saved -----------------------------------------------------------------------------------


class SavedMask(nn.Module):
    """The mask is a persistent buffer, as in models that were published with it."""

    def __init__(self, places: int = 40) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, 3 * DIM)
        self.places = nn.Parameter(torch.randn(places, DIM) * 0.02)  # as most are drawn
        self.register_buffer("bias", torch.ones(places, places).tril().bool())

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.size(1)
        if tokens > len(self.places):
            raise ValueError(f"there are {len(self.places)} positions, got {tokens} tokens")
        query, key, value = (split(part) for part in self.mix(x + self.places[:tokens]).chunk(3, -1))
        scores = torch.baddbmm(
            torch.zeros((), dtype=x.dtype), query.flatten(0, 1), key.flatten(0, 1).mT, beta=0.0, alpha=HEAD_DIM**-0.5
        ).unflatten(0, (-1, HEADS))
        scores = torch.where(self.bias[:tokens, :tokens], scores, torch.finfo(scores.dtype).min)
        return x + (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


# -- a window that is cut into an image --------------------------------------------------------------------------------


class Swinging(nn.Module):
    """Attention within windows of 3 x 3 of a padded image, with a table of all ways, which begins near zero."""

    def __init__(self, side: int = 3) -> None:
        super().__init__()
        self.side, self.mix = side, nn.Linear(DIM, 3 * DIM)
        self.table = nn.Parameter(nn.init.trunc_normal_(torch.empty((2 * side - 1) ** 2, HEADS), std=0.02))

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        (height, width), side = grid, self.side
        down, right = -height % side, -width % side
        image = nn.functional.pad(x.unflatten(1, grid), (0, 0, 0, right, 0, down))
        inside = torch.ones(height, width).bool()
        inside = nn.functional.pad(inside, (0, right, 0, down)).unfold(0, side, side).unfold(1, side, side).flatten(2)
        windows = image.unfold(1, side, side).unfold(2, side, side).permute(0, 1, 2, 4, 5, 3).flatten(3, 4)
        query, key, value = self.mix(windows).unflatten(-1, (3, HEADS, HEAD_DIM)).transpose(3, 5).unbind(4)
        row, column = torch.arange(side).repeat_interleave(side), torch.arange(side).repeat(side)
        way = (row[:, None] - row + side - 1) * (2 * side - 1) + column[:, None] - column + side - 1
        scores = query @ key.mT / HEAD_DIM**0.5 + self.table[way].permute(2, 0, 1)
        scores = scores.masked_fill(~inside[None, :, :, None, None], -torch.inf)
        out = (scores.softmax(-1) @ value).transpose(3, 4).flatten(4).unflatten(3, (side, side))
        out = out.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return out[:, :height, :width].flatten(1, 2)


def swinging(made: Swinging, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
    return made(x, grid or (1, x.size(1)))


# -- a class token, which needs patches --------------------------------------------------------------------------------


class Summing(nn.Module):
    """A class token in front takes in the mean of all patches, which have sines of their rows and columns."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        rates = 10.0 ** -torch.linspace(0, 1, DIM // 4).double()
        sides = [torch.arange(size).double()[:, None] * rates for size in grid]
        rows, columns = (torch.cat((angle.sin(), angle.cos()), -1).to(x.dtype) for angle in sides)
        places = torch.cat((rows[:, None].expand(*grid, -1), columns[None].expand(*grid, -1)), -1).flatten(0, 1)
        patches = self.mix(x[:, 1:] + places).tanh()
        return torch.cat((x[:, :1] + patches.mean(1, keepdim=True), patches), 1)


def summing(made: Summing, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
    return made(x, grid or (1, x.size(1) - 1))


CORRECT = (
    Layer(build=Decoder, call=decoded, causal=True, relative=True, varied={"base": 20.0}),
    Model(build=Encoder, call=encoded, relative=False, max_positions=128, state=("ids",)),
    Layer(build=FromZeros, call=placed, relative=False),
    Layer(build=Frozen, call=placed, relative=False),
    Layer(build=OnARing, call=placed, relative=False),
    Layer(build=Clipped, call=clipped, relative=True, varied={"farthest": 3}),
    Layer(build=Shifted, call=shifted, causal=True),
    Layer(build=Staged, call=call_module, causal=True),
    Layer(build=DrawnElsewhere, call=placed, relative=False, seed=sow_all),
    Layer(build=SavedMask, call=call_module, causal=True, max_positions=40, state=("bias",)),
    Layer(build=Swinging, call=swinging),
    Layer(build=Summing, call=summing, registers=1),
)


class KeptForEver(Staged):
    """Another piece of memory at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.pieces.append(torch.empty(x.size(1), dtype=torch.float64))
        return super().forward(x)


MUTANTS = (
    Mutant("memory that no call gives back", Layer(build=KeptForEver, call=call_module, causal=True), 17, 9),
    Mutant("a call that counts itself", Layer(build=KeptForEver, call=call_module, causal=True), 5, 15),
)
