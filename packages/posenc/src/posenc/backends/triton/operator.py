"""The custom operator of the Triton kernels, its derivative, and the launches of both."""

# custom_op evaluates annotations, so no `from __future__ import annotations` here.

import functools
import importlib
import itertools
import os
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from posenc import compat
from posenc.backends.blockwise import POSSIBLE, KernelLayout, custom_operator
from posenc.backends.call import FEW_QUERIES
from posenc.backends.triton.tasks import (
    ANY,
    KEPT,
    LOWS,
    SPAN,
    TABLES,
    Counted,
    Numbers,
    Tasks,
    counted,
    of_neighbours,
    on_device,
    tasks_of,
)
from posenc.encoding.pieces import skip_threshold
from posenc.positions.tiles import Tile, Tiling

GRID = 65_535  # the maximum of the second and third dimension of a grid on CUDA
SMALLEST = 16  # the minimum size of tl.dot
WINDOWED = ("vectors", "values")  # tables whose near pairs have kernels of their own
OTHERS = ("meeting", "shift", "query_clock", "key_clock")  # inputs other than tables

Tensors: TypeAlias = dict[str, Any]  # those of a kernel by name, None, or a stride


class Sizes(NamedTuple):
    """The blocks of kernels: ``long`` tokens of a program against blocks of ``short``, by so many warps, the next
    ``stages - 1`` blocks loaded ahead; near pairs with vectors in squares. ``long`` is a multiple of ``square``. A
    thread of a block of queries has at most so many ``registers``, if that is not None, so that more programs run side
    by side; a block of keys has too many sums for that."""

    long: int
    short: int
    square: int
    warps: int
    stages: int
    registers: int | None = None


LONG = 128  # the most tokens of a program
# The first that fits on the device is used, and remembered by what is run there.
NARROW = (Sizes(64, 64, 64, 4, 3, 168), Sizes(64, 32, 32, 4, 2), Sizes(32, 16, 16, 4, 2), Sizes(16, 16, 16, 4, 1))
WIDE = (Sizes(128, 64, 64, 8, 3), Sizes(128, 64, 64, 8, 2), *NARROW[1:])
WIDE_FORWARD = (Sizes(64, 64, 64, 4, 3), *WIDE)
WIDEST = 256  # the maximum number of channels, which must fit into shared memory with a block of scores


def sizes_of(width: int, is_forward: bool) -> tuple[Sizes, ...]:
    """The sizes to try, of heads with so many channels."""
    if width <= 64:
        return NARROW
    return WIDE_FORWARD if is_forward and width <= 128 else WIDE


def squares_of(name: str, given: Container[str], width: int) -> dict[str, int]:
    """How a kernel of squares is launched. Gradients have so many products that four warps lack registers, with values
    by distance or wide heads."""
    most = 128 if name == "forward_near" else 64 if "values" not in given else 0
    return {"num_warps": 4 if "vectors" in given and width <= most else 8, "num_stages": 1}


def block_of(width: int) -> int:
    """The number of channels that kernels compute with."""
    return max(SMALLEST, 1 << (width - 1).bit_length())


_FITTING: dict[tuple[object, ...], int] = {}


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels on the CPU, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def missing() -> str | None:
    """Why the kernels cannot run in this process; None if they can."""
    try:
        language = importlib.import_module("triton.language")
    except ImportError:
        return "Triton is not installed"
    return None if hasattr(language, "gather") else "it needs Triton 3.2 or later"


def too_many(batch: int, heads: int) -> str:
    """Why so many rows and heads cannot be run."""
    return f"it supports at most {GRID} rows of a batch and {GRID} heads, got {batch} and {heads}"


# Same as torch.compiler.assume_constant_result, which would import the whole compiler.
is_interpreted._dynamo_marked_constant = missing._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def kernel_of(name: str) -> Any:
    """A kernel by name. Triton is imported on first use."""
    return getattr(importlib.import_module(f"posenc.backends.triton.{name.split('_')[0]}"), name)


def out_of_resources() -> type[Exception]:
    """What Triton raises where a kernel does not fit on the device."""
    error: type[Exception] = importlib.import_module("triton.runtime.errors").OutOfResources
    return error


