"""Bands of pairs worked on one by one: whatever a score is made of, by distance, forward and backward.

A band is some queries against the keys at distances low .. high from each, by index. Query and key products of a block
of queries are laid out for all keys that any of them reaches, (queries, window); the band's scores are that matrix read
along its diagonals, a view of strides (window + 1, 1) and of shape (queries, distances). So a bias by distance
is a row,
vectors by distance are met in one product, and a product over the band, zero elsewhere, is one over the window. Nothing
is gathered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.layout import Tile

# Queries and distances of a block of a wide band, and the scores that may be worked on at once: products are then at
# their fastest, and everything that is done to a block finds it in the cache (measured: docs/log.md).
ROWS = 128
DISTANCES = 1025  # with the rows a window of 1152: products like round numbers
SCORES = 2**20
NARROW = 512  # bands of fewer distances are worked on in one go, many blocks of queries at once


@dataclass
class Lines:
    """What the pairs of a call are given by distance; entry 0 is that of the distance ``lowest``.

    ``bias`` (heads, distances); ``vectors`` (heads or 1, distances, width), met by ``meeting`` (batch, heads, queries,
    width) or, where there is none, by the scaled query; ``key_vectors`` (heads or 1, distances, head_dim), met by the
    scaled key; ``values`` (heads or 1, distances, value_dim); ``coefficients`` (any number, heads, distances) of the
    function ``apply``, which comes first or, with ``is_last``, after everything that is added.
    """

    lowest: int
    bias: Tensor | None = None
    vectors: Tensor | None = None
    meeting: Tensor | None = None
    key_vectors: Tensor | None = None
    values: Tensor | None = None
    coefficients: Tensor | None = None
    query_clock: Tensor | None = None
    key_clock: Tensor | None = None
    shift: Tensor | None = None  # added to the query where it meets the key, (heads, head_dim)
    apply: Callable[..., Tensor] | None = None
    is_last: bool = False
    falls: bool = False  # the bias reaches so far down that weights would be denormal numbers

    @property
    def is_first(self) -> bool:
        """Whether the function sees the bare score."""
        return self.apply is not None and not self.is_last

    def zeros(self) -> Lines:
        """Of the same shape, to sum gradients in."""
        zeros = [None if x is None else torch.zeros_like(x) for x in self.tensors]
        return Lines(self.lowest, *zeros)  # type: ignore[arg-type]  # the first nine fields

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All of them, in the order in which the operator takes them."""
        return (
            self.bias,
            self.vectors,
            self.meeting,
            self.key_vectors,
            self.values,
            self.coefficients,
            self.query_clock,
            self.key_clock,
            self.shift,
        )


class Work:
    """Memory that is used again for every block: getting it anew from the system costs as much as filling it."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.empty = like.new_empty(0, dtype=dtype)
        self.named: dict[str, Tensor] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape; what the last one of this name held is lost."""
        needed = math.prod(shape)
        if name not in self.named or self.named[name].numel() < needed:
            self.named[name] = self.empty.new_empty(needed)
        return self.named[name][:needed].view(shape)

    def zeros(self, name: str, *shape: int) -> Tensor:
        """The same, of zeros; where the last one had this shape, with what was written to it since."""
        found = self(name, *shape)
        if self.shapes.get(name) != shape:
            self.shapes[name] = shape
            found.zero_()
        return found


