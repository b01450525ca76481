"""The tasks of the kernels, as integers on the device, from layouts and without reading from it.

A tile is ten numbers: queries start .. stop, keys first .. last, low <= j - i <= high, and for each of `TABLES` the
entry of j = i. A task is five: the batch row, the tokens start .. stop of its block, and the range of its tiles.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from posenc.backends import blockwise
from posenc.backends.cache import cached
from posenc.backends.triton.arguments import TILE
from posenc.positions.layout import Layout
from posenc.positions.tiles import Tile, Tiling, distances

DRIVER = "libcuda.so.1"
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
T = TypeVar("T")
Numbers: TypeAlias = tuple[int, ...]
Made: TypeAlias = tuple[Tensor | None, Callable[[Any], T]]
"""Integers on the CPU, and what makes something of a copy of them on a device."""
_lists: dict[Any, Any] = {}  # the latest, for all encodings: a copy for each would have the device wait
_alive: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()  # those and what plans and CUDA graphs still read


def on_device(device: torch.device, make: Callable[..., Made[T]], *content: Hashable) -> T:
    """What ``make(*content)`` makes, on a device, the current one: see `cached`. On the CPU it is not copied."""
    if device.type == "cpu":
        numbers, build = make(*content)
        return build(numbers)
    key = make.__name__, *content
    current = torch.cuda.current_stream(device)
    is_capturing, is_inference = torch.cuda.is_current_stream_capturing(), torch.is_inference_mode_enabled()

    def find_or_copy() -> T:
        found: T | None = _alive.get((*key, device))
        if found is None:
            numbers, build = make(*content)
            if numbers is None:
                return build(None)
            _alive[(*key, device)] = found = build(numbers.to(device))
        return found

    def capture() -> T:
        # Made before it is captured, on another stream; then kept for good.
        for stream in (_stream(device), current):
            with torch.inference_mode(is_inference), torch.cuda.stream(stream):
                found = cached(_lists, key, device, find_or_copy)
            _stream(device).synchronize()
        return found

    def copy_on_stream() -> T:
        with torch.cuda.stream(_stream(device)):
            found = find_or_copy()
        _stream(device).synchronize()
        return found

    def copy_aside() -> T:
        found = _aside(copy_on_stream)
        if found is not None:  # its memory is not reused before this stream is done
            found.numbers.record_stream(current)  # type: ignore[attr-defined]
        return found

    return _aside(capture) if is_capturing else cached(_lists, key, device, copy_aside)


def _aside(run: Callable[[], T]) -> T:
    """What ``run`` returns, in a thread of its own, where other threads may capture graphs meanwhile: what it does is
    no part of them. A CUDA graph, as in compiled code, has a memory pool for a thread or a stream, and takes back what
    that gave; so it allocates on a stream of its own, which waits for no other."""

    def relaxed() -> T:
        _relax()
        return run()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(relaxed).result()


def _relax() -> None:
    """Lets this thread allocate and copy while others capture. PyTorch has no function for this; without NVIDIA's
    driver, only threads that capture are restricted."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(DRIVER).cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(RELAXED)))


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)  # from another pool of streams than graphs are captured on


TABLES = ("bias", "vectors", "values", "factor")  # those that the kernels support
LOWS = tuple(blockwise.TABLES.index(name) for name in TABLES)
ANY = 2**30  # beyond any index, and half the range of int32
WIDTHS = (5, 5, 6 + len(TABLES), 6 + len(TABLES))  # of tasks and tiles of both sides
ALIGNED = 4  # integers: Triton compiles for addresses that are multiples of 16 bytes
SPAN = 128  # tokens of a block of which is known whether it counts


