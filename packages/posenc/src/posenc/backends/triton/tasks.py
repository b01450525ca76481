"""The tasks of the kernels' programs, as integers on the device, from layouts and without reading from the device.

A tile is ten numbers: queries start .. stop, keys first .. last, low <= j - i <= high, and for each of `TABLES` the
entry of j = i. A task is five: the batch row, the tokens start .. stop of its block, and the range of its tiles.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from posenc.backends import operands as given
from posenc.backends.triton.lists import KEPT, on_device
from posenc.positions.layout import Layout
from posenc.positions.tiles import Tile, Tiling, distances

TABLES = ("bias", "vectors", "values", "factor")  # those that the kernels support
LOWS = tuple(given.TABLES.index(name) for name in TABLES)
ANY = 2**30  # beyond any index, and half the range of int32
WIDTHS = (5, 5, 6 + len(TABLES), 6 + len(TABLES))  # of tasks and tiles of both sides
ALIGNED = 4  # integers: Triton compiles for addresses that are multiples of 16 bytes

SPAN = 128  # tokens of a block of which is known whether it counts
# Arguments that differ from call to call: of these no kernel is compiled anew for 1, or for multiples of 16. Strides
# are not among them, since rows are read in one piece only if they are known to be aligned.
LENGTHS = (
    "queries", "keys", "bias_entries", "vectors_entries", "values_entries", "factor_entries",
    "bias_head", "vectors_head", "values_head", "factor_head", "slopes_head",
    "past", "least_r", "low", "lead", "count", "batch", "own", "blocks", "blocks_q", "blocks_k", "place_q_row",
    "place_k_row", "highest_head",
)  # fmt: skip

Numbers: TypeAlias = tuple[int, ...]


class Tasks:
    """Side 0: blocks of queries, each with its tiles; side 1: blocks of keys.

    ``tasks`` are (count, 5) and ``tiles`` (tiles, 10) of both sides, int32, parts of one tensor ``numbers``. ``rows``
    is the number of batch rows of each task, ``furthest`` the greatest distance of any pair to the right, ``tokens``
    how many are in blocks of either side, in one of the ``rows``.
    """

    def __init__(
        self, numbers: Tensor, counts: Sequence[int], rows: int, furthest: int, tokens: tuple[int, int]
    ) -> None:
        self.numbers, self.counts, self.rows, self.furthest, self.tokens = numbers, counts, rows, furthest, tokens
        parts, at = [], 0
        for count, width in zip(counts, WIDTHS, strict=True):
            parts.append(numbers[at : at + count * width].view(count, width))
            at += _whole(count * width)
        self.tasks, self.tiles = (parts[0], parts[1]), (parts[2], parts[3])

    @property
    def is_empty(self) -> bool:
        """Whether everything is masked."""
        return 0 in (self.rows, *self.counts[:2])

    def covers(self, side: int, x: Tensor) -> bool:
        """Whether every token of ``x``, (batch, heads, tokens, ...), is in a block."""
        return self.tokens[side] * self.rows == x.size(0) * x.size(2)

    def at(self, numbers: Tensor) -> Tasks:
        """The same tasks in a copy of their numbers."""
        return Tasks(numbers, self.counts, self.rows, self.furthest, self.tokens)


def tasks_of(tiling: Numbers, lows: Numbers, rows: int, block: int, device: torch.device) -> Tasks:
    """The tasks of a call on a device."""
    return on_device(device, _tasks, tiling, lows, rows, block)


@functools.lru_cache(KEPT)
def _tasks(tiling: Numbers, lows: Numbers, rows: int, block: int) -> Tasks:
    """The same on the CPU."""
    told = Tiling.unflat(tiling)
    found = told.tiles(rows)
    sides = (
        _side(found, told.query, "start", "stop", lows, block),
        _side(found, told.key, "first", "last", lows, block),
    )
    tokens = [sum(side[0][2 :: WIDTHS[0]]) - sum(side[0][1 :: WIDTHS[0]]) for side in sides]
    parts = (sides[0][0], sides[1][0], sides[0][1], sides[1][1])
    counts = [len(part) // width for part, width in zip(parts, WIDTHS, strict=True)]
    padded = [number for part in parts for number in (*part, *[0] * (_whole(len(part)) - len(part)))]
    numbers = torch.tensor(padded, dtype=torch.int32, device="cpu")
    reached = distances(found)
    alike = len(told.query.rows or ()) == len(told.key.rows or ()) == 1
    return Tasks(numbers, counts, rows if alike else 1, reached[1] if reached else 0, (tokens[0], tokens[1]))


def _whole(count: int) -> int:
    """A number of integers from which on the next are aligned, so that kernels are not compiled for either case."""
    return -(-count // ALIGNED) * ALIGNED


def _side(
    found: Sequence[Tile], layout: Layout, first: str, last: str, lows: Numbers, block: int
) -> tuple[list[int], list[int]]:
    """Tasks for the blocks of every span with tiles, and the tiles, span by span."""
    assert layout.rows is not None
    starts = [[span.start for span in row] for row in layout.rows]

    def span_of(tile: Tile) -> tuple[int, int]:
        return tile.row.start, bisect_right(starts[tile.row.start if len(starts) > 1 else 0], getattr(tile, first))

    tasks: list[tuple[int, ...]] = []
    numbers: list[int] = []
    count = 0
    for (row, _), group in itertools.groupby(sorted(found, key=span_of), key=span_of):
        of_span = list(group)
        numbers += itertools.chain.from_iterable(_numbers(tile, lows) for tile in of_span)
        start, stop = min(getattr(t, first) for t in of_span), max(getattr(t, last) for t in of_span)
        each = range(start, stop, block)
        tasks += [(row, at, min(at + block, stop), count, count + len(of_span)) for at in each]
        count += len(of_span)
    # The last queries have the most keys, and the first keys the most queries: they start first.
    return [number for task in (reversed(tasks) if first == "start" else tasks) for number in task], numbers


def _numbers(tile: Tile, lows: Numbers) -> tuple[int, ...]:
    low, high = -ANY if tile.low is None else tile.low, ANY if tile.high is None else tile.high
    bases = (min(max((tile.distance or 0) - lows[place], -ANY), ANY) for place in LOWS)
    return (tile.start, tile.stop, tile.first, tile.last, low, high, *bases)


# -- coordinates of blocks ---------------------------------------------------------------------------------------------


class Places:
    """The lowest and the highest coordinate of every block of ``span`` queries and keys, (rows or 1, blocks, 2), parts
    of one tensor ``numbers``, int32. Of a block without tokens they are any."""

    def __init__(self, numbers: Tensor, shapes: Sequence[tuple[int, int]]) -> None:
        self.numbers, self.shapes = numbers, shapes
        (rows, blocks), of_keys = shapes
        self.query = numbers[: rows * blocks * 2].view(rows, blocks, 2)
        self.key = numbers[_whole(rows * blocks * 2) :][: of_keys[0] * of_keys[1] * 2].view(*of_keys, 2)

    def at(self, numbers: Tensor) -> Places:
        """The same places in a copy of their numbers."""
        return Places(numbers, self.shapes)


def places_of(tiling: Numbers, queries: int, keys: int, span: int, device: torch.device) -> Places | None:
    """The coordinates of blocks on a device; None if they are too far apart for int32, or are not known."""
    if _coordinates(tiling, queries, keys, span) is None:
        return None
    return on_device(device, _places, tiling, queries, keys, span)


@functools.lru_cache(KEPT)
def _coordinates(tiling: Numbers, queries: int, keys: int, span: int) -> tuple[list[list[tuple[int, int]]], ...] | None:
    """Those of queries and of keys, relative to some coordinate."""
    told = Tiling.unflat(tiling)
    spans = [s for layout in (told.query, told.key) for row in layout.rows or () for s in row]
    if not spans or any(s.line is None for s in spans):
        return None
    zero = spans[0].line or 0
    found = []
    for layout, tokens in ((told.query, queries), (told.key, keys)):
        rows = []
        for row in layout.rows or ():
            ends = [(ANY, -ANY)] * -(-tokens // span)
            for s in row:
                assert s.line is not None
                for block in range(s.start // span, -(-s.stop // span)):
                    first, last = max(s.start, block * span), min(s.stop, (block + 1) * span) - 1
                    low, high = (s.line - zero + token - s.start for token in (first, last))
                    if max(abs(low), abs(high)) >= ANY // 2:
                        return None
                    ends[block] = min(ends[block][0], low), max(ends[block][1], high)
            rows.append([end if end[0] <= end[1] else (0, 0) for end in ends])
        found.append(rows)
    return tuple(found)


@functools.lru_cache(KEPT)
def _places(tiling: Numbers, queries: int, keys: int, span: int) -> Places:
    """The same on the CPU."""
    found = _coordinates(tiling, queries, keys, span)
    assert found is not None
    parts = [[n for row in rows for end in row for n in end] for rows in found]
    numbers = [*parts[0], *[0] * (_whole(len(parts[0])) - len(parts[0])), *parts[1]]
    shapes = [(len(rows), len(rows[0])) for rows in found]
    return Places(torch.tensor(numbers, dtype=torch.int32, device="cpu"), shapes)