@dataclass
class Band:
    """``blocks`` blocks of ``rows`` queries from ``start`` on, of some key heads and their ``groups`` of query heads,
    against the keys at ``distances`` distances from j - i = ``low`` on. Its entries of the lines begin at ``entry``."""

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

    @property
    def window(self) -> int:
        """The keys that a block of queries reaches over."""
        return self.rows + self.distances - 1

    @property
    def heads(self) -> slice:
        """Its query heads."""
        return slice(self.kv_heads.start * self.groups, self.kv_heads.stop * self.groups)

    @property
    def line(self) -> slice:
        """Its entries of the lines."""
        return slice(self.entry, self.entry + self.distances)

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Batch rows, key heads, blocks, groups, queries of a block."""
        batch, kv_heads = (s.stop - s.start for s in (self.tile.row, self.kv_heads))
        return batch, kv_heads, self.blocks, self.groups, self.rows

    def queries(self, x: Tensor, past: float = 0.0) -> Tensor:
        """The rows of (batch, heads, queries, ...), in the shape of the band, with ``past`` after the last."""
        part = x[self.tile.row, self.heads, self.start : self.stop].to(self.dtype)
        missing = self.blocks * self.rows - part.size(2)
        if missing:
            part = F.pad(part, (0,) * (2 * (x.dim() - 3)) + (0, missing), value=past)
        return part.unflatten(2, (self.blocks, self.rows)).unflatten(1, (-1, self.groups)).transpose(2, 3)

    def give(self, total: Tensor, x: Tensor) -> None:
        """Adds rows in the shape of the band to (batch, heads, queries, ...)."""
        rows = self.unfold(x)
        total[self.tile.row, self.heads, self.start : self.stop] += rows

    def unfold(self, x: Tensor) -> Tensor:
        """From the shape of the band to (batch, heads, queries, ...)."""
        return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, :, : self.stop - self.start]

    @property
    def span(self) -> tuple[int, int]:
        """The keys that all windows reach over, which may lie before the first and past the last of the tile."""
        first = self.start + self.low
        return first, first + self.blocks * self.rows + self.distances - 1

    @property
    def columns(self) -> slice:
        """Of a lone block the columns of its window that have keys; of several all, since theirs are filled up."""
        if self.blocks > 1:
            return slice(0, self.window)
        first, last = self.span
        return slice(max(self.tile.first - first, 0), self.window - max(last - self.tile.last, 0))

    def windows(self, x: Tensor, fill: bool = False) -> Tensor:
        """The keys of each block, (batch, kv_heads, blocks, window, ...), with zeros where there are none; of a lone
        block those of its ``columns`` alone, unless they are to be filled up."""
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
        """Adds the gradients of windows, whole or of their columns alone, to those of the keys."""
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

    def products(self, work: Work, left: Tensor, right: Tensor) -> Tensor:
        """left . right of every query and key of a window, (batch, kv_heads, blocks, groups, rows, window). The next
        products take their place."""
        batch, kv_heads, blocks, groups, rows = self.shape
        full = work("products", batch * kv_heads * blocks, groups * rows, self.window)
        columns = self.columns
        full[..., : columns.start] = 0.0
        full[..., columns.stop :] = 0.0
        right = right.reshape(full.size(0), columns.stop - columns.start, -1)
        torch.bmm(left.reshape(*full.shape[:2], -1), right.mT, out=full[..., columns])
        return full.view(*self.shape, self.window)

    def diagonals(self, full: Tensor) -> Tensor:
        """The band of (..., rows, window), one column a distance, as a view (..., rows, distances)."""
        *leading, rows, window = full.stride()
        assert (rows, window) == (self.window, 1)
        return full.as_strided(
            (*full.shape[:-1], self.distances), (*leading, self.window + 1, 1), full.storage_offset()
        )

    def spread(self, work: Work, name: str, band: Tensor) -> Tensor:
        """The band of scores laid out over the windows, zeros elsewhere: only its own places are ever written to."""
        full = work.zeros(name, *self.shape, self.window)
        self.diagonals(full).copy_(band)
        return full

    def over_keys(self, full: Tensor, right: Tensor) -> Tensor:
        """The sum over a window of full times right, (..., rows, dim)."""
        flat = full.flatten(0, 2).flatten(1, 2)[..., self.columns]
        return torch.bmm(flat, right.reshape(flat.size(0), flat.size(2), -1)).view(*self.shape, -1)

    def over_queries(self, full: Tensor, left: Tensor) -> Tensor:
        """The sum over queries of full times left, (batch, kv_heads, blocks, columns of the window, dim)."""
        flat = full.flatten(0, 2).flatten(1, 2)[..., self.columns]
        return torch.bmm(flat.mT, left.reshape(*flat.shape[:2], -1)).view(*self.shape[:3], flat.size(2), -1)

    def per_head(self, line: Tensor) -> Tensor:
        """Of (heads or 1, distances, ...) the band's entries, (1, kv_heads or 1, 1, groups or 1, 1, distances, ...)."""
        line = line[:, self.line] if line.size(0) == 1 else line[self.heads, self.line]
        split = (1, 1) if line.size(0) == 1 else (-1, self.groups)
        return line.unflatten(0, split)[None, :, None, :, None]

    def each(self, line: Tensor) -> Tensor:
        """The same for every head, block and row of the batch, (all, distances, width)."""
        entries = self.per_head(line)[:, :, :, :, 0]
        batch, kv_heads, blocks, groups, _ = self.shape
        return entries.expand(batch, kv_heads, blocks, groups, -1, -1).reshape(-1, *entries.shape[-2:])

    def gather_each(self, total: Tensor, x: Tensor) -> None:
        """Adds (all, distances, width) to (heads or 1, distances, width)."""
        per_head = x.unflatten(0, self.shape[:4]).sum((0, 2)).flatten(0, 1)
        if total.size(0) == 1:
            total[:, self.line] += per_head.sum(0, keepdim=True)
        else:
            total[self.heads, self.line] += per_head

    def of_each_query(self, x: Tensor) -> Tensor:
        """Of (heads, width) the band's, to be added to its queries."""
        return x[self.heads].unflatten(0, (-1, self.groups))[None, :, None, :, None]

    def outside(self, device: torch.device) -> Tensor | None:
        """Which pairs have no key, (blocks, 1, rows, distances), or None."""
        first, last = self.span
        if first >= self.tile.first and last <= self.tile.last:
            return None
        query = torch.arange(self.start, self.start + self.blocks * self.rows, device=device)
        key = query[:, None] + self.low + torch.arange(self.distances, device=device)
        return ((key < self.tile.first) | (key >= self.tile.last)).unflatten(0, (self.blocks, self.rows))[:, None]


