"""The tiles of attention: the blocks of query-key pairs that are not masked, from two layouts and a visibility.

A tile is a span of queries and a span of keys with a range of allowed index differences. Backends work on tiles, so the
same code handles packing, padding, gaps, windows, caches and shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from posenc.arguments import shown, whole
from posenc.positions.layout import Layout, Span, flat, unflat

ANY = 2**62  # a limit beyond any difference of two orders


@dataclass(frozen=True)
class Visibility:
    """The orders that a query attends to: none above its own if causal, and none outside a window around it.

    ``left`` and ``right`` are the allowed differences of order before and after the query; None: any.
    """

    is_causal: bool = False
    left: int | None = None
    right: int | None = None

    @property
    def furthest(self) -> int | None:
        """The highest allowed difference of order, key minus query; None: any."""
        if self.is_causal:
            return 0 if self.right is None else min(0, self.right)
        return self.right

    def flat(self) -> list[int]:
        """As ints, for arguments of custom operators."""
        has_left, has_right = self.left is not None, self.right is not None
        return [int(self.is_causal), int(has_left), self.left or 0, int(has_right), self.right or 0]

    @staticmethod
    def unflat(take: Iterator[int]) -> Visibility:
        """The inverse of `flat`, from numbers of which others may follow."""
        is_causal, has_left, left, has_right, right = (next(take) for _ in range(5))
        return Visibility(bool(is_causal), left if has_left else None, right if has_right else None)


@dataclass(frozen=True)
class Chunk:
    """Chunked attention, in place of a window: tokens attend only within their own chunk of ``size`` coordinates of
    their document, floor(p_j / size) = floor(p_i / size). Raises ValueError for a size below 1."""

    size: int

    def __post_init__(self) -> None:
        whole("size", self.size)


Window: TypeAlias = "int | tuple[int | None, int | None] | Chunk | None"


def check_window(window: Any) -> tuple[int | None, int | None]:
    """A window as (left, right): how many keys before and after its own a query attends to; None: any.

    An int n means the last n keys including the query's own: (n - 1, 0). A `Chunk` is not a window.
    """
    if window is None:
        return None, None
    if isinstance(window, Sequence) and not isinstance(window, str) and len(window) == 2:
        if -1 in window:  # FlashAttention's
            ends = tuple(None if end == -1 else end for end in window)
            unlimited = None if ends == (None, None) else ends
            raise ValueError(f"window must have None for no limit, got {shown(window)}: pass window={unlimited}")
        left, right = (None if end is None else whole("window", end, least=0) for end in window)
        return left, right
    if isinstance(window, (bool, str, Sequence)):
        raise ValueError(f"window must be a number of keys, (left, right), a Chunk or None, got {shown(window)}")
    if window == -1:
        raise ValueError("window must be None for no limit, got -1: pass window=None")
    return whole("window", window) - 1, 0


def window_words(window: Window) -> str:
    """A window as text."""
    if window is None:
        return "whole text"
    if isinstance(window, int):
        return f"window of {window} keys"
    if isinstance(window, Chunk):
        return f"chunks of {window.size} tokens"
    back, ahead = ("all" if end is None else str(end) for end in check_window(window))
    return f"window of {back} keys back and {ahead} ahead"


@dataclass(frozen=True)
class Tile:
    """Queries ``start`` to ``stop`` against keys ``first`` to ``last`` of some rows of the batch.

    Query i attends to key j if low <= j - i <= high; None: no limit. The distance of their coordinates, of one axis, is
    j - i + ``distance``; None: unknown.
    """

    row: slice
    start: int
    stop: int
    first: int
    last: int
    low: int | None
    high: int | None
    distance: int | None


def tiles(query: Layout, key: Layout, visibility: Visibility, rows: int) -> Iterator[Tile]:
    """All tiles of a batch of ``rows`` rows, row by row and query span by query span."""
    assert query.rows is not None
    assert key.rows is not None
    if len(query.rows) == 1 and len(key.rows) == 1:
        groups = [(slice(0, rows), query.rows[0], key.rows[0])]
    else:
        groups = [(slice(row, row + 1), query.of_row(row), key.of_row(row)) for row in range(rows)]
    for row, queries, keys in groups:
        for q in queries:
            for k in keys:
                if q.document == k.document:
                    tile = _tile(row, q, k, visibility)
                    if tile is not None:
                        yield tile


@dataclass(frozen=True)
class Tiling:
    """Two layouts and a visibility, as an operator takes them: in a list of whole numbers."""

    query: Layout
    key: Layout
    visibility: Visibility

    def tiles(self, rows: int) -> list[Tile]:
        """The tiles of a batch of ``rows`` rows."""
        return list(tiles(self.query, self.key, self.visibility, rows))

    def flat(self) -> list[int]:
        """As whole numbers."""
        return [*self.visibility.flat(), *flat(self.query), *flat(self.key)]

    @staticmethod
    def unflat(numbers: Sequence[int]) -> Tiling:
        """The inverse of `flat`."""
        take = iter(numbers)
        visibility = Visibility.unflat(take)
        return Tiling(unflat(take), unflat(take), visibility)


def _tile(row: slice, q: Span, k: Span, visibility: Visibility) -> Tile | None:
    """The tile of two spans, or None if every pair of them is masked."""
    least = -ANY if visibility.left is None else -visibility.left  # of the key's order minus the query's
    most = ANY if visibility.furthest is None else visibility.furthest
    start, stop, first, last = q.start, q.stop, k.start, k.stop
    low, high = -ANY, ANY
    if q.order_step == k.order_step == 1:
        level = (q.order - q.start) - (k.order - k.start)  # the j - i at which orders are equal
        low, high = least + level, most + level
    elif q.order_step == 1:  # the keys are of one order: the queries that attend to them
        level = q.start + k.order - q.order
        start, stop = max(start, level - most), min(stop, level - least + 1)
    elif k.order_step == 1:  # the queries are of one order: the keys that they attend to
        level = k.start + q.order - k.order
        first, last = max(first, level + least), min(last, level + most + 1)
    elif not least <= k.order - q.order <= most:
        return None
    start, last = max(start, first - high), min(last, stop + high)
    stop, first = min(stop, last - low), max(first, start + low)
    if start >= stop or first >= last:
        return None
    cuts_low, cuts_high = first - (stop - 1) < low, last - 1 - start > high
    return Tile(row, start, stop, first, last, low if cuts_low else None, high if cuts_high else None, _distance(q, k))


def _distance(q: Span, k: Span) -> int | None:
    """p_j - p_i minus j - i, if it is the same for all pairs."""
    return None if q.line is None or k.line is None else (k.line - k.start) - (q.line - q.start)


def distances(seen: Sequence[Tile]) -> tuple[int, int] | None:
    """The lowest and highest distance of coordinates in any tile; None if one is unknown."""
    ends = []
    for tile in seen:
        if tile.distance is None:
            return None
        least, most = tile.first - (tile.stop - 1), tile.last - 1 - tile.start
        least = least if tile.low is None else max(least, tile.low)
        most = most if tile.high is None else min(most, tile.high)
        ends.append((least + tile.distance, most + tile.distance))
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else (0, 0)
