"""The tasks of the kernels' programs, as integers on the device, from layouts and without reading from the device.

A tile is ten numbers: queries start .. stop, keys first .. last, low <= j - i <= high, and for each of `TABLES` the
entry of j = i. A task is five: the batch row, the tokens start .. stop of its block, and the range of its tiles.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.backends import operands as given
from posenc.positions.layout import Layout
from posenc.positions.tiles import Tile, Tiling, distances

TABLES = ("bias", "vectors", "values", "factor")  # those that the kernels support
LOWS = tuple(given.TABLES.index(name) for name in TABLES)
ANY = 2**30  # beyond any index, and half the range of int32
KEPT = 256  # cached lists of tasks: a batch has the same in every layer

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Tasks:
    """Side 0: blocks of queries, each with its tiles; side 1: blocks of keys.

    Tasks are (count, 5) and tiles (tiles, 10), int32. ``rows`` is the number of batch rows of each task, ``furthest``
    the greatest distance of any pair to the right.
    """

    tasks: tuple[Tensor, Tensor]
    tiles: tuple[Tensor, Tensor]
    rows: int
    furthest: int

    @property
    def is_empty(self) -> bool:
        """Whether everything is masked."""
        return 0 in (self.rows, *(len(tasks) for tasks in self.tasks))

    def on(self, device: torch.device) -> Tasks:
        """The tasks on a device, copied asynchronously from pinned memory, so that a CUDA graph can be captured."""
        if device.type == "cpu":
            return self
        tasks, tiles = (tuple(x.to(device, non_blocking=True) for x in pair) for pair in (self.tasks, self.tiles))
        return Tasks(tasks, tiles, self.rows, self.furthest)  # type: ignore[arg-type]


@functools.lru_cache(KEPT)
def tasks_of(tiling: Numbers, lows: Numbers, rows: int, block: int, is_pinned: bool) -> Tasks:
    """The tasks of a call, optionally in pinned memory."""
    told = Tiling.unflat(tiling)
    found = told.tiles(rows)
    sides = (
        _side(found, told.query, "start", "stop", lows, block),
        _side(found, told.key, "first", "last", lows, block),
    )
    (query_tasks, query_tiles), (key_tasks, key_tiles) = (
        tuple(_tensor(numbers, width, is_pinned) for numbers, width in zip(side, (5, 6 + len(TABLES)), strict=True))
        for side in sides
    )
    reached = distances(found)
    alike = len(told.query.rows or ()) == len(told.key.rows or ()) == 1
    return Tasks((query_tasks, key_tasks), (query_tiles, key_tiles), rows if alike else 1, reached[1] if reached else 0)


def _tensor(numbers: list[int], width: int, is_pinned: bool) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, pin_memory=is_pinned).view(-1, width)


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
    # The last queries have the most keys, so they start first.
    return [number for task in reversed(tasks) for number in task], numbers


def _numbers(tile: Tile, lows: Numbers) -> tuple[int, ...]:
    low, high = -ANY if tile.low is None else tile.low, ANY if tile.high is None else tile.high
    bases = (min(max((tile.distance or 0) - lows[place], -ANY), ANY) for place in LOWS)
    return (tile.start, tile.stop, tile.first, tile.last, low, high, *bases)