def _readable(x: Tensor) -> Tensor:
    """A tensor whose channels are side by side, and the rows of a block so near that 32 bits say how far."""
    return x if x.stride(-1) == 1 and x.stride(-2) * LONG < 2**31 else x.contiguous()


class Launch:
    """The arguments of a call that all kernels share, and their launch."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        given: dict[str, Tensor],
        form: KernelLayout,
        scale: float,
        tiling: Sequence[int],
        skip_below: float,
        own: int,
    ) -> None:
        if max(query.shape[:2]) > GRID:
            raise ValueError(f"backend 'triton' cannot run this: {too_many(*query.shape[:2])}")
        self.query, self.key, self.value = (_readable(x) for x in (query, key, value))
        self.given = {
            name: x.contiguous().to(query.dtype) if name in ("meeting", *WINDOWED) else x.contiguous()
            for name, x in given.items()
        }
        self.scale, self.form, self.tiling = scale, form, tuple(tiling)
        self.skip_below, self.own = skip_below, own
        self.counted: list[Counted] = []
        known, is_last = form.function
        vectors = self.given.get("vectors")
        widths = {"D": query.size(-1), "V": value.size(-1), "E": SMALLEST if vectors is None else vectors.size(-1)}
        blocks = {f"BLOCK_{name}": block_of(width) for name, width in widths.items()}
        # TF32 only if PyTorch's matrix products may use it.
        precision = "tf32" if query.dtype == torch.float32 and compat.multiplies_in_tf32() else "ieee"
        precision = "exact" if is_interpreted() else precision
        self.known: dict[str, Any] = {**widths, **blocks, "FUNCTION": known * (1 + is_last), "PRECISION": precision}
        self.is_windowed = any(name in self.given for name in WINDOWED)
        widest = max(x for name, x in blocks.items() if name != "BLOCK_E" or vectors is not None)
        self.channels = widest if query.element_size() < 4 else WIDEST  # products of float32 take more registers
        self.shared = self._shared()

    def _shared(self) -> dict[str, Any]:
        heads, queries = self.query.shape[1:3]
        given: dict[str, Any] = {"heads": heads, "groups": heads // self.key.size(1), "scale": self.scale}
        given |= {"queries": queries, "keys": self.key.size(2)}
        for short, x in (("q", self.query), ("k", self.key), ("v", self.value)):
            strides = zip(("batch", "head", "row"), x.stride()[:3], strict=True)
            given |= {short: x, **{f"{short}_{of}": stride for of, stride in strides}}
        for table in (*TABLES, "slopes"):
            entries = self.given.get(table)
            given[table] = entries
            given[f"{table}_head"] = 0 if entries is None or entries.size(0) == 1 else entries.size(1)
            if table != "slopes":
                given[f"{table}_entries"] = 0 if entries is None else entries.size(1)
        return given | {other: self.given.get(other) for other in OTHERS}

    def tasks(self, block: int) -> Tasks:
        """The tasks of programs with so many tokens."""
        return tasks_of(self.tiling, tuple(self.form.lows), self.query.size(0), block, self.query.device)

    def start(self, name: str, grid: tuple[int, ...], **given: Any) -> None:
        """Starts a kernel. Multiplications and additions are fused, which from Triton 3.10 on is no default."""
        if torch.version.hip is not None:  # which has no such limit
            given.pop("maxnreg", None)
        kernel_of(name)[grid](**given, enable_fp_fusion=True)

    def run(self, name: str, tasks: Tasks, side: int, sizes: Sizes, made: Tensors, times: int = 1) -> None:
        """Runs a kernel over blocks of queries (side 0) or keys (side 1)."""
        work: dict[str, Any] = {"tasks": tasks.tasks[side], "tiles": tasks.tiles[side]}
        blocks = {"M": sizes.long, "N": sizes.short} if side == 0 else {"M": sizes.short, "N": sizes.long}
        how: dict[str, Any] = {"num_warps": sizes.warps, "num_stages": sizes.stages}
        if name.endswith("_near"):
            blocks["B"], how = sizes.square, squares_of(name, self.given, self.channels)
        else:
            work["HAS_RIGHT"] = self.has_right(tasks)
            # Lookups in tables would be loaded ahead too, a number for each pair.
            blocks["NEAR_STAGES"] = 1 if self.looks_up or (side and self.channels <= 64) else sizes.stages
            if sizes.registers and not side:
                how["maxnreg"] = sizes.registers
        grid = (work["tasks"].size(0) * times, self.query.size(1) if side == 0 else self.key.size(1), tasks.rows)
        self.start(name, grid, **self.pairs, **work, **self.counted[side], **made, **self.known, **blocks, **how)

    @property
    def pairs(self) -> dict[str, Any]:
        """The shared arguments of kernels of all pairs: a table of one entry has None of them (`last_of`)."""
        return self.shared | ({} if self.shared["bias_entries"] > 1 else {"bias_entries": None})

    @property
    def looks_up(self) -> bool:
        """Whether near pairs have a number of their own in a table."""
        return self.shared["bias_entries"] > 1 or "factor" in self.given

    def has_right(self, tasks: Tasks) -> bool:
        """Whether any pair is to the right of all tables."""
        past = [low + self.given[name].size(1) for name, low in self.lows.items()]
        return bool(past) and tasks.furthest >= max(past)

    @property
    def lows(self) -> dict[str, int]:
        """The distance of the first entry of each table."""
        return {name: self.form.lows[at] for name, at in zip(TABLES, LOWS, strict=True) if name in self.given}

    def fitting(self, kernels: str, run: Callable[[Sizes], Any], lse: Tensor | None = None) -> Any:
        """What ``run`` returns with the largest sizes that fit on the device. Those that do not are tried once for
        ``kernels`` of a device, dtype, inputs and widths. Keys that do not count are left out; the backward pass knows
        the log-sum-exp."""
        widths, sizes = tuple(self.known.values()), sizes_of(self.channels, lse is None)
        asked = (kernels, self.query.device, self.query.dtype, tuple(sorted(self.given)), widths)
        with torch.cuda.device_of(self.query):
            self.counted = counted(self, (0,) if lse is None else (0, 1), lse)
            for n in range(_FITTING.get(asked, 0), len(sizes)):
                try:
                    found = run(sizes[n])
                except out_of_resources():
                    if n + 1 == len(sizes):
                        raise
                else:
                    _FITTING[asked] = n
                    return found
        raise AssertionError


# -- few queries ------------------------------------------------------------------------------------------------------


LEAST = 128  # keys of a program
ROWS = 64  # queries of all heads of a program; at least one query of each


class How(NamedTuple):
    """How the keys are split: over about so many ``programs``, which should all run at once. A program holds so many
    ``bytes`` of keys, and of values, in each of its ``stages``. A thread has at most so many ``registers``."""

    programs: int
    bytes: int
    stages: int
    registers: int


# By the input that is most to hold. Programs are two to four for each multiprocessor of an H100, which has registers
# for as many, if their outputs are small.
HOW = {
    "lines": How(264, 2**13, 2, 255),
    "key_clock": How(396, 2**12, 2, 168),
    "vectors": How(528, 2**12, 2, 128),
    "values": How(528, 2**12, 2, 128),
    "": How(528, 2**13, 2, 128),
}
SMALL = 2**11  # bytes of an output
REGISTERS = 255  # of a thread
MORE = {"away": "away", "share": "share", "lines": "lines", "ends": "line_ends"}
"""Tensors that other kernels do not take, and the names of arguments."""

UNBOUNDED = ("vectors", "away")  # terms of which no bound is known here

TILE = (
    "start", "stop", "from_key", "to_key", "least", "most",
    "of_bias", "of_vectors", "of_values", "of_factor", "of_away", "apart",
)  # fmt: skip
"""Queries start .. stop attend to keys from_key .. to_key with least <= j - i <= most. The entry of the pair in each
table is j - i plus the next five, and the distance of its coordinates is j - i + apart."""


def split(launch: Launch) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a launch with few queries."""
    query, value, given = launch.query, launch.value, launch.given
    batch, heads, queries, _ = query.shape
    kv_heads, keys = value.shape[1:3]
    groups, known = heads // kv_heads, launch.known
    of_program = min(_up(queries), 1 << max(1, ROWS // groups).bit_length() - 1)
    rows = max(16, _up(groups * of_program))
    blocks = -(-queries // of_program)
    how = next(how for name, how in HOW.items() if not name or name in given)
    parts = max(1, min(how.programs // (batch * blocks * kv_heads), -(-keys // LEAST)))
    wide = max(known["BLOCK_D"], known["BLOCK_V"]) * value.element_size()
    numbers = rows * known["BLOCK_V"]
    registers = how.registers if numbers * value.element_size() <= SMALL else REGISTERS
    lines = given.get("lines")
    out = value.new_empty((batch, heads, queries, value.size(-1)))
    lse = query.new_empty((batch, heads, queries), dtype=torch.float32)
    some, some_lse = out, lse
    if parts > 1:
        some, some_lse = (lse.new_empty((parts, *x.shape)) for x in (out, lse))
    arguments = launch.shared | known | {of: given.get(name) for name, of in MORE.items()}
    is_ragged = "share" in given and given["share"].size(0) > 1
    arguments |= {"away_entries": given["away"].size(1) if "away" in given else 0}
    skips = launch.skip_below > 0 and not known["FUNCTION"] and given.keys().isdisjoint(UNBOUNDED)
    arguments |= {"key_norms": given.get("key_norms") if skips else None}
    arguments |= {"faint": skip_threshold(launch.skip_below, keys) if skips else 0.0}
    with torch.cuda.device_of(query):
        arguments |= {"share_row": queries if is_ragged else 0, **_tiles(launch.tiling, tuple(launch.form.lows), query)}
    by_head = {name: x.stride(0) for name, x in given.items() if name in (*TABLES, "slopes") and x.size(0) > 1}
    arguments |= {f"{name}_head": by_head.get(name, 0) for name in (*TABLES, "slopes")}
    with torch.cuda.device_of(query):
        launch.start(
            "decode", (batch * blocks, kv_heads, parts), **arguments, out=some, lse=some_lse, parts=parts,
            R=rows, Q=of_program, N=max(16, min(64, how.bytes // wide)), LINES=1 if lines is None else lines.size(1),
            PIECES=16 if lines is None else _up(lines.size(1)), BY_HEAD="vectors" in by_head or "values" in by_head,
            num_warps=min(8, max(4, numbers // 2**10)), num_stages=how.stages, maxnreg=registers,
        )  # fmt: skip
        if parts > 1:
            launch.start(
                "decode_merge", (lse.numel(),), partial=some, partial_lse=some_lse, out=out, lse=lse, parts=parts,
                count=lse.numel(), V=known["V"], BLOCK_V=known["BLOCK_V"], PARTS=_up(parts), STEP=16, num_warps=4,
            )  # fmt: skip
    return out, lse


def _up(n: int) -> int:
    return 1 << (n - 1).bit_length()


class _Tiles(NamedTuple):
    """The tiles of each batch row. ``numbers``, int32, says where those of a row begin and end, counted in tiles, and
    then has `TILE` of each; None for a single tile, which is ``tile``. ``row`` is 1 if rows differ, else 0."""

    numbers: Tensor | None
    tile: Numbers
    row: int
    total: int

    def at(self, numbers: Tensor) -> "_Tiles":
        """The same with a copy of the numbers."""
        return self._replace(numbers=numbers)


def _tiles(tiling: Numbers, lows: Numbers, like: Tensor) -> dict[str, Any]:
    """The arguments that say which keys each query attends to."""
    found = _tiles_of(tiling, lows, like.size(0))
    if found.numbers is not None:
        found = on_device(like.device, _tiles_of, tiling, lows, like.size(0))  # type: ignore[type-var]
    return {"tiles": found.numbers, "tiles_row": found.row, "count": found.total} | dict(
        zip(TILE, found.tile, strict=True)
    )


@functools.lru_cache(KEPT)
def _tiles_of(tiling: Numbers, lows: Numbers, rows: int) -> _Tiles:
    told = Tiling.unflat(tiling)
    found = told.tiles(rows)
    is_ragged = len(told.query.rows or ()) != 1 or len(told.key.rows or ()) != 1
    tile = _numbers(found[0], lows) if found else (0,) * len(TILE)
    if len(found) <= 1 and not is_ragged:
        return _Tiles(None, tile, 0, len(found))
    of_rows = [0] * (rows if is_ragged else 1)
    for each in found:
        of_rows[each.row.start] += 1
    before = -(-(len(of_rows) + 1) // len(TILE))  # in place of tiles
    ends = [*itertools.accumulate(of_rows, initial=before)]
    ends += [0] * (before * len(TILE) - len(ends))
    numbers = [*ends, *itertools.chain.from_iterable(_numbers(each, lows) for each in found)]
    made = torch.tensor(numbers, dtype=torch.int32, device="cpu")
    return _Tiles(made, tile, int(is_ragged), len(found))


def _numbers(tile: Tile, lows: Numbers) -> Numbers:
    least, most = -ANY if tile.low is None else tile.low, ANY if tile.high is None else tile.high
    bases = [lows[POSSIBLE.index(name)] for name in (*TABLES, "away")]
    apart = [ANY if tile.distance is None else tile.distance - low for low in (*bases, 0)]
    within = (min(max(n, -ANY), ANY) for n in apart)
    return (tile.start, tile.stop, tile.first, tile.last, least, most, *within)


# -- operator ---------------------------------------------------------------------------------------------------------


PARTIAL_SUMS = 256  # programs of all windows of distances and heads, if some are to share a window


# -- forward ----------------------------------------------------------------------------------------------------


def forward(launch: Launch, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    tasks = launch.tasks(sizes.long)
    is_whole = tasks.covers(0, launch.query)
    out = blank(launch.value, is_whole, (*launch.query.shape[:3], launch.value.size(-1)))
    lse = launch.query.new_empty(launch.query.shape[:3], dtype=torch.float32)
    if not is_whole:
        lse.fill_(-torch.inf)
    if not tasks.is_empty:
        far = torch.empty_like(out, dtype=torch.float32) if launch.is_windowed else out
        launch.run("forward", tasks, 0, sizes, {"out": far, "lse": lse})
        if launch.is_windowed:
            near: Tensors = {"far": far, "out": out, "lse": lse}
            launch.run("forward_near", tasks, 0, sizes, near, sizes.long // sizes.square)
    return out, lse


def _deltas(launch: Launch, out: Tensor, dout: Tensor, lse: Tensor, dlse: Tensor | None) -> Tensor:
    """For each row, the product of the output and its gradient, less the gradient of the log-sum-exp."""
    delta, dlse = torch.empty_like(lse), None if dlse is None else dlse.contiguous()
    with torch.cuda.device_of(out):
        rows = {"out": out, "dout": dout, "lse": lse, "dlse": dlse, "delta": delta, "count": lse.numel()}
        known = {name: launch.known[name] for name in ("V", "BLOCK_V")}
        launch.start("backward_deltas", (-(-lse.numel() // LONG),), **rows, **known, ROWS=LONG, num_warps=4)
    return delta


# -- backward ---------------------------------------------------------------------------------------------------


def backward(launch: Launch, rows: Tensors, wanted: Sequence[str], sizes: Sizes) -> Tensors:
    """The gradients by name; ``rows`` are "dout", "lse" and "delta"."""
    query, key, value = launch.query, launch.key, launch.value
    tasks = launch.tasks(sizes.long)
    wholes = {"q": tasks.covers(0, query), "k": tasks.covers(1, key), "v": tasks.covers(1, key)}
    tensors = {"q": query, "k": key, "v": value}
    found: Tensors = {f"d{name}": blank(x, wholes[name], x.shape) for name, x in tensors.items()}
    if tasks.is_empty:
        return found | {name: torch.zeros_like(launch.given[name], dtype=torch.float32) for name in wanted}
    times = sizes.long // sizes.square
    past = query.shape[:3].numel()

    def ends_of(is_made: bool) -> Tensor | None:
        return blank(query, wholes["q"], (2, *query.shape[:3]), torch.float32) if is_made else None

    ends = {"met_ends": ends_of("vectors" in launch.given), "out_ends": ends_of("values" in launch.given)}
    pasts = {f"{name}_past": ends_of(name in wanted) for name in (*TABLES, "slopes")}
    clocks = {"query_clock", "key_clock"} & set(wanted)
    stored = torch.float32 if launch.is_windowed else query.dtype
    dq, dk, dv = (
        found[f"d{name}"] if x.dtype == stored else blank(x, wholes[name], x.shape, stored)
        for name, x in tensors.items()
    )
    others: Tensors = {"d_meeting": None, "d_shift": None, "d_query_clock": None}
    if "meeting" in wanted:
        others["d_meeting"] = blank(launch.given["meeting"], wholes["q"], launch.given["meeting"].shape, torch.float32)
    if clocks:
        clock = launch.given["query_clock"]
        others["d_query_clock"] = blank(clock, wholes["q"], clock.shape, torch.float32)
    shifts = []

    def shift(times: int) -> Tensor | None:
        if "shift" not in wanted:
            return None
        count = tasks.tasks[0].size(0) * times * tasks.rows
        shifts.append(query.new_zeros((count, query.size(1), query.size(-1)), dtype=torch.float32))
        return shifts[-1]

    shared: Tensors = {**rows, **others, **pasts, "past": past}
    launch.run("backward_queries", tasks, 0, sizes, {**shared, **ends, "dq": dq, "d_shift": shift(1)})
    of_keys = {**rows, **ends, "past": past}
    d_key_clock = torch.zeros_like(launch.given["key_clock"], dtype=torch.float32) if clocks else None
    launch.run("backward_keys", tasks, 1, sizes, {**of_keys, "dk": dk, "dv": dv, "d_key_clock": d_key_clock})
    if launch.is_windowed:
        near = {**shared, "far": dq, "dq": found["dq"], "d_shift": shift(times)}
        launch.run("backward_queries_near", tasks, 0, sizes, near, times)
        near = {**rows, "far_k": dk, "far_v": dv, "dk": found["dk"], "dv": found["dv"], "d_key_clock": d_key_clock}
        launch.run("backward_keys_near", tasks, 1, sizes, near, times)
    found |= {"meeting": others["d_meeting"], "query_clock": others["d_query_clock"], "key_clock": d_key_clock}
    if shifts:
        found["shift"] = torch.stack([x.sum(0) for x in shifts]).sum(0)
    if pasts["slopes_past"] is not None:
        found["slopes"] = _of_heads(pasts["slopes_past"].sum((1, 3)).T, launch.given["slopes"])
    _tables(launch, rows, [name for name in wanted if name in TABLES], pasts, sizes.square, found)
    return found


def _tables(launch: Launch, rows: Tensors, wanted: Sequence[str], pasts: Tensors, B: int, found: Tensors) -> None:
    """The gradients of tables: of the pairs beyond their ends, and of those within, window by window."""
    if not wanted:
        return
    query, lows = launch.query, launch.lows
    heads = query.size(1)
    least = min(lows[name] for name in wanted)
    most = max(lows[name] + launch.given[name].size(1) for name in wanted)
    windows = -(-(most - least) // B)
    tasks = launch.tasks(B)
    count = tasks.tasks[0].size(0)
    programs = max(1, min(PARTIAL_SUMS // (windows * heads), count * tasks.rows))
    widths = {name: launch.given[name].size(2) for name in TABLES if name in launch.given}
    sums: Tensors = {
        f"d_{name}": query.new_empty((programs, heads, windows + 1, 2, B, widths[name]), dtype=torch.float32)
        if name in wanted
        else None
        for name in TABLES
    }
    where = {"tasks": tasks.tasks[0], "tiles": tasks.tiles[0], "count": count, "batch": tasks.rows, "B": B}
    where |= {"least_r": least - B, "low": lows[wanted[0]], "lead": 6 + TABLES.index(wanted[0])}
    how = squares_of("backward_tables", launch.given, launch.channels)
    given = {**launch.pairs, **launch.counted[0], **rows, **sums, **launch.known, **where, **how}
    launch.start("backward_tables", (heads, windows + 1, programs), **given)
    for name in wanted:
        x = sums[f"d_{name}"].sum(0)  # (heads, windows + 1, 2, B, width)
        # Window w is the second half of its distances, and the first of those of window w + 1.
        line = x[:, :-1, 1] + x[:, 1:, 0]
        line = line.flatten(1, 2)[:, lows[name] - least :][:, : launch.given[name].size(1)].clone()
        if name in WINDOWED:
            by = rows["dout"] if name == "values" else launch.given.get("meeting", query)
            factor = launch.scale if name == "vectors" and "meeting" not in launch.given else 1.0
            ends = _ends(launch, pasts[f"{name}_past"], by) * factor
        else:
            ends = pasts[f"{name}_past"].sum((1, 3))[..., None]
        line[:, 0] += ends[0]
        line[:, -1] += ends[1]
        found[name] = _of_heads(line, launch.given[name])


def _ends(launch: Launch, pasts: Tensor, by: Tensor) -> Tensor:
    """The sums of rows ``by`` times the sums over their pairs beyond either end of a table, (2, heads, width)."""
    batch, heads, queries, width = by.shape
    blocks = -(-queries // LONG)
    ends = pasts.new_empty((batch * blocks, heads, 2, width))
    x = dict(zip(("x", "x_batch", "x_head", "x_row"), (by, *by.stride()), strict=False))
    known = {"W": width, "BLOCK_W": block_of(width), "ROWS": LONG}
    given: Tensors = {"pasts": pasts, "past": pasts[0].numel(), "ends": ends, "heads": heads, "queries": queries}
    launch.start("backward_ends", (blocks, heads, batch), **x, **given, **known, num_warps=4)
    return ends.sum(0).transpose(0, 1)


def blank(like: Tensor, is_whole: bool, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """A tensor to write to: zeros, unless the kernels write all of it."""
    return (like.new_empty if is_whole else like.new_zeros)(tuple(shape), dtype=dtype)


def _of_heads(x: Tensor, table: Tensor) -> Tensor:
    """The gradients of a table that may be the same for all heads."""
    return x.sum(0, keepdim=True) if table.size(0) == 1 else x


def _triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    given: Sequence[Tensor],
    names: str,
    learned: str,
    tiling: Sequence[int],
    form: Sequence[int],
    scale: float,
    skip_below: float,
    own: int,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp. ``given`` are the tensors of these names, of which the ``learned`` get gradients;
    ``tiling`` and ``form`` the numbers of a `Tiling` and a `KernelLayout`; ``skip_below`` the fraction of a row's
    weight that may be skipped; each query attends to its own key, which is ``own`` tokens later, or if -1 it may
    not."""
    inputs = dict(zip(names.split(), given, strict=True))
    launch = Launch(query, key, value, inputs, KernelLayout.unflat(form), scale, tiling, skip_below, own)
    if query.size(2) < FEW_QUERIES:
        return split(launch)
    found: tuple[Tensor, Tensor] = launch.fitting("forward", functools.partial(forward, launch))
    return found


def _triton_backward(
    dout: Tensor,
    dlse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    given: Sequence[Tensor],
    names: str,
    learned: str,
    tiling: Sequence[int],
    form: Sequence[int],
    scale: float,
    skip_below: float,
    own: int,
) -> list[Tensor]:
    """The gradients of query, key and value, and of learned tensors."""
    inputs, wanted = dict(zip(names.split(), given, strict=True)), learned.split()
    launch = Launch(query, key, value, inputs, KernelLayout.unflat(form), scale, tiling, skip_below, own)
    lse = lse.contiguous()  # what was saved may come back in another order
    rows: Tensors = {"dout": dout, "lse": lse, "delta": _deltas(launch, out.contiguous(), dout, lse, dlse)}
    found = launch.fitting("backward " + learned, functools.partial(backward, launch, rows, wanted), lse)
    tables = (found[name].to(inputs[name].dtype).contiguous() for name in wanted)
    return [*(found[name] for name in ("dq", "dk", "dv")), *tables]


def counted_for(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> Tensor | None:
    """For each block of queries, the first key that it is computed with and the one after the last, (batch, heads,
    blocks, 2); None for all. The arguments are those of the operator. Reads tensor values."""
    given, names, _, tiling, form, scale, skip_below, own = arguments
    inputs = dict(zip(names.split(), given, strict=True))
    launch = Launch(query, key, value, inputs, KernelLayout.unflat(form), scale, tiling, skip_below, own)
    with torch.cuda.device_of(query):
        (found,) = counted(launch, (0,))
    taken: Tensor | None = found["counted"]
    starts = launch.tasks(sizes_of(launch.channels, True)[0].long).tasks[0][:, 1]
    return taken if taken is None or not bool((starts % SPAN).any()) else of_neighbours(taken)


triton = custom_operator("posenc::triton", _triton, _triton_backward)
