"""The tasks of the kernels' programs, as integers on the device, from layouts and without reading from the device.

A tile is ten numbers: queries start .. stop, keys first .. last, low <= j - i <= high, and for each of `TABLES` the
entry of j = i. A task is five: the batch row, the tokens start .. stop of its block, and the range of its tiles.
"""

from __future__ import annotations

import functools
import itertools
import threading
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import torch
from torch import Tensor

from posenc.backends import operands as given
from posenc.positions.layout import Layout
from posenc.positions.tiles import Tile, Tiling, distances

TABLES = ("bias", "vectors", "values", "factor")  # those that the kernels support
LOWS = tuple(given.TABLES.index(name) for name in TABLES)
ANY = 2**30  # beyond any index, and half the range of int32
KEPT = 256
WIDTHS = (5, 5, 6 + len(TABLES), 6 + len(TABLES))  # of tasks and tiles of both sides
ALIGNED = 4  # integers: Triton compiles for addresses that are multiples of 16 bytes

Numbers: TypeAlias = tuple[int, ...]


class Tasks:
    """Side 0: blocks of queries, each with its tiles; side 1: blocks of keys.

    ``tasks`` are (count, 5) and ``tiles`` (tiles, 10) of both sides, int32, parts of one tensor ``numbers``. ``rows``
    is the number of batch rows of each task, ``furthest`` the greatest distance of any pair to the right.
    """

    def __init__(self, numbers: Tensor, counts: Sequence[int], rows: int, furthest: int) -> None:
        self.numbers, self.counts, self.rows, self.furthest = numbers, counts, rows, furthest
        parts, at = [], 0
        for count, width in zip(counts, WIDTHS, strict=True):
            parts.append(numbers[at : at + count * width].view(count, width))
            at += _whole(count * width)
        self.tasks, self.tiles = (parts[0], parts[1]), (parts[2], parts[3])

    @property
    def is_empty(self) -> bool:
        """Whether everything is masked."""
        return 0 in (self.rows, *self.counts[:2])

    def at(self, numbers: Tensor) -> Tasks:
        """The same tasks in a copy of their numbers."""
        return Tasks(numbers, self.counts, self.rows, self.furthest)


Asked: TypeAlias = tuple[Numbers, Numbers, int, int, torch.device]
_LOCK = threading.Lock()  # the backward pass has a thread for every device
_KEPT: dict[Asked, Tasks] = {}  # on devices: the latest `KEPT`, which all layers and the backward pass find again
# What CUDA graphs read when they are replayed: tasks on devices, and pinned numbers that a graph copies itself. A graph
# does not say how long it lives, so these are kept for good: as many as there are different ones, however often each is
# captured.
_CAPTURED: dict[Asked, Tasks] = {}
_SOURCES: dict[Asked, Tasks] = {}


def tasks_of(tiling: Numbers, lows: Numbers, rows: int, block: int, device: torch.device) -> Tasks:
    """The tasks of a call on a device, copied once."""
    if device.type == "cpu":
        return _made(tiling, lows, rows, block, False)
    asked = (tiling, lows, rows, block, device)
    is_captured = torch.cuda.is_current_stream_capturing()
    with _LOCK:
        found = _CAPTURED.get(asked) or _KEPT.get(asked)
        if found is None:
            made = _made(tiling, lows, rows, block, True)
            if is_captured:  # memory of the graph, which holds the numbers only while it is replayed
                _SOURCES[asked] = made
                return made.at(made.numbers.to(device, non_blocking=True))
            found = _KEPT[asked] = made.at(_copied(made.numbers, device))
            if len(_KEPT) > KEPT:
                del _KEPT[next(iter(_KEPT))]
        if is_captured:
            _CAPTURED[asked] = found
    if not is_captured:  # should it be forgotten, its memory is not reused before this stream is done
        found.numbers.record_stream(torch.cuda.current_stream(device))
    return found


def _copied(numbers: Tensor, device: torch.device) -> Tensor:
    """A copy that every stream may read, made without waiting for any other. It has a thread and a stream of its own:
    a CUDA graph, as in compiled code, has a memory pool for a thread or a stream, and takes back what that gave."""

    def copy() -> Tensor:
        stream = _stream(device)
        with torch.cuda.stream(stream):
            made = numbers.to(device, non_blocking=True)
        stream.synchronize()
        return made

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy).result()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)  # from another pool of streams than graphs are captured on


@functools.lru_cache(KEPT)
def _made(tiling: Numbers, lows: Numbers, rows: int, block: int, is_pinned: bool) -> Tasks:
    """The tasks of a call, optionally in pinned memory."""
    told = Tiling.unflat(tiling)
    found = told.tiles(rows)
    sides = (
        _side(found, told.query, "start", "stop", lows, block),
        _side(found, told.key, "first", "last", lows, block),
    )
    parts = (sides[0][0], sides[1][0], sides[0][1], sides[1][1])
    counts = [len(part) // width for part, width in zip(parts, WIDTHS, strict=True)]
    padded = [number for part in parts for number in (*part, *[0] * (_whole(len(part)) - len(part)))]
    numbers = torch.tensor(padded, dtype=torch.int32, pin_memory=is_pinned)
    reached = distances(found)
    alike = len(told.query.rows or ()) == len(told.key.rows or ()) == 1
    return Tasks(numbers, counts, rows if alike else 1, reached[1] if reached else 0)


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
    # The last queries have the most keys, so they start first.
    return [number for task in reversed(tasks) for number in task], numbers


def _numbers(tile: Tile, lows: Numbers) -> tuple[int, ...]:
    low, high = -ANY if tile.low is None else tile.low, ANY if tile.high is None else tile.high
    bases = (min(max((tile.distance or 0) - lows[place], -ANY), ANY) for place in LOWS)
    return (tile.start, tile.stop, tile.first, tile.last, low, high, *bases)
