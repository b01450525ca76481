"""Blocks of query-key pairs near the diagonal, forward and backward, with any terms that depend on the distance.

A near block is a block of queries and a block of keys, of which each query sees those at a range of distances. With the
queries in reverse order, the distance increases along rows and columns alike. So the line of a bias, or a product of
queries with vectors by distance, is a view of the pairs: in a matrix whose rows have one entry for each distance of the
block, the pairs are its diagonals, with strides (columns + 1, 1), and no gather is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends.tiled.fused import on_gpu
from posenc.positions.tiles import Tile

# Queries and keys of a block, and the maximum number of scores at a time: products are at full speed, and a block stays
# in the cache (docs/decisions/008-near-and-far.md).
ROWS = 128
KEYS = 1024
SCORES = 2**20
# On a GPU, a guess: fewer and larger, since a block is some thirty calls.
ON_GPU = (512, 4096, 2**24)


class Work:
    """Buffers that all blocks reuse: allocating them from the system would cost as much as filling them."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.empty = like.new_empty(0, dtype=dtype)
        self.named: dict[str, Tensor] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape, which overwrites the last one of this name."""
        needed = math.prod(shape)
        if name not in self.named or self.named[name].numel() < needed:
            self.named[name] = self.empty.new_empty(needed)
        return self.named[name][:needed].view(shape)

    def zeros(self, name: str, *shape: int, columns: int) -> Tensor:
        """The same with zeros or, if the last one had this shape and number of columns, with its values."""
        found = self(name, *shape)
        if self.shapes.get(name) != (*shape, columns):
            self.shapes[name] = (*shape, columns)
            found.zero_()
        return found


@dataclass
class NearBlock:
    """The queries ``start`` .. ``stop`` of some key heads, and their ``groups`` query heads each, against the keys
    ``first`` .. ``last``, where ``least`` <= j - i <= ``most``. The entry of j - i = 0 in the lines is ``zero``.

    Its pairs are (batch, kv_heads, groups, rows, columns), the queries in reverse order.
    """

    tile: Tile
    kv_heads: slice
    groups: int
    start: int
    stop: int
    first: int
    last: int
    least: int
    most: int
    zero: int
    dtype: torch.dtype

    @property
    def heads(self) -> slice:
        """Its query heads."""
        return slice(self.kv_heads.start * self.groups, self.kv_heads.stop * self.groups)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch rows, key heads, groups, queries."""
        batch, kv_heads = (s.stop - s.start for s in (self.tile.row, self.kv_heads))
        return batch, kv_heads, self.groups, self.stop - self.start

    @property
    def columns(self) -> int:
        """The number of keys."""
        return self.last - self.first

    @property
    def low(self) -> int:
        """The j - i of the last query and the first key, the least of all."""
        return self.first - (self.stop - 1)

    @property
    def entry(self) -> int:
        """The entry of ``low`` in the lines."""
        return self.zero + self.low

    @property
    def places(self) -> int:
        """The number of columns by distance: one for each, to a multiple of 16 for fast products."""
        return -(-(self.columns + self.shape[-1] - 1) // 16) * 16

    # -- queries ------------------------------------------------------------------------------------------------------

    def queries(self, x: Tensor) -> Tensor:
        """The rows of (batch, heads, queries, ...) in the shape of the block."""
        some = x[self.tile.row, self.heads, self.start : self.stop].to(self.dtype)
        return some.flip(2).unflatten(1, (-1, self.groups))

    def give(self, total: Tensor, x: Tensor) -> None:
        """Adds rows in the shape of the block to (batch, heads, queries, ...)."""
        total[self.tile.row, self.heads, self.start : self.stop] += self.unfold(x)

    def unfold(self, x: Tensor) -> Tensor:
        """From the shape of the block to (batch, heads, queries, ...)."""
        return x.flatten(1, 2).flip(2)

    def of_each_query(self, x: Tensor) -> Tensor:
        """The block's heads of (heads, width), to be added to its queries."""
        return x[self.heads].unflatten(0, (-1, self.groups))[None, :, :, None]

    # -- pairs --------------------------------------------------------------------------------------------------------

    def diagonals(self, full: Tensor) -> Tensor:
        """The pairs in rows of ``places`` columns, a view (..., rows, columns)."""
        *leading, rows, column = full.stride()
        assert (rows, column) == (full.size(-1), 1)
        return full.as_strided((*full.shape[:-1], self.columns), (*leading, rows + 1, 1), full.storage_offset())

    def by_distance(self, work: Work, pairs: Tensor) -> Tensor:
        """The inverse of `diagonals`, with zeros elsewhere: only its own elements are ever written."""
        full = work.zeros("by distance", *self.shape, self.places, columns=self.columns)
        self.diagonals(full).copy_(pairs)
        return full

    def hide(self, scores: Tensor) -> None:
        """Writes -inf where a pair is masked."""
        rows = self.shape[-1]
        r = torch.arange(self.low, self.low + self.columns + rows - 1, device=scores.device)
        r = r.as_strided((rows, self.columns), (1, 1))  # a view: nothing is written twice
        seen = self.least - self.low, self.most - self.low - (rows - 1)  # columns that no row masks
        if seen[0] > 0:
            scores[..., : seen[0]].masked_fill_(r[:, : seen[0]] < self.least, -torch.inf)
        if seen[1] < self.columns - 1:
            past = max(seen[1] + 1, 0)
            scores[..., past:].masked_fill_(r[:, past:] > self.most, -torch.inf)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def keys(self, x: Tensor) -> Tensor:
        """The keys of (batch, kv_heads, keys, width)."""
        return x[self.tile.row, self.kv_heads, self.first : self.last].to(self.dtype)

    def give_keys(self, total: Tensor, x: Tensor) -> None:
        """Adds the gradients of the block's keys to those of all."""
        total[self.tile.row, self.kv_heads, self.first : self.last] += x

    def of_keys(self, x: Tensor) -> Tensor:
        """The elements of (batch, heads, keys) for each pair, (batch, kv_heads, groups, 1, columns)."""
        some = x[self.tile.row, self.heads, self.first : self.last].to(self.dtype)
        return some.unflatten(1, (-1, self.groups))[..., None, :]

    def meet_keys(self, work: Work, name: str, left: Tensor, keys: Tensor, plus: Tensor | None = None) -> Tensor:
        """The products of queries with keys, contiguous, and ``plus``."""
        batch, kv_heads, groups, rows = self.shape
        full = work(name, batch * kv_heads, groups * rows, self.columns)
        torch.bmm(left.reshape(*full.shape[:2], -1), keys.flatten(0, 1).mT, out=full)
        full = full.view(*self.shape, self.columns)
        return full if plus is None else full.add_(plus)

    def over_keys(self, pairs: Tensor, right: Tensor) -> Tensor:
        """The sum over keys of pairs times the rows of keys, (..., rows, dim)."""
        return torch.bmm(pairs.flatten(0, 1).flatten(1, 2), right.flatten(0, 1)).view(*self.shape, -1)

    def over_queries(self, pairs: Tensor, left: Tensor) -> Tensor:
        """The sum over queries of pairs times the rows of queries, (batch, kv_heads, keys, dim)."""
        flat = pairs.flatten(0, 1).flatten(1, 2)
        return torch.bmm(flat.mT, left.reshape(*flat.shape[:2], -1)).unflatten(0, self.shape[:2])

    # -- lines --------------------------------------------------------------------------------------------------------

    def _entries(self, table: Tensor) -> tuple[slice, int, int]:
        """The slice of a table's entries, and how many are missing before and after it."""
        size = table.size(1)
        first = min(max(self.entry, 0), size)
        last = min(max(self.entry + self.places, first), size)
        front = min(max(-self.entry, 0), self.places)
        return slice(first, last), front, self.places - front - (last - first)

    def of_line(self, table: Tensor) -> Tensor:
        """The entries of (heads or 1, distances) for each pair, a view (1, kv_heads or 1, groups or 1, rows, columns).
        The end entries are repeated for masked pairs, since a function may not be defined for 0."""
        here, front, back = self._entries(table)
        line = table[:, here] if table.size(0) == 1 else table[self.heads, here]
        line = F.pad(line, (front, back), mode="replicate") if front or back else line
        line = line.unflatten(0, (1, 1) if line.size(0) == 1 else (-1, self.groups))[None, :, :, None]
        shape, strides = (self.shape[-1], self.columns), (1, 1)
        return line.as_strided((*line.shape[:3], *shape), (*line.stride()[:3], *strides), line.storage_offset())

    def give_line(self, total: Tensor, x: Tensor) -> None:
        """Adds (heads, places) to (heads, distances)."""
        here, front, back = self._entries(total)
        total[self.heads, here] += x[:, front : self.places - back]

    def give_of_line(self, total: Tensor, x: Tensor, kv_heads: slice) -> None:
        """Adds the gradient of what `of_line` returned for some of its key heads."""
        rows, past = self.shape[-1], self.places - self.columns + 1
        # Each row starts one place after the last, by padding rows and cutting.
        x = F.pad(x[0].flatten(0, 1), (0, past)).flatten(-2)[..., :-rows].unflatten(-1, (rows, -1))
        first = self.kv_heads.start
        place = replace(self, kv_heads=slice(first + kv_heads.start, first + kv_heads.stop))
        place.give_line(total, x.sum(-2))

    def _each(self, table: Tensor) -> tuple[Tensor, slice]:
        """Vectors by distance for every head and batch row, (all, entries, width), and the columns of these entries in
        the block's places."""
        here, front, back = self._entries(table)
        line = table[:, here] if table.size(0) == 1 else table[self.heads, here]
        line = line.unflatten(0, (1, 1) if line.size(0) == 1 else (-1, self.groups))[None]
        return line.expand(*self.shape[:3], -1, -1).reshape(-1, *line.shape[-2:]), slice(front, self.places - back)

    def meet_line(self, work: Work, left: Tensor, table: Tensor) -> Tensor:
        """The products of queries with the vectors by distance, for each pair, a view."""
        line, columns = self._each(table)
        met = work("met", line.size(0), self.shape[-1], self.places)
        met[..., : columns.start] = 0.0
        met[..., columns.stop :] = 0.0
        torch.bmm(left.flatten(0, 2), line.mT, out=met[..., columns])
        return self.diagonals(met.view(*self.shape, -1))

    def over_line(self, by_distance: Tensor, table: Tensor) -> Tensor:
        """The sum over distances of pairs times their vectors, (..., rows, width)."""
        line, columns = self._each(table)
        return torch.bmm(by_distance.flatten(0, 2)[..., columns], line).view(*self.shape, -1)

    def give_vectors(self, total: Tensor, by_distance: Tensor, left: Tensor) -> None:
        """Adds the sum over queries of pairs times the rows of queries to (heads or 1, distances, width)."""
        here, front, back = self._entries(total)
        pairs = by_distance.flatten(0, 2)[..., front : self.places - back]
        x = torch.bmm(pairs.mT, left.flatten(0, 2)).unflatten(0, self.shape[:3]).sum(0).flatten(0, 1)
        if total.size(0) == 1:
            total[:, here] += x.sum(0, keepdim=True)
        else:
            total[self.heads, here] += x


def blocks(
    tile: Tile, low: int, high: int, zero: int, query: Tensor, key: Tensor, dtype: torch.dtype
) -> Iterator[NearBlock]:
    """The pairs of a tile with low <= j - i <= high, in blocks; ``zero`` is the entry of j - i = 0 in the lines."""
    low, high = max(low, tile.first - tile.stop + 1), min(high, tile.last - 1 - tile.start)
    low = low if tile.low is None else max(low, tile.low)
    high = high if tile.high is None else min(high, tile.high)
    if low > high:
        return
    batch, kv_heads = tile.row.stop - tile.row.start, key.size(1)
    groups = query.size(1) // kv_heads
    rows, keys, scores = ON_GPU if on_gpu(query) else (ROWS, KEYS, SCORES)
    start, stop = max(tile.start, tile.first - high), min(tile.stop, tile.last - low)
    at_once = max(1, scores // (rows * min(keys, high - low + rows) * batch * groups))
    for a in reversed(range(start, stop, rows)):
        b = min(a + rows, stop)
        first, last = max(tile.first, a + low), min(tile.last, b + high)
        for h in range(0, kv_heads, at_once):
            some = slice(h, min(h + at_once, kv_heads))
            for k in range(first, last, keys):
                yield NearBlock(tile, some, groups, a, b, k, min(k + keys, last), low, high, zero, dtype)
