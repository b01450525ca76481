"""The tasks of the kernels, as integers on the device, from layouts and without reading from it; and which keys count.

A tile is ten numbers: queries start .. stop, keys first .. last, low <= j - i <= high, and for each of `TABLES` the
entry of j = i. A task is five: the batch row, the tokens start .. stop of its block, and the range of its tiles.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends import blockwise as given
from posenc.encoding.pieces import skip_threshold
from posenc.positions.layout import Layout
from posenc.positions.tiles import Tile, Tiling, distances

KEPT = 256
DRIVER = "libcuda.so.1"
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


@runtime_checkable
class Listed(Protocol):
    """Something with its ``numbers`` in one tensor, that can be made of a copy of them."""

    numbers: Tensor

    def at(self, numbers: Tensor) -> Any:
        """The same with these numbers."""


class _There(NamedTuple):
    """A list on a device, and the streams that the allocator knows to read it."""

    made: Any
    streams: set[int]


L = TypeVar("L", bound=Listed)
Asked: TypeAlias = tuple[Hashable, ...]
_LOCK = threading.Lock()  # the backward pass has a thread for every device
_KEPT: dict[Asked, _There] = {}  # the latest
# What CUDA graphs read when they are replayed. A graph does not say how long it lives, so these are kept for good: as
# many as there are different ones, however often each is captured.
_CAPTURED: dict[Asked, _There] = {}


def on_device(device: torch.device, make: Callable[..., L], *asked: Hashable) -> L:
    """``make(*asked)`` on a device, the current one. It is cached, and on the CPU not copied."""
    if device.type == "cpu":
        return make(*asked)
    key = (make.__name__, *asked, device)
    with _LOCK:
        there = _CAPTURED.get(key) or _KEPT.get(key)
        if there is None:
            made = make(*asked)
            there = _KEPT[key] = _There(made.at(_copied(made.numbers, device)), set())
            if len(_KEPT) > KEPT:
                del _KEPT[next(iter(_KEPT))]
        if torch.cuda.is_current_stream_capturing():
            _CAPTURED[key] = there
        else:
            _read_on(torch.cuda.current_stream(device), there)
    found: L = there.made
    return found


def _read_on(stream: torch.cuda.Stream, there: _There) -> None:
    """Sees to it that, should the list be forgotten, its memory is not reused before this stream is done. A stream that
    the allocator knows once counts until the memory is freed."""
    if stream.cuda_stream not in there.streams:
        there.made.numbers.record_stream(stream)
        there.streams.add(stream.cuda_stream)


def _copied(numbers: Tensor, device: torch.device) -> Tensor:
    """A copy that every stream may read, made at once and without waiting for any other stream, also while graphs are
    captured. It has a thread and a stream of its own: a CUDA graph, as in compiled code, has a memory pool for a thread
    or a stream, and takes back what that gave."""

    def copy() -> Tensor:
        _relax()
        stream = _stream(device)
        with torch.cuda.stream(stream):
            made = numbers.to(device)
        stream.synchronize()
        return made

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy).result()


def _relax() -> None:
    """Lets this thread allocate and copy while others capture: what it does is no part of their graphs. PyTorch has no
    function for this; without NVIDIA's driver, only threads that capture are restricted."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(DRIVER).cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(RELAXED)))


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)  # from another pool of streams than graphs are captured on


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


AT_ONCE = 64  # blocks of the other side
FEWEST_KEYS = 1024  # a guess of the number from which on it pays off: not measured yet
HOW = {"num_warps": 4}

Counted = dict[str, Any]

STRIDED = "{0} {0}_batch {0}_head {0}_row"
BIAS = "bias bias_head bias_entries low groups SPAN"
OF_QUERIES = f"""{STRIDED.format("q")} {STRIDED.format("k")} {BIAS} lse longest meeting shift query_clock key_clock
    heads queries keys own scale D E BLOCK_D BLOCK_E"""
OF_KEYS = f"{STRIDED.format('k')} key_clock groups keys D BLOCK_D SPAN"
OF_BOTH = f"{BIAS} slopes slopes_head"


