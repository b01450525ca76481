"""Diagonal bands of query-key pairs, in memory layouts by key and by distance.

A band is some queries against the keys at index differences low .. high from each. The pairs of a block of queries can
be stored with a column for each key, where products with keys and values are matrix products, or with a column for each
distance, where a bias is a row and products with vectors by distance are matrix products. Either is a strided view of
the other: in a matrix with rows - 1 more columns, the pairs are on diagonals, at strides (columns + 1, 1). Nothing is
gathered.

A narrow band is stored by distance, since a block of queries covers more keys than each query does. A wide band is
stored by key, with queries in reverse order: the distance then increases along both rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.positions.tiles import Tile

# Queries and keys of a block of a wide band, and the scores computed at once, for which products are fastest and blocks
# stay in cache (measured: docs/log.md).
ROWS = 128
KEYS = 1024
SCORES = 2**20
NARROW = 256  # bands of fewer distances are processed whole, many blocks of queries at once


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
class Band:
    """``blocks`` blocks of ``rows`` queries from ``start`` on, of some key heads and their ``groups`` query heads each,
    against the keys at ``distances`` distances from j - i = ``low`` on. Its entries in the lines start at ``entry``.

    ``is_keyed``: its pairs, (batch, kv_heads, blocks, groups, rows, columns), have a column for each key. It is then a
    single block with queries in reverse order, and ``low`` is the distance of the last query from the first key.
    """

    tile: Tile
    kv_heads: slice
    groups: int
    start: int
    stop: int
    rows: int
    blocks: int
    low: int
    distances: int
    entry: int
    dtype: torch.dtype
    is_keyed: bool = False
    least: int = 0  # the range of unmasked distances of a keyed band
    most: int = 0

    @property
    def window(self) -> int:
        """The number of keys that a block of queries covers."""
        return self.distances - self.rows + 1 if self.is_keyed else self.distances + self.rows - 1

    @property
    def heads(self) -> slice:
        """Its query heads."""
        return slice(self.kv_heads.start * self.groups, self.kv_heads.stop * self.groups)

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Batch rows, key heads, blocks, groups, queries of a block."""
        batch, kv_heads = (s.stop - s.start for s in (self.tile.row, self.kv_heads))
        return batch, kv_heads, self.blocks, self.groups, self.rows

    @property
    def columns(self) -> int:
        """The number of columns of its pairs."""
        return self.window if self.is_keyed else self.distances

    @property
    def places(self) -> int:
        """The number of columns by distance: a keyed band has a multiple of 16, for fast products."""
        return -(-self.distances // 16) * 16 if self.is_keyed else self.distances

    # -- queries ------------------------------------------------------------------------------------------------------

    def queries(self, x: Tensor, past: float = 0.0) -> Tensor:
        """The rows of (batch, heads, queries, ...) in the shape of the band, padded with ``past``."""
        part = x[self.tile.row, self.heads, self.start : self.stop].to(self.dtype)
        missing = self.blocks * self.rows - part.size(2)
        if missing:
            part = F.pad(part, (0,) * (2 * (x.dim() - 3)) + (0, missing), value=past)
        part = part.flip(2) if self.is_keyed else part
        return part.unflatten(2, (self.blocks, self.rows)).unflatten(1, (-1, self.groups)).transpose(2, 3)

    def give(self, total: Tensor, x: Tensor) -> None:
        """Adds rows in the shape of the band to (batch, heads, queries, ...)."""
        total[self.tile.row, self.heads, self.start : self.stop] += self.unfold(x)

    def unfold(self, x: Tensor) -> Tensor:
        """From the shape of the band to (batch, heads, queries, ...)."""
        rows = x.transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, :, : self.stop - self.start]
        return rows.flip(2) if self.is_keyed else rows

    def of_each_query(self, x: Tensor) -> Tensor:
        """The band's heads of (heads, width), broadcastable to its queries."""
        return x[self.heads].unflatten(0, (-1, self.groups))[None, :, None, :, None]

    # -- pairs --------------------------------------------------------------------------------------------------------

    def diagonals(self, full: Tensor) -> Tensor:
        """The pairs on the diagonals of rows with at least columns + rows - 1 elements, a view (..., rows, columns)."""
        *leading, rows, column = full.stride()
        assert (rows, column) == (full.size(-1), 1)
        return full.as_strided((*full.shape[:-1], self.columns), (*leading, rows + 1, 1), full.storage_offset())

    def _spread(self, work: Work, name: str, pairs: Tensor) -> Tensor:
        """The inverse of `diagonals`, with zeros elsewhere, which are never overwritten."""
        width = self.places if self.is_keyed else self.window
        full = work.zeros(name, *self.shape, width, columns=self.columns)
        self.diagonals(full).copy_(pairs)
        return full

    def by_key(self, work: Work, name: str, pairs: Tensor) -> Tensor:
        """The pairs with a column for each key of a window, zeros elsewhere."""
        return pairs if self.is_keyed else self._spread(work, name, pairs)

    def by_distance(self, work: Work, name: str, pairs: Tensor) -> Tensor:
        """The pairs with a column for each distance, zeros elsewhere."""
        return self._spread(work, name, pairs) if self.is_keyed else pairs

    def hide(self, scores: Tensor) -> None:
        """Sets -inf where there is no key, or the pair is masked."""
        if self.is_keyed:
            r = torch.arange(self.low, self.low + self.distances, device=scores.device)
            r = r.as_strided((self.rows, self.window), (1, 1))  # a view, so nothing is repeated in memory
            seen = self.least - self.low, self.most - self.low - (self.rows - 1)  # the columns without masked pairs
            if seen[0] > 0:
                scores[..., : seen[0]].masked_fill_(r[:, : seen[0]] < self.least, -torch.inf)
            if seen[1] < self.window - 1:
                past = max(seen[1] + 1, 0)
                scores[..., past:].masked_fill_(r[:, past:] > self.most, -torch.inf)
            return
        first, last = self.span
        if first >= self.tile.first and last <= self.tile.last:
            return
        query = torch.arange(self.start, self.start + self.blocks * self.rows, device=scores.device)
        key = query[:, None] + self.low + torch.arange(self.distances, device=scores.device)
        outside = (key < self.tile.first) | (key >= self.tile.last)
        scores.masked_fill_(outside.unflatten(0, (self.blocks, self.rows))[:, None], -torch.inf)

    # -- keys ---------------------------------------------------------------------------------------------------------

    @property
    def span(self) -> tuple[int, int]:
        """The range of keys of all windows, which may exceed the tile."""
        if self.is_keyed:
            return self.low + self.stop - 1, self.low + self.stop - 1 + self.window
        first = self.start + self.low
        return first, first + self.blocks * self.rows + self.distances - 1

    @property
    def inside(self) -> slice:
        """The columns of a single block's window that have keys; all columns for several blocks, which are padded."""
        if self.blocks > 1:
            return slice(0, self.window)
        first, last = self.span
        return slice(max(self.tile.first - first, 0), self.window - max(last - self.tile.last, 0))

    def windows(self, x: Tensor, fill: bool = False) -> Tensor:
        """The keys of each block, (batch, kv_heads, blocks, window, ...), padded with zeros; of a single block only
        those ``inside``, unless ``fill``."""
        first, last = self.span
        low, high = max(first, self.tile.first), min(last, self.tile.last)
        inside = x[self.tile.row, self.kv_heads, low : max(low, high)].to(self.dtype)
        if self.blocks == 1 and not fill:
            return inside[:, :, None]
        front = min(max(low - first, 0), last - first)
        back = last - first - front - inside.size(2)
        if front or back:
            inside = F.pad(inside, (0,) * (2 * (x.dim() - 3)) + (front, back))
        if self.blocks == 1:
            return inside[:, :, None]
        return inside.unfold(2, self.window, self.rows).movedim(-1, 3)

    def give_windows(self, total: Tensor, x: Tensor) -> None:
        """Adds the gradients of windows, whole or only ``inside``, to those of the keys."""
        first, last = self.span
        low, high = max(first, self.tile.first), min(last, self.tile.last)
        if self.blocks == 1:
            part = x[:, :, 0] if x.size(3) == high - low else x[:, :, 0, low - first : high - first]
            total[self.tile.row, self.kv_heads, low:high] += part
            return
        # Windows are at most twice as long as blocks.
        over = x.new_zeros((*x.shape[:2], (self.blocks + 1) * self.rows, *x.shape[4:]))
        per_block = over.unflatten(2, (self.blocks + 1, self.rows))
        per_block[:, :, :-1] += x[:, :, :, : self.rows]
        per_block[:, :, 1:, : self.window - self.rows] += x[:, :, :, self.rows :]
        if low < high:
            total[self.tile.row, self.kv_heads, low:high] += over[:, :, low - first : high - first]

    def meet_keys(self, work: Work, name: str, left: Tensor, keys: Tensor, plus: Tensor | None = None) -> Tensor:
        """left . key of every pair, contiguous, plus ``plus``."""
        batch, kv_heads, blocks, groups, rows = self.shape
        full = work(name if self.is_keyed else "products", batch * kv_heads * blocks, groups * rows, self.window)
        inside = self.inside
        full[..., : inside.start] = 0.0
        full[..., inside.stop :] = 0.0
        keys = keys.reshape(full.size(0), inside.stop - inside.start, -1)
        torch.bmm(left.reshape(*full.shape[:2], -1), keys.mT, out=full[..., inside])
        full = full.view(*self.shape, self.window)
        if self.is_keyed:
            return full if plus is None else full.add_(plus)
        found = work(name, *self.shape, self.distances)
        view = self.diagonals(full)
        return found.copy_(view) if plus is None else torch.add(view, plus, out=found)

    def over_keys(self, by_key: Tensor, right: Tensor) -> Tensor:
        """The sum over a window of each pair's number times its key's row, (..., rows, dim)."""
        flat = by_key.flatten(0, 2).flatten(1, 2)[..., self.inside]
        return torch.bmm(flat, right.reshape(flat.size(0), flat.size(2), -1)).view(*self.shape, -1)

    def over_queries(self, by_key: Tensor, left: Tensor) -> Tensor:
        """The sum over queries of each pair's number times its query's row, (batch, kv_heads, blocks, keys, dim)."""
        flat = by_key.flatten(0, 2).flatten(1, 2)[..., self.inside]
        return torch.bmm(flat.mT, left.reshape(*flat.shape[:2], -1)).view(*self.shape[:3], flat.size(2), -1)

    def of_keys(self, x: Tensor) -> Tensor:
        """A number per key and head, (batch, heads, keys), for every pair, a view."""
        by_group = [self.windows(x.unflatten(1, (-1, self.groups))[:, :, g], fill=True) for g in range(self.groups)]
        found = torch.stack(by_group, 3)[..., None, :].contiguous()
        if self.is_keyed:
            return found
        return found.as_strided((*self.shape, self.distances), (*found.stride()[:4], 1, 1), found.storage_offset())

    # -- lines --------------------------------------------------------------------------------------------------------

    def _entries(self, table: Tensor) -> tuple[slice, int, int]:
        """The band's entries of a table, and how many are before and after the table."""
        size = table.size(1)
        first = min(max(self.entry, 0), size)
        last = min(max(self.entry + self.places, first), size)
        front = min(max(-self.entry, 0), self.places)
        return slice(first, last), front, self.places - front - (last - first)

    def of_line(self, table: Tensor) -> Tensor:
        """A table (heads or 1, distances) for every pair, a view (1, kv_heads or 1, 1, groups or 1, rows or 1,
        columns). Beyond the table, where all pairs are masked, its ends are repeated, since a function may not allow
        0."""
        here, front, back = self._entries(table)
        line = table[:, here] if table.size(0) == 1 else table[self.heads, here]
        line = F.pad(line, (front, back), mode="replicate") if front or back else line
        line = line.unflatten(0, (1, 1) if line.size(0) == 1 else (-1, self.groups))[None, :, None, :, None]
        if not self.is_keyed:
            return line
        return line.as_strided(
            (*line.shape[:4], self.rows, self.window), (*line.stride()[:4], 1, 1), line.storage_offset()
        )

    def give_line(self, total: Tensor, x: Tensor) -> None:
        """Adds (heads, columns) to a table (heads, distances)."""
        here, front, back = self._entries(total)
        total[self.heads, here] += x[:, front : self.places - back]

    def give_of_line(self, total: Tensor, x: Tensor, kv_heads: slice) -> None:
        """Adds the gradient of `of_line` for some of its key heads."""
        x = x[0, :, 0].flatten(0, 1)
        if self.is_keyed:  # shifts each row by one more column, by padding and reshaping
            past = self.places - self.columns + 1
            x = F.pad(x, (0, past)).flatten(-2)[..., : -self.rows].unflatten(-1, (self.rows, -1))
        first = self.kv_heads.start
        place = replace(self, kv_heads=slice(first + kv_heads.start, first + kv_heads.stop))
        place.give_line(total, x.sum(-2))

    def _each(self, table: Tensor) -> tuple[Tensor, slice]:
        """Vectors by distance for every batch row, block and head, (all, entries, width), and their columns by
        distance."""
        here, front, back = self._entries(table)
        line = table[:, here] if table.size(0) == 1 else table[self.heads, here]
        line = line.unflatten(0, (1, 1) if line.size(0) == 1 else (-1, self.groups))[None, :, None]
        return line.expand(*self.shape[:4], -1, -1).reshape(-1, *line.shape[-2:]), slice(front, self.places - back)

    def meet_line(self, work: Work, left: Tensor, table: Tensor) -> Tensor:
        """left . vector of every pair's distance, a view."""
        line, columns = self._each(table)
        met = work("met", line.size(0), self.rows, self.places)
        met[..., : columns.start] = 0.0
        met[..., columns.stop :] = 0.0
        torch.bmm(left.flatten(0, 3), line.mT, out=met[..., columns])
        met = met.view(*self.shape, -1)
        return self.diagonals(met) if self.is_keyed else met

    def over_line(self, by_distance: Tensor, table: Tensor) -> Tensor:
        """The sum over distances of each pair's number times its vector, (..., rows, width)."""
        line, columns = self._each(table)
        return torch.bmm(by_distance.flatten(0, 3)[..., columns], line).view(*self.shape, -1)

    def give_vectors(self, total: Tensor, by_distance: Tensor, left: Tensor) -> None:
        """Adds the sum over queries of each pair's number times its query's row to (heads or 1, distances, width)."""
        here, front, back = self._entries(total)
        pairs = by_distance.flatten(0, 3)[..., front : self.places - back]
        x = torch.bmm(pairs.mT, left.flatten(0, 3)).unflatten(0, self.shape[:4]).sum((0, 2)).flatten(0, 1)
        if total.size(0) == 1:
            total[:, here] += x.sum(0, keepdim=True)
        else:
            total[self.heads, here] += x