def bands(
    tile: Tile, low: int, high: int, entry: int, query: Tensor, key: Tensor, dtype: torch.dtype
) -> Iterator[Band]:
    """The pairs of a tile with low <= j - i <= high, in bands; ``entry`` is that of j - i = 0 in the lines."""
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

    def some(kv: slice, a: int, b: int, rows: int, blocks: int, least: int, count: int) -> Band:
        return Band(tile, kv, groups, a, b, rows, blocks, least, count, entry + least, dtype)

    if high - low < NARROW:
        count = high - low + 1
        rows = max(64, 1 << (count - 2).bit_length() if count > 1 else 1)
        rows = min(rows, stop - start)
        if rows + count - 1 > 2 * rows:  # a lone block may reach further
            rows = stop - start
        at_once = max(1, SCORES // (batch * query.size(1) * rows * (rows + count - 1)))
        for a in range(start, stop, rows * at_once):
            b = min(a + rows * at_once, stop)
            yield some(slice(0, kv_heads), a, b, rows, -(-(b - a) // rows), low, count)
        return
    at_once = max(1, SCORES // (ROWS * (DISTANCES - 1) * batch * groups))
    for a in reversed(range(start, stop, ROWS)):
        b = min(a + ROWS, stop)
        least, most = max(low, tile.first - (b - 1)), min(high, tile.last - 1 - a)
        for h in range(0, kv_heads, at_once):
            for top in range(most, least - 1, -DISTANCES):
                bottom = max(least, top - DISTANCES + 1)
                yield some(slice(h, min(h + at_once, kv_heads)), a, b, b - a, 1, bottom, top - bottom + 1)