class Tasks:
    """Side 0: blocks of queries, each with its tiles; side 1: blocks of keys.

    ``tasks`` are (count, 5) and ``tiles`` (tiles, 10) of both sides, int32, parts of one tensor ``numbers``. ``rows``
    is the number of batch rows of each task, ``furthest`` the greatest distance of any pair to the right, ``tokens``
    how many are in blocks of either side, in one of the ``rows``.
    """

    def __init__(
        self, counts: Sequence[int], rows: int, furthest: int, tokens: tuple[int, int], numbers: Tensor
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


def tasks_of(tiling: Numbers, lows: Numbers, rows: int, block: int, device: torch.device) -> Tasks:
    """The tasks of a call on a device."""
    return on_device(device, _tasks, tiling, lows, rows, block)


def _tasks(numbers: Numbers, lows: Numbers, rows: int, block: int) -> Made[Tasks]:
    """The same on the CPU."""
    tiling = Tiling.unflat(numbers)
    tiles = tiling.tiles(rows)
    sides = (
        _side(tiles, tiling.query, "start", "stop", lows, block),
        _side(tiles, tiling.key, "first", "last", lows, block),
    )
    tokens = [sum(side[0][2 :: WIDTHS[0]]) - sum(side[0][1 :: WIDTHS[0]]) for side in sides]
    parts = (sides[0][0], sides[1][0], sides[0][1], sides[1][1])
    counts = [len(part) // width for part, width in zip(parts, WIDTHS, strict=True)]
    padded = [number for part in parts for number in (*part, *[0] * (_whole(len(part)) - len(part)))]
    reach = distances(tiles)
    alike = len(tiling.query.rows or ()) == len(tiling.key.rows or ()) == 1
    build = functools.partial(Tasks, counts, rows if alike else 1, reach[1] if reach else 0, (tokens[0], tokens[1]))
    return torch.tensor(padded, dtype=torch.int32, device="cpu"), build


def _whole(count: int) -> int:
    """A number of integers from which on the next are aligned, so that kernels are not compiled for either case."""
    return -(-count // ALIGNED) * ALIGNED


def _side(
    tiles: Sequence[Tile], layout: Layout, first: str, last: str, lows: Numbers, block: int
) -> tuple[list[int], list[int]]:
    """Tasks for the blocks of every span with tiles, and the tiles, span by span."""
    assert layout.rows is not None
    starts = [[span.start for span in row] for row in layout.rows]

    def span_of(tile: Tile) -> tuple[int, int]:
        return tile.row.start, bisect_right(starts[tile.row.start if len(starts) > 1 else 0], getattr(tile, first))

    tasks: list[tuple[int, ...]] = []
    numbers: list[int] = []
    count = 0
    for (row, _), group in itertools.groupby(sorted(tiles, key=span_of), key=span_of):
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
    """The lowest and the highest coordinate of every block of `SPAN` queries and keys, (rows or 1, blocks, 2), parts of
    one tensor ``numbers``, int32. Of a block without tokens they are any."""

    def __init__(self, shapes: Sequence[tuple[int, int]], numbers: Tensor) -> None:
        self.numbers = numbers
        (rows, blocks), of_keys = shapes
        self.query = numbers[: rows * blocks * 2].view(rows, blocks, 2)
        self.key = numbers[_whole(rows * blocks * 2) :][: of_keys[0] * of_keys[1] * 2].view(*of_keys, 2)


def places_of(tiling: Numbers, queries: int, keys: int, device: torch.device) -> Places | None:
    """The coordinates of blocks on a device; None if they are too far apart for int32, or are not known."""
    return on_device(device, _places, tiling, queries, keys)


def _places(numbers: Numbers, queries: int, keys: int) -> Made[Places | None]:
    """The same on the CPU, relative to some coordinate."""
    tiling = Tiling.unflat(numbers)
    layouts = (tiling.query, queries), (tiling.key, keys)
    spans = [span for layout, _ in layouts for row in layout.rows or () for span in row]
    if not spans or any(span.line is None for span in spans):
        return None, lambda _: None
    zero = spans[0].line or 0
    sides = []
    for layout, tokens in layouts:
        rows = []
        for row in layout.rows or ():
            ends = [(ANY, -ANY)] * -(-tokens // SPAN)
            for span in row:
                assert span.line is not None
                for block in range(span.start // SPAN, -(-span.stop // SPAN)):
                    first, last = max(span.start, block * SPAN), min(span.stop, (block + 1) * SPAN) - 1
                    low, high = (span.line - zero + token - span.start for token in (first, last))
                    if max(abs(low), abs(high)) >= ANY // 2:
                        return None, lambda _: None
                    ends[block] = min(ends[block][0], low), max(ends[block][1], high)
            rows.append([end if end[0] <= end[1] else (0, 0) for end in ends])
        sides.append(rows)
    of_queries, of_keys = ([number for row in rows for end in row for number in end] for rows in sides)
    padding = [0] * (_whole(len(of_queries)) - len(of_queries))
    padded = torch.tensor([*of_queries, *padding, *of_keys], dtype=torch.int32, device="cpu")
    return padded, functools.partial(Places, [(len(rows), len(rows[0])) for rows in sides])


# -- the tiles of a few queries ----------------------------------------------------------------------------------------


class RowTiles:
    """The tiles of each batch row. ``numbers``, int32, says where those of a row begin and end, counted in tiles, and
    then has `TILE` of each; None for a single tile, which is ``tile``. ``by_row`` is 1 if rows differ, else 0."""

    def __init__(self, tile: Numbers, by_row: int, count: int, numbers: Tensor | None) -> None:
        self.tile, self.by_row, self.count, self.numbers = tile, by_row, count, numbers


def row_tiles_of(tiling: Numbers, lows: Numbers, rows: int, device: torch.device) -> RowTiles:
    """The tiles of a call with few queries."""
    numbers, build = _row_tiles(tiling, lows, rows)
    return build(None) if numbers is None else on_device(device, _row_tiles, tiling, lows, rows)


def _row_tiles(numbers: Numbers, lows: Numbers, rows: int) -> Made[RowTiles]:
    tiling = Tiling.unflat(numbers)
    tiles = tiling.tiles(rows)
    is_ragged = len(tiling.query.rows or ()) != 1 or len(tiling.key.rows or ()) != 1
    tile = _row_tile(tiles[0], lows) if tiles else (0,) * len(TILE)
    if len(tiles) <= 1 and not is_ragged:
        return None, functools.partial(RowTiles, tile, 0, len(tiles))
    of_rows = [0] * (rows if is_ragged else 1)
    for each in tiles:
        of_rows[each.row.start] += 1
    before = -(-(len(of_rows) + 1) // len(TILE))  # in place of tiles
    ends = [*itertools.accumulate(of_rows, initial=before)]
    ends += [0] * (before * len(TILE) - len(ends))
    flat = [*ends, *itertools.chain.from_iterable(_row_tile(each, lows) for each in tiles)]
    made = torch.tensor(flat, dtype=torch.int32, device="cpu")
    return made, functools.partial(RowTiles, tile, int(is_ragged), len(tiles))


def _row_tile(tile: Tile, lows: Numbers) -> Numbers:
    least, most = -ANY if tile.low is None else tile.low, ANY if tile.high is None else tile.high
    bases = [lows[blockwise.POSSIBLE.index(name)] for name in (*TABLES, "away")]
    apart = [ANY if tile.distance is None else tile.distance - low for low in (*bases, 0)]
    within = (min(max(n, -ANY), ANY) for n in apart)
    return (tile.start, tile.stop, tile.first, tile.last, least, most, *within)
