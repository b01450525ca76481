"""Bands of pairs worked on one by one: whatever a score is made of, by distance, forward and backward.

A band is some queries against the keys at distances low .. high from each, by index. Query and key products of a block
of queries are laid out for all keys that any of them reaches, (queries, window); the band's scores are that matrix read
along its diagonals, a view of strides (window + 1, 1) and of shape (queries, distances). So a bias by distance is a row,
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

from posenc.backends.fused import merge
from posenc.layout import Tile

# Queries and distances of a block of a wide band, and the scores that may be worked on at once: products are then at
# their fastest, and everything that is done to a block finds it in the cache (measured: docs/log.md).
ROWS = 128
DISTANCES = 1025  # with the rows a window of 1152: products like round numbers
SCORES = 2**20
NARROW = 512  # bands of fewer distances are worked on in one go, many blocks of queries at once
PIECE = 2**17  # scores that a function is applied to at a time
FAINT = -80.0  # weights below e to this power are taken for 0: they would soon be denormal numbers, which are slow


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


# -- scores -----------------------------------------------------------------------------------------------------------


def _key_meets(band: Band, keys: Tensor, line: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """What keys give by the vectors they meet, for some keys of a window at a time: their slice, the products, what is
    to be added for (all, rows, keys), a view of them, and the vectors."""
    rows, window, lowest = band.rows, band.window, band.entry - (band.rows - 1)
    # Distances off the band have no pair; the vectors at the line's ends stand for them.
    every = torch.arange(lowest, lowest + window + rows - 1, device=line.device).clamp(0, line.size(1) - 1)
    batch, kv_heads, blocks, groups, _ = band.shape
    for first in range(0, window, rows):
        last = min(first + rows, window)
        mine = every[first : last + rows - 1].flip(0)
        vectors = line[band.heads if line.size(0) > 1 else slice(None)][:, mine]
        split = (1, 1) if line.size(0) == 1 else (-1, groups)
        wide = vectors.unflatten(0, split)[None, :, None].expand(batch, kv_heads, blocks, groups, -1, -1)
        met = keys[:, :, :, None, first:last].expand(-1, -1, -1, groups, -1, -1)
        products = (met @ wide.mT).contiguous()
        places = products.size(-1)
        view = products.as_strided(
            (*products.shape[:4], rows, last - first), (*products.stride()[:4], 1, places - 1), last - first - 1
        )
        yield slice(first, last), products, view, vectors


def _scores(
    band: Band, work: Work, q: Tensor, key: Tensor, scale: float, lines: Lines, is_backward: bool
) -> tuple[Tensor, Tensor | None]:
    """The scores of a band, (..., rows, distances), side by side, which exponentials are far faster on; and, for the
    backward pass, what ``apply`` was given."""
    shifted = q if lines.shift is None else q + band.of_each_query(lines.shift)
    full = band.products(work, shifted * scale, band.windows(key))
    scores = work("band", *band.shape, band.distances)
    bare: Tensor | None = None
    if lines.is_first:
        bare = _apply(band, work, scores.copy_(band.diagonals(full)), lines, is_backward)
        if lines.key_vectors is not None:
            full.zero_()
    if lines.key_vectors is not None:
        for where, _, view, _ in _key_meets(band, band.windows(key, fill=True) * scale, lines.key_vectors):
            full[..., where] += view
    if lines.is_first:
        if lines.key_vectors is not None:
            scores += band.diagonals(full)
        if lines.vectors is not None:
            scores += _met(band, work, q, scale, lines)
    elif lines.vectors is not None:
        torch.add(band.diagonals(full), _met(band, work, q, scale, lines), out=scores)
    else:
        scores.copy_(band.diagonals(full))
    if lines.key_clock is not None and lines.query_clock is not None:
        # Counted from the tile's first key, in the clock's own precision: readings grow with the text, differences not.
        start = lines.key_clock[..., band.tile.first, None]
        scores += band.queries(lines.query_clock - start)[..., None]
        scores -= _band_of_keys(band, _grouped_windows(band, lines.key_clock - start))
    if lines.bias is not None:
        scores += band.per_head(lines.bias)
    if lines.apply is not None and not lines.is_first:
        bare = _apply(band, work, scores, lines, is_backward)
    outside = band.outside(q.device)
    if outside is not None:
        scores.masked_fill_(outside, -torch.inf)
    return scores, bare


def _parts(band: Band, lines: Lines) -> Iterator[tuple[tuple[slice, ...], int, tuple[Tensor, ...]]]:
    """The band a piece at a time, as an index into its scores, the key head, and the coefficients there. What a function
    makes of a piece is got anew every time, and small enough for memory that the process has already."""
    given = () if lines.coefficients is None else tuple(band.per_head(c) for c in lines.coefficients)
    batch, kv_heads, blocks, groups, rows = band.shape
    step = -(-PIECE // (batch * blocks * groups * band.distances))
    for h in range(kv_heads):
        here = tuple(c[:, h : h + 1] if c.size(1) > 1 else c for c in given)
        for row in range(0, rows, step):
            yield (slice(None), slice(h, h + 1), slice(None), slice(None), slice(row, row + step)), h, here


def _apply(band: Band, work: Work, scores: Tensor, lines: Lines, is_backward: bool) -> Tensor | None:
    """Applies the function to the scores, in place; gives what they were, for the backward pass."""
    assert lines.apply is not None
    bare = work("bare", *scores.shape).copy_(scores) if is_backward else None
    for where, _, given in _parts(band, lines):
        scores[where] = lines.apply(scores[where], *given)
    return bare


def _pull(band: Band, d_scores: Tensor, bare: Tensor | None, lines: Lines, d_lines: Lines) -> None:
    """Takes the gradient of what the function gave back to what it was given, in place, and to its coefficients."""
    assert lines.apply is not None
    assert bare is not None
    for where, h, given in _parts(band, lines):
        _, pullback, *_ = torch.func.vjp(lines.apply, bare[where], *given)
        d_bare, *d_given = pullback(d_scores[where])
        first = band.heads.start + h * band.groups
        for n, d in enumerate(d_given):
            assert d_lines.coefficients is not None
            d_lines.coefficients[n, first : first + band.groups, band.line] += d.reshape(-1, band.distances)
        d_scores[where] = d_bare  # last, since the gradient of a coefficient may be the same memory


def _met(band: Band, work: Work, q: Tensor, scale: float, lines: Lines) -> Tensor:
    """The products of queries with the vectors of their distances."""
    assert lines.vectors is not None
    meeting = q * scale if lines.meeting is None else band.queries(lines.meeting)
    met = work("met", math.prod(band.shape[:4]), band.rows, band.distances)
    torch.bmm(meeting.flatten(0, 3), band.each(lines.vectors).mT, out=met)
    return met.view(*band.shape, -1)


def _weights(scores: Tensor, offset: Tensor, lines: Lines) -> Tensor:
    """e^(scores - offset) in place; faint ones are 0 where the bias falls so far that they would be denormal."""
    scores.sub_(offset)
    if lines.falls:
        F.threshold(scores, FAINT, -torch.inf, inplace=True)
    return scores.exp_()


def _grouped_windows(band: Band, clock: Tensor) -> Tensor:
    """The readings of (batch, heads, keys) in the windows, (batch, kv_heads, blocks, groups, window)."""
    by_group = [band.windows(clock.unflatten(1, (-1, band.groups))[:, :, g], fill=True) for g in range(band.groups)]
    return torch.stack(by_group, 3).contiguous()


def _band_of_keys(band: Band, windows: Tensor) -> Tensor:
    """Of one number for each key of a window that of every pair, (..., rows, distances), a view."""
    return windows.as_strided(
        (*windows.shape[:4], band.rows, band.distances), (*windows.stride()[:4], 1, 1), windows.storage_offset()
    )


def forward(
    band: Band,
    work: Work,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    lines: Lines,
    out: Tensor,
    lse: Tensor,
) -> None:
    """Merges the attention of a band into ``out`` and ``lse``."""
    scores, _ = _scores(band, work, band.queries(query), key, scale, lines, False)
    highest = scores.amax(-1, keepdim=True)
    highest = highest.masked_fill_(highest == -torch.inf, 0.0)
    weights = _weights(scores, highest, lines)
    sums = weights.sum(-1, keepdim=True)
    result = band.over_keys(band.spread(work, "spread", weights), band.windows(value))
    if lines.values is not None:
        result += torch.bmm(weights.flatten(0, 3), band.each(lines.values)).view(result.shape)
    result.div_(sums.clamp(min=torch.finfo(sums.dtype).tiny))
    where = (band.tile.row, band.heads, slice(band.start, band.stop))
    merge(out[where], lse[where], band.unfold(result), band.unfold((highest + sums.log())[..., 0]))


def backward(
    band: Band,
    work: Work,
    dout: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lse: Tensor,
    delta: Tensor,
    scale: float,
    lines: Lines,
    grads: tuple[Tensor, Tensor, Tensor, Lines],
) -> None:
    """Adds the gradients through a band. ``delta`` is what the softmax takes from every pair of a row."""
    dq, dk, dv, d_lines = grads
    q, do, keys = band.queries(query), band.queries(dout), band.windows(key)
    scores, bare = _scores(band, work, q, key, scale, lines, True)
    row_lse = band.queries(lse, past=torch.inf)[..., None]
    weights = _weights(scores, row_lse.masked_fill(row_lse == -torch.inf, 0.0), lines)
    band.give_windows(dv, band.over_queries(band.spread(work, "spread", weights), do))
    d_weights = band.diagonals(band.products(work, do, band.windows(value)))
    d_scores = torch.sub(d_weights, band.queries(delta)[..., None], out=work("d_band", *weights.shape))
    if lines.values is not None and d_lines.values is not None:
        do_all, all_weights = do.flatten(0, 3), weights.flatten(0, 3)
        d_scores += torch.bmm(do_all, band.each(lines.values).mT).view(d_scores.shape)
        band.gather_each(d_lines.values, torch.bmm(all_weights.mT, do_all))
    d_scores.mul_(weights)

    if lines.apply is not None and not lines.is_first:
        _pull(band, d_scores, bare, lines, d_lines)
    if lines.bias is not None and d_lines.bias is not None:
        d_lines.bias[band.heads, band.line] += d_scores.sum((0, 2, 4)).flatten(0, 1)
    dq_rows = torch.zeros_like(q)
    if lines.vectors is not None and d_lines.vectors is not None:
        meeting = (q * scale if lines.meeting is None else band.queries(lines.meeting)).flatten(0, 3)
        all_d = d_scores.flatten(0, 3)
        d_meeting = torch.bmm(all_d, band.each(lines.vectors)).view(*band.shape, -1)
        if lines.meeting is None:
            dq_rows += d_meeting
        else:
            assert d_lines.meeting is not None
            band.give(d_lines.meeting, d_meeting)
        band.gather_each(d_lines.vectors, torch.bmm(all_d.mT, meeting))
    dk_windows: Tensor | None = None
    if lines.key_vectors is not None and d_lines.key_vectors is not None:
        d_full = band.spread(work, "d_spread", d_scores)
        filled = band.windows(key, fill=True)
        dk_windows = torch.zeros_like(filled, memory_format=torch.contiguous_format)
        _key_meets_backward(band, filled * scale, lines.key_vectors, d_full, dk_windows, d_lines.key_vectors)
    if lines.query_clock is not None and d_lines.query_clock is not None and d_lines.key_clock is not None:
        band.give(d_lines.query_clock, d_scores.sum(-1))
        by_key = band.spread(work, "d_spread", d_scores).sum(-2)
        for g in range(band.groups):
            total = d_lines.key_clock.unflatten(1, (-1, band.groups))[:, :, g]
            band.give_windows(total, -by_key[:, :, :, g, :])
    if lines.apply is not None and lines.is_first:
        _pull(band, d_scores, bare, lines, d_lines)
    d_full = band.spread(work, "d_spread", d_scores)
    dq_part = band.over_keys(d_full, keys)
    if lines.shift is not None and d_lines.shift is not None:
        d_lines.shift[band.heads] += dq_part.sum((0, 2, 4)).flatten(0, 1) * scale
        q = q + band.of_each_query(lines.shift)
    band.give(dq, dq_rows.add_(dq_part).mul_(scale))
    band.give_windows(dk, band.over_queries(d_full, q).mul_(scale))
    if dk_windows is not None:
        band.give_windows(dk, dk_windows.mul_(scale))


def _key_meets_backward(band: Band, keys: Tensor, line: Tensor, d_full: Tensor, dk: Tensor, d_line: Tensor) -> None:
    """Adds to the gradients of the scaled keys and of the vectors that they meet."""
    lowest = band.entry - (band.rows - 1)
    every = torch.arange(lowest, lowest + band.window + band.rows - 1, device=line.device).clamp(0, line.size(1) - 1)
    for where, products, view, vectors in _key_meets(band, keys, line):
        d_products = products.zero_()
        view.copy_(d_full[..., where])
        split = (1, 1) if line.size(0) == 1 else (-1, band.groups)
        wide = vectors.unflatten(0, split)[None, :, None]
        dk[:, :, :, where] += (d_products @ wide).sum(3)
        met = keys[:, :, :, None, where]
        d_vectors = (d_products.mT @ met).sum((0, 2)).flatten(0, 1)
        d_vectors = d_vectors.sum(0, keepdim=True) if line.size(0) == 1 else d_vectors
        entries = every[where.start : where.stop + band.rows - 1].flip(0)
        heads = slice(None) if line.size(0) == 1 else band.heads
        d_line[heads] = d_line[heads].index_add(1, entries, d_vectors)
