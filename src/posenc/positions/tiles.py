"""The tiles of attention: which pairs of tokens may see one another, told from two layouts and a visibility.

A tile is a pair of spans that may see one another, with the constants by which key index and query index differ.
Backends take their work from tiles, so packing, padding, gaps, windows, caches and shards are all run by the same code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from posenc.arguments import shown, whole
from posenc.positions.layout import Layout, Span


@dataclass(frozen=True)
class Visibility:
    """Which orders a query sees: none above its own if causal, and none outside a window around it.

    ``left`` and ``right`` are how many places back and forth it sees; None: all.
    """

    is_causal: bool = False
    left: int | None = None
    right: int | None = None

    @property
    def furthest(self) -> int | None:
        """The highest difference of order, key less query, that is seen."""
        if self.is_causal:
            return 0 if self.right is None else min(0, self.right)
        return self.right

    @property
    def sees_everything(self) -> bool:
        """Whether order hides nothing."""
        return not self.is_causal and self.left is None and self.right is None

    def flat(self) -> list[int]:
        """As whole numbers, which an operator takes."""
        has_left, has_right = self.left is not None, self.right is not None
        return [int(self.is_causal), int(has_left), self.left or 0, int(has_right), self.right or 0]

    @staticmethod
    def unflat(numbers: Sequence[int]) -> Visibility:
        """The inverse of `flat`."""
        is_causal, has_left, left, has_right, right = numbers
        return Visibility(bool(is_causal), left if has_left else None, right if has_right else None)


@dataclass(frozen=True)
class Chunk:
    """In the place of a window: a token sees its own chunk of ``size`` coordinates alone, those of its document with
    floor(p_j / size) = floor(p_i / size). ValueError for a size below 1."""

    size: int

    def __post_init__(self) -> None:
        whole("size", self.size)


Window: TypeAlias = "int | tuple[int | None, int | None] | Chunk | None"


def check_window(window: Any) -> tuple[int | None, int | None]:
    """(left, right) of a window: how many places back and forth a query sees, itself not counted; None: all of them.

    A whole number n is the last n keys up to the query itself, as models count them: (n - 1, 0). A `Chunk` is none.
    """
    if window is None:
        return None, None
    if isinstance(window, Sequence) and not isinstance(window, str) and len(window) == 2:
        left, right = (None if end is None else whole("window", end, least=0) for end in window)
        return left, right
    if isinstance(window, (bool, str, Sequence)):
        raise ValueError(f"window must be a number of keys, (left, right), a Chunk or None, got {shown(window)}")
    return whole("window", window) - 1, 0


def window_words(window: Window) -> str:
    """A window as a schedule says it."""
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

    A query i sees a key j where low <= j - i <= high; None: wherever they are. The distance of their coordinates, along
    the one axis, is j - i + ``distance``; None: not known.
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


def _tile(row: slice, q: Span, k: Span, visibility: Visibility) -> Tile | None:
    least = None if visibility.left is None else -visibility.left
    most = visibility.furthest
    start, stop, first, last = q.start, q.stop, k.start, k.stop
    low: int | None = None
    high: int | None = None
    if q.order_step == k.order_step == 1:
        level = (q.order - q.start) - (k.order - k.start)  # the j - i at which orders are equal
        low = None if least is None else least + level
        high = None if most is None else most + level
    elif q.order_step == k.order_step == 0:
        apart = k.order - q.order
        if (least is not None and apart < least) or (most is not None and apart > most):
            return None
    elif k.order_step == 0:  # which queries see the keys at all
        start = start if most is None else max(start, q.start + k.order - most - q.order)
        stop = stop if least is None else min(stop, q.start + k.order - least - q.order + 1)
    else:  # which keys the queries see at all
        first = first if least is None else max(first, k.start + q.order + least - k.order)
        last = last if most is None else min(last, k.start + q.order + most - k.order + 1)
    if high is not None:
        start, last = max(start, first - high), min(last, stop - 1 + high + 1)
    if low is not None:
        stop, first = min(stop, last - 1 - low + 1), max(first, start + low)
    if start >= stop or first >= last:
        return None
    low = None if low is None or first - (stop - 1) >= low else low
    high = None if high is None or last - 1 - start <= high else high
    return Tile(row, start, stop, first, last, low, high, _distance(q, k))


def _distance(q: Span, k: Span) -> int | None:
    """By how much p_j - p_i is more than j - i, where it is the same for all pairs."""
    return None if q.line is None or k.line is None else (k.line - k.start) - (q.line - q.start)


def distances(seen: Sequence[Tile]) -> tuple[int, int] | None:
    """The least and the greatest distance of coordinates that any tile reaches over; None where one is not known."""
    ends = []
    for tile in seen:
        if tile.distance is None:
            return None
        least, most = tile.first - (tile.stop - 1), tile.last - 1 - tile.start
        least = least if tile.low is None else max(least, tile.low)
        most = most if tile.high is None else min(most, tile.high)
        ends.append((least + tile.distance, most + tile.distance))
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else (0, 0)