def bands(
    tile: Tile, low: int, high: int, entry: int, query: Tensor, key: Tensor, dtype: torch.dtype
) -> Iterator[Band]:
    """The pairs of a tile with low <= j - i <= high, as bands; ``entry`` is the entry of j - i = 0 in the lines."""
    low, high = max(low, tile.first - tile.stop + 1), min(high, tile.last - 1 - tile.start)
    if tile.low is not None:
        low = max(low, tile.low)
    if tile.high is not None:
        high = min(high, tile.high)
    if low > high:
        return
    batch, kv_heads = tile.row.stop - tile.row.start, key.size(1)
    groups = query.size(1) // kv_heads
    start, stop = max(tile.start, tile.first - high), min(tile.stop, tile.last - low)
    if high - low < NARROW:
        count = high - low + 1
        rows = max(64, 1 << (count - 2).bit_length() if count > 1 else 1)
        rows = min(rows, stop - start)
        if rows + count - 1 > 2 * rows:  # a single block may cover more
            rows = stop - start
        at_once = max(1, SCORES // (batch * query.size(1) * rows * (rows + count - 1)))
        for a in range(start, stop, rows * at_once):
            b = min(a + rows * at_once, stop)
            blocks, every = -(-(b - a) // rows), slice(0, kv_heads)
            yield Band(tile, every, groups, a, b, rows, blocks, low, count, entry + low, dtype)
        return
    at_once = max(1, SCORES // (ROWS * KEYS * batch * groups))
    for a in reversed(range(start, stop, ROWS)):
        b = min(a + ROWS, stop)
        first, last = max(tile.first, a + low), min(tile.last, b + high)
        for h in range(0, kv_heads, at_once):
            some = slice(h, min(h + at_once, kv_heads))
            for k in range(first, last, KEYS):
                lowest, reached = k - (b - 1), min(KEYS, last - k) + b - a - 1
                place = (lowest, reached, entry + lowest, dtype)
                yield Band(tile, some, groups, a, b, b - a, 1, *place, is_keyed=True, least=low, most=high)