def counted(launch: Any, sides: tuple[int, ...], lse: Tensor | None = None) -> list[Counted]:
    """The arguments "counted" (batch, heads, blocks, 2) and "blocks" of kernels for blocks of queries (side 0) and of
    keys (side 1): the first token and the one after the last of the other side, that may have more than ``skip_below``
    of a row's weight, int32; None for all. Does not synchronize a device.

    Without the log-sum-exp, each query must attend to its own key. A function of the score has no bound.
    """
    query, key, given = launch.query, launch.key, launch.given
    nothing: list[Counted] = [{"counted": None, "blocks": 0} for _ in sides]
    has_least = lse is not None or launch.own >= 0
    if launch.skip_below <= 0 or key.size(2) < FEWEST_KEYS or launch.form.function[0] or not has_least:
        return nothing
    (batch, heads, queries), (kv_heads, keys) = query.shape[:3], key.shape[1:3]
    low, places = launch.lows.get("bias", 0), None
    if "bias" in given:
        places = places_of(launch.tiling, queries, keys, SPAN, query.device)
        if places is None:
            return nothing
    blocks = -(-queries // SPAN), -(-keys // SPAN)
    is_clocked = "query_clock" in given

    def made(heads: int, count: int, is_there: bool = True, dtype: torch.dtype = torch.float32) -> Tensor | None:
        return query.new_empty((batch, heads, count), dtype=dtype) if is_there else None

    of_q = {"most": made(heads, blocks[0]), "more": made(heads, blocks[0], "vectors" in given)}
    of_q |= {"least": made(heads, blocks[0]), "clock": made(heads, blocks[0], is_clocked, torch.float64)}
    of_k = {"most": made(kv_heads, blocks[1]), "clock": made(heads, blocks[1], is_clocked, torch.float64)}
    longest = None
    if "vectors" in given:
        longest = torch.linalg.vector_norm(given["vectors"], dim=-1, dtype=torch.float32).amax(-1)
        longest = longest.expand(heads).contiguous()  # which the kernel reads without a stride
    every = {
        **launch.shared,
        **launch.known,
        "lse": lse,
        "longest": longest,
        "own": launch.own,
        "low": low,
        "SPAN": SPAN,
    }

    def start(name: str, takes: str, grid: tuple[int, ...], **others: Any) -> None:
        launch.start(name, grid, **{name: every[name] for name in takes.split()}, **others, **HOW)

    start("bounds_queries", OF_QUERIES, (blocks[0], heads, batch), **of_q)
    start("bounds_keys", OF_KEYS, (blocks[1], kv_heads, batch), **of_k)
    of_both: dict[str, Any] = {f"{name}_q": x for name, x in of_q.items()}
    of_both |= {f"{name}_k": x for name, x in of_k.items()} | {"blocks_q": blocks[0], "blocks_k": blocks[1]}
    highest = None
    if places is not None:
        highest = given["highest"] if "highest" in given else highest_of(given)
    of_both |= {"highest": highest, "highest_head": 0 if highest is None or len(highest) == 1 else highest.size(1)}
    for name in ("query", "key"):
        x = None if places is None else getattr(places, name)
        of_both[f"place_{name[0]}"] = x
        of_both[f"place_{name[0]}_row"] = 0 if x is None or x.size(0) == 1 else x.stride(0)
    threshold = skip_threshold(launch.skip_below, keys)
    found: list[Counted] = []
    for side in sides:
        of = query.new_empty((batch, heads, blocks[side], 2), dtype=torch.int32)
        which = {"threshold": threshold, "OF_KEYS": side == 1, "C": AT_ONCE}
        start("bounds_counted", OF_BOTH, (blocks[side], heads, batch), counted=of, **of_both, **which)
        found.append({"counted": of, "blocks": blocks[side]})
    return found


def highest_of(given: Mapping[str, Tensor]) -> Tensor:
    """The maximum of the bias, (heads or 1, entries), over the distances of two contiguous blocks, wherever these
    start. Beyond its ends it repeats its end entries, or is a line that is not of the table."""
    window = 2 * SPAN - 1
    beyond: dict[str, Any] = {"value": -torch.inf} if "slopes" in given else {"mode": "replicate"}
    return F.max_pool1d(F.pad(given["bias"][..., 0], (window, window), **beyond), window, 1)


def of_neighbours(counted: Tensor) -> Tensor:
    """What a program is computed with at most whose tokens are of two blocks, (batch, heads, blocks, 2)."""
    ends = counted.double() * counted.new_tensor((-1, 1))
    greatest = F.max_pool2d(ends, (3, 1), 1, (1, 0))
    return (greatest * counted.new_tensor((-1, 1))).to(counted.dtype)


def share(some: Tensor, counted: Tensor) -> float:
    """The fraction of blocks with unmasked pairs (rows, query_blocks, key_blocks) that are between the first and the
    last that count. Reads tensor values."""
    first, last = (counted[..., end, None] for end in (0, 1))
    key = torch.arange(some.size(2), device=some.device) * SPAN
    inside = (first <= key) & (key < last)
    some = some[:, None].expand_as(inside)
    return float((some & inside).sum() / some.sum().clamp(min=1))
