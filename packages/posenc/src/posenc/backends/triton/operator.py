"""The custom operator of the Triton kernels, its derivative, and the launches of both."""

# custom_op evaluates annotations, so no `from __future__ import annotations` here.

import functools
import importlib
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import compat
from posenc.backends.blockwise import KernelLayout, custom_operator
from posenc.backends.call import FEW_QUERIES
from posenc.backends.fitting import run_first_fitting
from posenc.backends.triton.arguments import (
    PRECISIONS,
    TERMS,
    TILE,
    BrokenLines,
    Heads,
    Incoming,
    KeyBounds,
    Pasts,
    QueryBounds,
    RowGradients,
    Rows,
    Table,
    Terms,
    Widths,
    Work,
)
from posenc.backends.triton.tasks import LOWS, SPAN, TABLES, Tasks, places_of, row_tiles_of, tasks_of
from posenc.encoding.terms import skip_threshold

GRID = 65_535  # the maximum of the second and third dimension of a grid on CUDA
SMALLEST = 16  # the minimum size of tl.dot
OLDEST = (3, 5)  # whose kernels take structures; that of torch 2.9
WINDOWED = ("vectors", "values")  # tables whose near pairs have kernels of their own
MORE = ("factor", "query_clock")  # terms that take more registers than a bias

Tensors: TypeAlias = dict[str, Any]  # by name, or None
Preparation: TypeAlias = tuple[tuple[int, ...], Tensors, dict[str, Any]]  # the grid, arguments and options of a launch


class Blocks(NamedTuple):
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
# The first that fits on the device is used.
NARROW = (Blocks(64, 64, 64, 4, 3, 168), Blocks(64, 32, 32, 4, 2), Blocks(32, 16, 16, 4, 2), Blocks(16, 16, 16, 4, 1))
WIDE = (Blocks(128, 64, 64, 8, 3), Blocks(128, 64, 64, 8, 2), *NARROW[1:])
WIDE_FORWARD = (Blocks(64, 64, 64, 4, 3), *WIDE)
WIDEST = 256  # the maximum number of channels, which must fit into shared memory with a block of scores
# The most channels of a second part, in place of padding to so many.
SECOND = {128: 32, 256: 64}


def sizes_of(width: int, is_forward: bool) -> tuple[Blocks, ...]:
    """The sizes to try, of heads with so many channels."""
    if width <= 64:
        return NARROW
    return WIDE_FORWARD if width <= (128 if is_forward else 80) else WIDE


def squares_of(name: str, terms: Container[str], width: int) -> dict[str, int]:
    """How a kernel of squares is launched. Gradients have so many products that four warps lack registers, with values
    by distance or wide heads; only few products leave registers to load a square ahead."""
    most = 128 if name == "forward_near" else 64 if "values" not in terms else 0
    is_light = name == "forward_near" and "values" not in terms and width <= 64
    return {"num_warps": 4 if "vectors" in terms and width <= most else 8, "num_stages": 2 if is_light else 1}


def block_of(width: int) -> int:
    """The number of channels that kernels compute with."""
    return max(SMALLEST, _up(width))


def parts_of(width: int) -> tuple[int, int]:
    """The same of rows in two parts, of which the second may have none."""
    padded = block_of(width)
    rest = block_of(width - padded // 2)
    return (padded // 2, rest) if rest <= SECOND.get(padded, 0) else (padded, 0)


def _up(n: int) -> int:
    return 1 << (n - 1).bit_length()


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels on the CPU, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def missing() -> str | None:
    """Why the kernels cannot run in this process; None if they can."""
    try:
        version = str(importlib.import_module("triton").__version__)
    except ImportError:
        return "Triton is not installed"
    return None if tuple(map(int, version.split(".")[:2])) >= OLDEST else f"it needs Triton 3.5 or later, got {version}"


def too_many(batch: int, heads: int) -> str:
    """Why so many rows and heads cannot be run."""
    return f"it supports at most {GRID} rows of a batch and {GRID} heads, got {batch} and {heads}"


# Same as torch.compiler.assume_constant_result, which would import the whole compiler.
is_interpreted._dynamo_marked_constant = missing._dynamo_marked_constant = True  # type: ignore[attr-defined]


def kernel_of(name: str) -> Any:
    """A kernel by name. Triton is imported on first use."""
    return getattr(importlib.import_module("posenc.backends.triton.kernels"), name)


def out_of_resources() -> type[Exception]:
    """What Triton raises where a kernel does not fit on the device."""
    error: type[Exception] = importlib.import_module("triton.runtime.errors").OutOfResources
    return error


def _is_readable(x: Tensor) -> bool:
    """Whether channels are side by side, and the rows of a block so near that 32 bits say how far."""
    return x.stride(-1) == 1 and x.stride(-2) * LONG < 2**31


class Launch:
    """A kernel, its grid, and the arguments that calls of a plan have in common.

    Triton looks at every argument of a launch, to find what it has compiled for such ones. Where these differ from an
    earlier launch in tensors alone, and all of them are aligned alike, that is known already, and is called instead."""

    def __init__(self, name: str, grid: tuple[int, ...], arguments: Mapping[str, Any], **options: Any) -> None:
        self.kernel, self.grid = kernel_of(name), (*grid, 1, 1)[:3]
        # A part of the arguments; all of what tests put in a kernel's place.
        self.parameters: Sequence[str] | None = getattr(self.kernel, "arg_names", None)
        self.arguments = dict(arguments)
        if torch.version.hip is not None:  # which has no such limit
            options.pop("maxnreg", None)
        # Multiplications and additions are fused, which from Triton 3.10 on is no default.
        self.options = options | {"enable_fp_fusion": True}
        self.compiled: Callable[..., None] | None = None
        # The arguments in order, and where those of a call go among them.
        self.common: list[Any] = []
        self.places: list[tuple[int, str]] = []

    def __call__(self, is_aligned: bool, tensors: Tensors) -> None:
        """Starts it with these in place of tensors of other calls."""
        if is_aligned and self.compiled is not None:
            arguments = self.common.copy()
            for place, name in self.places:
                arguments[place] = tensors[name]
            self.compiled(*arguments)
            return
        of_all, parameters = self.arguments | tensors, self.parameters
        of_all = of_all if parameters is None else {name: of_all[name] for name in parameters}
        compiled = self.kernel[self.grid](**of_all, **self.options)
        if is_aligned and type(compiled).__name__ == "CompiledKernel":  # the interpreter returns None
            self.common = [None if name in tensors else of_all[name] for name in of_all]
            self.places = [(place, name) for place, name in enumerate(of_all) if name in tensors]
            self.compiled = compiled[self.grid]


class Inputs(NamedTuple):
    """What changes from call to call: query, key and value; arguments of kernels by name; the tensors of terms; and
    whether the addresses of all are multiples of 16, as those of new tensors are."""

    query: Tensor
    key: Tensor
    value: Tensor
    tensors: Tensors
    terms: Mapping[str, Tensor]
    is_aligned: bool


class Kernels:
    """The kernels for calls of these shapes and strides: what is launched with which numbers is found in the first."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        terms: Mapping[str, Tensor],
        form: KernelLayout,
        scale: float,
        tiling: Sequence[int],
        skip_below: float,
        own: int,
    ) -> None:
        query, key, value = tensors
        if max(query.shape[:2]) > GRID:
            raise ValueError(f"backend 'triton' cannot run this: {too_many(*query.shape[:2])}")
        (self.batch, self.heads, self.queries), (self.kv_heads, self.keys) = query.shape[:3], key.shape[1:3]
        self.device, self.dtype, self.shapes = query.device, query.dtype, {name: x.shape for name, x in terms.items()}
        self.form, self.tiling, self.skip_below, self.own = form, tuple(tiling), skip_below, own
        vectors = terms.get("vectors")
        widths = query.size(-1), value.size(-1), SMALLEST if vectors is None else vectors.size(-1)
        blocks = block_of(widths[0]), block_of(widths[1]), block_of(widths[2])
        # TF32 only if PyTorch's matrix products may use it.
        precision = "tf32" if query.dtype == torch.float32 and compat.multiplies_in_tf32() else "ieee"
        precision = "exact" if is_interpreted() else precision
        known, is_last = form.function
        self.widths = Widths(*widths, *blocks, known * (1 + is_last), PRECISIONS.index(precision))
        self.scale, self.is_windowed = scale, any(name in terms for name in WINDOWED)
        d, v = (parts_of(width) for width in widths[:2])
        if self.is_windowed or "shift" in terms:
            d, v = (blocks[0], 0), (blocks[1], 0)
        widest = max(blocks[2] if vectors is not None else 0, sum(d), sum(v))
        self.channels = widest if query.element_size() < 4 else WIDEST  # products of float32 take more registers
        self.entries = {f"{name}_entries": terms[name].size(1) if name in terms else 0 for name in TABLES}
        self.shared: Tensors = {"queries": self.queries, "keys": self.keys, "W": self.widths, "blocks": 0}
        q_row, k_row, v_row = (x.stride(2) if x.stride(2) <= x.stride(0) else None for x in tensors)
        self.strided = self.widths._replace(Q_ROW=q_row, K_ROW=k_row, V_ROW=v_row)
        self.in_parts = self.strided._replace(BLOCK_D=d[0], MORE_D=d[1], BLOCK_V=v[0], MORE_V=v[1])
        self.shared["heads"] = Heads(self.heads, self.heads // self.kv_heads, scale)
        self.shared["past"] = self.batch * self.heads * self.queries
        self.lows = {name: form.lows[at] for name, at in zip(TABLES, LOWS, strict=True) if name in terms}
        self.of_blocks: dict[int, Tasks] = {}
        self.launches: dict[Any, Launch] = {}
        self.sizes: dict[str, Blocks] = {}

    def tasks(self, block: int) -> Tasks:
        """The tasks of programs with so many tokens."""
        found = self.of_blocks.get(block)
        if found is None:
            found = tasks_of(self.tiling, tuple(self.form.lows), self.batch, block, self.device)
            self.of_blocks[block] = found
        return found

    def start(self, name: str, key: Any, inputs: Inputs, tensors: Tensors, prepare: Callable[[], Preparation]) -> None:
        """Starts a kernel, which ``prepare`` prepares the first time for a key."""
        launch = self.launches.get((name, key))
        if launch is None:
            grid, arguments, options = prepare()
            launch = self.launches[(name, key)] = Launch(name, grid, arguments, **options)
        launch(inputs.is_aligned, tensors)

    def run(
        self, name: str, side: int, sizes: Blocks, inputs: Inputs, counted: Tensor | None, tensors: Tensors
    ) -> None:
        """Runs a kernel over blocks of queries (side 0) or keys (side 1)."""
        tasks = self.tasks(sizes.long)
        is_near = name.endswith("_near")

        def prepare() -> Preparation:
            arguments = self.shared | self.pair_entries | {"W": self.strided if is_near else self.in_parts}
            arguments |= {"M": sizes.long, "N": sizes.short} if side == 0 else {"M": sizes.short, "N": sizes.long}
            options: dict[str, Any] = {"num_warps": sizes.warps, "num_stages": sizes.stages}
            if is_near:
                arguments["B"], options = sizes.square, squares_of(name, self.shapes, self.channels)
            else:
                arguments["HAS_RIGHT"] = self._has_right(tasks)
                # Lookups in tables are loaded ahead too, a number for each pair: one block, or far loops take up
                # to three times the instructions. For gradients of narrow heads with more than a bias, registers lack.
                looks_up, is_wide = self.entries["bias_entries"] > 1 or "factor" in self.shapes, self.channels > 64
                is_scarce = not is_wide and name != "forward" and not self.shapes.keys().isdisjoint(MORE)
                ahead = 1 if is_scarce or self.channels > 128 else min(sizes.stages, 2)
                arguments["NEAR_STAGES"] = ahead if looks_up else sizes.stages if is_wide or not side else 1
                if sizes.registers and not side:
                    options["maxnreg"] = sizes.registers
            arguments["blocks"] = 0 if counted is None else counted.size(2)
            times = sizes.long // sizes.square if is_near else 1
            heads = self.heads if side == 0 else self.kv_heads
            return (tasks.tasks[side].size(0) * times, heads, tasks.rows), arguments, options

        work = Work(tasks.tasks[side], tasks.tiles[side], counted)
        self.start(name, sizes, inputs, {**inputs.tensors, "work": work, **tensors}, prepare)

    @property
    def pair_entries(self) -> dict[str, int | None]:
        """The entries of tables for kernels of all pairs: a bias of one entry has None of them (`last_of`)."""
        return self.entries | ({} if self.entries["bias_entries"] > 1 else {"bias_entries": None})

    def _has_right(self, tasks: Tasks) -> bool:
        """Whether any pair is to the right of all tables."""
        past = [low + self.entries[f"{name}_entries"] for name, low in self.lows.items()]
        return bool(past) and tasks.furthest >= max(past)

    def _fitting(self, kernels: str, sizes: Sequence[Blocks], run: Callable[[Blocks], Any]) -> Any:
        """What ``run`` returns with the largest sizes that fit on the device."""
        if kernels in self.sizes:
            return run(self.sizes[kernels])
        kind = "triton", kernels, self.device, self.dtype, tuple(sorted(self.shapes)), self.widths
        error = out_of_resources()
        self.sizes[kernels], found = run_first_fitting(kind, sizes, run, lambda raised: isinstance(raised, error))
        return found

    # -- which blocks count -------------------------------------------------------------------------------------------

    def counted(self, inputs: Inputs, sides: tuple[int, ...], lse: Tensor | None = None) -> list[Tensor | None]:
        """For blocks of queries (side 0) and of keys (side 1), the first token and the one after the last of the other
        side, that may have more than ``skip_below`` of a row's weight, (batch, heads, blocks, 2) int32; None for all.
        Does not synchronize a device.

        Without the log-sum-exp, each query must attend to its own key. A function of the score has no bound."""
        has_least = lse is not None or self.own >= 0
        if self.skip_below <= 0 or self.keys < FEWEST_KEYS or self.widths.FUNCTION or not has_least:
            return [None for _ in sides]
        terms = inputs.terms
        has_bias, is_clocked = "bias" in terms, "query_clock" in terms
        places = self._places if has_bias else None
        if has_bias and places is None:
            return [None for _ in sides]
        query, blocks = inputs.query, (-(-self.queries // SPAN), -(-self.keys // SPAN))

        def bounds(heads: int, count: int, is_there: bool = True, dtype: torch.dtype = torch.float32) -> Any:
            return query.new_empty((self.batch, heads, count), dtype=dtype) if is_there else None

        of_queries = QueryBounds(
            bounds(self.heads, blocks[0]),
            bounds(self.heads, blocks[0], "vectors" in terms),
            bounds(self.heads, blocks[0], is_clocked, torch.float64),
            bounds(self.heads, blocks[0]),
        )
        of_keys = KeyBounds(bounds(self.kv_heads, blocks[1]), bounds(self.heads, blocks[1], is_clocked, torch.float64))
        longest = None
        if "vectors" in terms:
            longest = torch.linalg.vector_norm(terms["vectors"], dim=-1, dtype=torch.float32).amax(-1)
            longest = longest.expand(self.heads).contiguous()  # which the kernel reads without a stride
        highest = None
        if has_bias:
            highest = terms["highest"] if "highest" in terms else highest_of(terms)
        grids = [(blocks[0], self.heads, self.batch), (blocks[1], self.kv_heads, self.batch)]
        q, k, tables = (inputs.tensors[name] for name in ("q", "k", "terms"))
        tensors: Tensors = {"q": q, "k": k, "terms": tables, "lse": lse, "longest": longest, "bounds": of_queries}
        prepare = functools.partial(self._prepare_bounds, blocks)
        self.start("bounds_queries", lse is None, inputs, tensors, functools.partial(prepare, grids[0]))
        tensors = {"k": k, "key_clock": tables.key_clock, "bounds": of_keys}
        self.start("bounds_keys", None, inputs, tensors, functools.partial(prepare, grids[1]))
        place_q, place_k = places or (None, None)
        tensors = {"of_queries": of_queries, "of_keys": of_keys, "place_q": place_q, "place_k": place_k}
        tensors |= {"bias": tables.bias, "slopes": tables.slopes, "highest": table_of(highest)}
        counted: list[Tensor | None] = []
        for side in sides:
            of_side = query.new_empty((self.batch, self.heads, blocks[side], 2), dtype=torch.int32)
            grid = blocks[side], self.heads, self.batch
            tensors["counted"] = of_side
            self.start("bounds_counted", side, inputs, tensors, functools.partial(prepare, grid, side == 1))
            counted.append(of_side)
        return counted

    def _prepare_bounds(self, blocks: tuple[int, int], grid: tuple[int, ...], of_keys: bool = False) -> Preparation:
        arguments = self.shared | self.entries | {"own": self.own, "low": self.lows.get("bias", 0), "SPAN": SPAN}
        arguments |= {"blocks_q": blocks[0], "blocks_k": blocks[1], "C": AT_ONCE, "OF_KEYS": of_keys}
        arguments |= {"threshold": skip_threshold(self.skip_below, self.keys)}
        return grid, arguments, {"num_warps": 4}

    @functools.cached_property
    def _places(self) -> tuple[Table, Table] | None:
        """The coordinates of blocks of queries and keys, if they are known."""
        places = places_of(self.tiling, self.queries, self.keys, self.device)
        if places is None:
            return None
        query, key = (Table(x, int(x.size(0) > 1)) for x in (places.query, places.key))
        return query, key

    # -- forward ------------------------------------------------------------------------------------------------------

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp."""
        with torch.cuda.device_of(inputs.query):
            if self.queries < FEW_QUERIES:
                return self.split(inputs)
            (counted,) = self.counted(inputs, (0,))
            run = functools.partial(self._forward, inputs, counted)
            found: tuple[Tensor, Tensor] = self._fitting("forward", sizes_of(self.channels, True), run)
        return found

    def _forward(self, inputs: Inputs, counted: Tensor | None, sizes: Blocks) -> tuple[Tensor, Tensor]:
        tasks, query = self.tasks(sizes.long), inputs.query
        is_whole = tasks.covers(0, query)
        out = blank(query, is_whole, (*query.shape[:3], self.widths.V))
        lse = query.new_empty(query.shape[:3], dtype=torch.float32)
        if not is_whole:
            lse.fill_(-torch.inf)
        if not tasks.is_empty:
            far = torch.empty_like(out, dtype=torch.float32) if self.is_windowed else out
            self.run("forward", 0, sizes, inputs, counted, {"out": far, "lse": lse})
            if self.is_windowed:
                self.run("forward_near", 0, sizes, inputs, counted, {"far": far, "out": out, "lse": lse})
        return out, lse

    # -- few queries --------------------------------------------------------------------------------------------------

    def split(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of a call with few queries."""
        query, terms, widths = inputs.query, inputs.terms, self.widths
        split = self._split
        parts = split[0][2]
        out = query.new_empty((self.batch, self.heads, self.queries, widths.V))
        lse = query.new_empty((self.batch, self.heads, self.queries), dtype=torch.float32)
        some, some_lse = out, lse
        if parts > 1:
            some, some_lse = (lse.new_empty((parts, *x.shape)) for x in (out, lse))
        broken = BrokenLines(terms.get("away"), table_of(terms.get("share")), terms.get("lines"), terms.get("ends"))
        of_keys = terms.get("key_norms") if self._skips_by_norms else None
        norms = None if of_keys is None else Rows(of_keys, *of_keys.stride())
        tensors = {**inputs.tensors, "out": some, "lse": some_lse, "broken": broken, "key_norms": norms}
        self.start("decode", None, inputs, tensors, lambda: split)
        if parts > 1:
            merged = {"partial": some, "partial_lse": some_lse, "out": out, "lse": lse}
            numbers = {"parts": parts, "count": lse.numel(), "V": widths.V, "BLOCK_V": widths.BLOCK_V}
            numbers |= {"PARTS": _up(parts), "STEP": 16}
            self.start("decode_merge", None, inputs, merged, lambda: ((lse.numel(),), numbers, {"num_warps": 4}))
        return out, lse

    @property
    def _skips_by_norms(self) -> bool:
        return self.skip_below > 0 and not self.widths.FUNCTION and self.shapes.keys().isdisjoint(UNBOUNDED)

    @functools.cached_property
    def _split(self) -> Preparation:
        """How a kernel of few queries is launched."""
        groups, widths, shapes, size = self.heads // self.kv_heads, self.widths, self.shapes, self.dtype.itemsize
        of_program = min(_up(self.queries), 1 << max(1, ROWS // groups).bit_length() - 1)
        rows, blocks = max(16, _up(groups * of_program)), -(-self.queries // of_program)
        config = next(config for name, config in SPLITS.items() if not name or name in shapes)
        parts = max(1, min(config.programs // (self.batch * blocks * self.kv_heads), -(-self.keys // LEAST)))
        lines = shapes["lines"][1] if "lines" in shapes else None
        tiles = row_tiles_of(self.tiling, tuple(self.form.lows), self.batch, self.device)
        arguments = self.shared | self.entries | dict(zip(TILE, tiles.tile, strict=True))
        arguments |= {"count": tiles.count, "parts": parts, "R": rows, "Q": of_program}
        arguments |= {"tiles": None if tiles.numbers is None else Table(tiles.numbers, tiles.by_row)}
        arguments |= {"faint": skip_threshold(self.skip_below, self.keys) if self._skips_by_norms else 0.0}
        arguments |= {"away_entries": shapes["away"][1] if "away" in shapes else 0}
        arguments |= {"LINES": lines or 1, "PIECES": 16 if lines is None else _up(lines)}
        arguments |= {"N": max(16, min(64, config.bytes // (max(widths.BLOCK_D, widths.BLOCK_V) * size)))}
        arguments |= {"BY_HEAD": any(shapes[name][0] > 1 for name in WINDOWED if name in shapes)}
        numbers = rows * widths.BLOCK_V
        options = {"num_warps": min(8, max(4, numbers // 2**10)), "num_stages": config.stages}
        options["maxnreg"] = config.registers if numbers * size <= SMALL else REGISTERS
        return (self.batch * blocks, self.kv_heads, parts), arguments, options

    # -- backward -----------------------------------------------------------------------------------------------------

    def backward(
        self,
        inputs: Inputs,
        dout: Tensor,
        dlse: Tensor | None,
        out: Tensor,
        lse: Tensor,
        wanted: Sequence[str],
    ) -> Tensors:
        """The gradients by name, "q", "k" and "v" among them. ``dout``, ``out`` and ``lse`` are contiguous."""
        rows: Tensors = {"out": out, "dout": dout, "lse": lse, "dlse": None if dlse is None else dlse.contiguous()}
        inputs = inputs._replace(is_aligned=inputs.is_aligned and are_aligned((dout, out, lse, dlse)))
        with torch.cuda.device_of(dout):
            rows["delta"] = delta = torch.empty_like(lse)
            numbers = {"count": lse.numel(), "V": self.widths.V, "BLOCK_V": self.widths.BLOCK_V, "ROWS": LONG}
            grid = (-(-lse.numel() // LONG),)
            self.start("backward_deltas", dlse is None, inputs, rows, lambda: (grid, numbers, {"num_warps": 4}))
            inputs.tensors["incoming"] = Incoming(dout, lse, delta)
            counted = self.counted(inputs, (0, 1), lse)
            run = functools.partial(self._backward, inputs, wanted, counted)
            found: Tensors = self._fitting(f"backward {' '.join(wanted)}", sizes_of(self.channels, False), run)
        return found

    def _backward(
        self, inputs: Inputs, wanted: Sequence[str], counted: Sequence[Tensor | None], sizes: Blocks
    ) -> Tensors:
        terms, tasks = inputs.terms, self.tasks(sizes.long)
        tensors, query = {"q": inputs.query, "k": inputs.key, "v": inputs.value}, inputs.query
        wholes = {name: tasks.covers(int(name != "q"), x) for name, x in tensors.items()}
        found: Tensors = {name: blank(x, wholes[name], x.shape) for name, x in tensors.items()}
        if tasks.is_empty:
            return found | {name: torch.zeros_like(terms[name], dtype=torch.float32) for name in wanted}

        def of_rows(like: Tensor | None, *shape: int) -> Tensor | None:
            return None if like is None else blank(query, wholes["q"], shape or like.shape, torch.float32)

        def of_ends(is_there: bool) -> Tensor | None:
            return of_rows(query, 2, *query.shape[:3]) if is_there else None

        learned = {name: terms[name] for name in wanted}
        met_ends, out_ends = of_ends("vectors" in terms), of_ends("values" in terms)
        pasts = Pasts(*(of_ends(name in learned) for name in TERMS[:5]))
        stored = torch.float32 if self.is_windowed else query.dtype
        far = {
            name: found[name] if x.dtype == stored else blank(x, wholes[name], x.shape, stored)
            for name, x in tensors.items()
        }
        is_clocked = not learned.keys().isdisjoint(("query_clock", "key_clock"))
        d_query_clock = of_rows(terms["query_clock"] if is_clocked else None)
        d_key_clock = torch.zeros_like(terms["key_clock"], dtype=torch.float32) if is_clocked else None
        shifts: list[Tensor] = []

        def of_queries(query_gradient: Tensor, times: int) -> RowGradients:
            if "shift" in learned:
                count = tasks.tasks[0].size(0) * times * tasks.rows
                shifts.append(query.new_zeros((count, self.heads, self.widths.D), dtype=torch.float32))
            return RowGradients(query_gradient, d_meeting, shifts[-1] if shifts else None, d_query_clock)

        d_meeting = of_rows(learned.get("meeting"))
        on_queries: Tensors = {"gradients": of_queries(far["q"], 1), "pasts": pasts}
        on_keys: Tensors = {"dk": far["k"], "dv": far["v"], "d_key_clock": d_key_clock}
        ends = {"met_ends": met_ends, "out_ends": out_ends}
        self.run("backward_queries", 0, sizes, inputs, counted[0], {**on_queries, **ends})
        self.run("backward_keys", 1, sizes, inputs, counted[1], {**on_keys, **ends})
        if self.is_windowed:
            near = {"far": far["q"], "gradients": of_queries(found["q"], sizes.long // sizes.square), "pasts": pasts}
            self.run("backward_queries_near", 0, sizes, inputs, counted[0], near)
            near = {
                "far_k": far["k"],
                "far_v": far["v"],
                "dk": found["k"],
                "dv": found["v"],
                "d_key_clock": d_key_clock,
            }
            self.run("backward_keys_near", 1, sizes, inputs, counted[1], near)
        found |= {"meeting": d_meeting, "query_clock": d_query_clock, "key_clock": d_key_clock}
        if shifts:
            found["shift"] = torch.stack([x.sum(0) for x in shifts]).sum(0)
        if pasts.slopes is not None:
            slopes = pasts.slopes.sum((1, 3)).T
            found["slopes"] = slopes if terms["slopes"].size(0) > 1 else slopes.sum(0, keepdim=True)
        tables = [name for name in wanted if name in TABLES]
        return found | (self._tables(inputs, counted[0], tables, pasts, sizes.square) if tables else {})

    def _tables(
        self, inputs: Inputs, counted: Tensor | None, wanted: Sequence[str], pasts: Pasts, B: int
    ) -> dict[str, Tensor]:
        """The gradients of tables: of the pairs beyond their ends, and of those within, window by window."""
        query, terms, lows = inputs.query, inputs.terms, self.lows
        least = min(lows[name] for name in wanted)
        most = max(lows[name] + terms[name].size(1) for name in wanted)
        windows = -(-(most - least) // B)
        tasks = self.tasks(B)
        count = tasks.tasks[0].size(0)
        programs = max(1, min(PARTIAL_SUMS // (windows * self.heads), count * tasks.rows))
        sums: Tensors = {f"d_{name}": None for name in TABLES}
        for name in wanted:  # the windows and one more, in halves
            shape = programs, self.heads, (windows + 1) * 2 * B, terms[name].size(2)
            sums[f"d_{name}"] = query.new_empty(shape, dtype=torch.float32)

        def prepare() -> Preparation:
            arguments = self.shared | self.pair_entries | {"count": count, "batch": tasks.rows, "B": B}
            arguments["W"] = self.strided
            arguments |= {"blocks": 0 if counted is None else counted.size(2)}
            arguments |= {"least_r": least - B, "low": lows[wanted[0]], "lead": 6 + TABLES.index(wanted[0])}
            options = squares_of("backward_tables", self.shapes, self.channels)
            return (self.heads, windows + 1, programs), arguments, options

        work = Work(tasks.tasks[0], tasks.tiles[0], counted)
        self.start("backward_tables", tuple(wanted), inputs, {**inputs.tensors, **sums, "work": work}, prepare)
        found = {}
        for name in wanted:
            # Window w is the second half of its distances, and the first of those of window w + 1.
            x = sums[f"d_{name}"][:, :, B:-B].view(programs, self.heads, windows, 2, B, -1)
            (heads, entries, width), first = terms[name].shape, lows[name] - least
            of_all = (1,) if heads == 1 else ()  # which share a table
            line = x.sum((0, *of_all, 3)).view(heads, windows * B, width)[:, first : first + entries]
            past, factor = pasts[TERMS.index(name)], 1.0
            if name in WINDOWED:
                by = inputs.tensors["incoming"].dout if name == "values" else terms.get("meeting", query)
                factor = self.scale if name == "vectors" and "meeting" not in terms else 1.0
                ends = self._ends(inputs, name, past, by).sum((0, *of_all)).view(heads, 2, width)
            else:
                ends = (past.sum((1, 3)).T if heads > 1 else past.sum((1, 2, 3))).view(heads, 2, 1)
            ends = ends if entries > 1 else ends.sum(1, keepdim=True)
            line[:, :: max(entries - 1, 1)].add_(ends, alpha=factor)
            found[name] = line
        return found

    def _ends(self, inputs: Inputs, name: str, pasts: Tensor, by: Tensor) -> Tensor:
        """Rows ``by`` times their sums over the pairs beyond either end of a table, (programs, heads, 2, width)."""
        width, blocks = by.size(-1), -(-self.queries // LONG)
        ends = pasts.new_empty((self.batch * blocks, self.heads, 2, width))

        def prepare() -> Preparation:
            numbers = {"past": self.shared["past"], "heads": self.heads, "queries": self.queries}
            numbers |= {"W": width, "BLOCK_W": block_of(width), "ROWS": LONG}
            return (blocks, self.heads, self.batch), numbers, {"num_warps": 4}

        tensors = {"x": Rows(by, *by.stride()[:3]), "pasts": pasts, "ends": ends}
        self.start("backward_ends", name, inputs, tensors, prepare)
        return ends


AT_ONCE = 64  # blocks of the other side that count or not
FEWEST_KEYS = 1024  # a guess of the number from which on it pays off: not measured yet
PARTIAL_SUMS = 256  # programs of all windows of distances and heads, if some are to share a window
LEAST = 128  # keys of a program with few queries
ROWS = 64  # queries of all heads of such a program; at least one query of each


class SplitConfig(NamedTuple):
    """How the keys are split: over about so many ``programs``, which should all run at once. A program holds so many
    ``bytes`` of keys, and of values, in each of its ``stages``. A thread has at most so many ``registers``."""

    programs: int
    bytes: int
    stages: int
    registers: int


# By the input that is most to hold. Programs are two to four for each multiprocessor of an H100, which has registers
# for as many, if their outputs are small.
SPLITS = {
    "lines": SplitConfig(264, 2**13, 2, 255),
    "key_clock": SplitConfig(396, 2**12, 2, 168),
    "vectors": SplitConfig(528, 2**12, 2, 128),
    "values": SplitConfig(528, 2**12, 2, 128),
    "": SplitConfig(528, 2**13, 2, 128),
}
SMALL = 2**11  # bytes of an output
REGISTERS = 255  # of a thread
UNBOUNDED = ("vectors", "away")  # terms of which no bound is known with few queries


def are_aligned(tensors: Iterable[Tensor | None]) -> bool:
    """Whether addresses are multiples of 16, of which Triton makes kernels of their own."""
    offsets = [x.data_ptr() % 16 for x in tensors if x is not None]
    return not any(offsets)


def table_of(x: Tensor | None) -> Table | None:
    """A table that all heads may share, for kernels."""
    return None if x is None else Table(x, int(x.size(0) > 1))


def terms_of(terms: Mapping[str, Tensor]) -> Terms:
    """The tensors of terms, for kernels."""
    return Terms(*[table_of(terms.get(name)) for name in TERMS[:5]], *[terms.get(name) for name in TERMS[5:]])


def highest_of(terms: Mapping[str, Tensor]) -> Tensor:
    """The maximum of the bias, (heads or 1, entries), over the distances of two contiguous blocks, wherever these
    start. Beyond its ends it repeats its end entries, or is a line that is not of the table."""
    window = 2 * SPAN - 1
    beyond: dict[str, Any] = {"value": -torch.inf} if "slopes" in terms else {"mode": "replicate"}
    return F.max_pool1d(F.pad(terms["bias"].detach()[..., 0], (window, window), **beyond), window, 1)


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


def blank(like: Tensor, is_whole: bool, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """A tensor to write to: zeros, unless the kernels write all of it."""
    return (like.new_empty if is_whole else like.new_zeros)(tuple(shape), dtype=dtype)


# -- operator ---------------------------------------------------------------------------------------------------------


def _named(dtype: torch.dtype, names: Sequence[str], given: Sequence[Tensor]) -> dict[str, Tensor]:
    """The tensors of terms by name, as kernels read them."""
    found = {name: x if name == "key_norms" else x.contiguous() for name, x in zip(names, given, strict=False)}
    return {name: x.to(dtype) if name in ("meeting", *WINDOWED) else x for name, x in found.items()}


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
    return Prepared(None, names, learned, tiling, form, scale, skip_below, own).forward(query, key, value, given)


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
    prepared = Prepared(None, names, learned, tiling, form, scale, skip_below, own)
    return prepared.backward(dout, dlse, query, key, value, out, lse, given)


class Prepared:
    """What calls of one plan have in common: the operator's arguments besides query, key and value, and the kernels of
    the first call, of which others change only tensors. ``given`` are those tensors of terms that all calls have, the
    first of ``names``; None if each call has its own, of the same shapes. ``is_shared``: see `blockwise.deriving`. A
    call with other strides or shapes has kernels of its own, which are not kept.

    Nothing of a call is written to it but what every call would write, so threads may share it."""

    def __init__(self, given: Sequence[Tensor] | None, *rest: Any, is_shared: bool = False) -> None:
        self.given, self.rest, self.is_shared = given, rest, is_shared
        self.names, self.learned = rest[0].split(), rest[1].split()
        self.is_complete = given is not None and len(given) == len(self.names)
        self.has_plain_memory = given is not None and self.is_complete and compat.is_plain_memory(given)
        # Those that all calls have, as kernels read them, and whether all are aligned.
        self.terms: tuple[dict[str, Tensor], Terms, bool] | None = None
        self.kernels: Kernels | None = None
        self.shapes: tuple[Any, ...] = ()

    def counted(self, query: Tensor, key: Tensor, value: Tensor, given: Sequence[Tensor]) -> Tensor | None:
        """For each block of queries, the first key that it is computed with and the one after the last, (batch, heads,
        blocks, 2); None for all. Reads tensor values."""
        kernels, inputs = self._inputs(query, key, value, given)
        with torch.cuda.device_of(query):
            (counted,) = kernels.counted(inputs, (0,))
        starts = kernels.tasks(sizes_of(kernels.channels, True)[0].long).tasks[0][:, 1]
        return counted if counted is None or not bool((starts % SPAN).any()) else of_neighbours(counted)

    def _inputs(self, query: Tensor, key: Tensor, value: Tensor, given: Sequence[Tensor]) -> tuple[Kernels, Inputs]:
        """The kernels of these tensors, and what they read."""
        common = self.given or ()
        if self.terms is None:
            terms = _named(query.dtype, self.names, common)
            self.terms = terms, terms_of(terms), are_aligned(terms.values())
        terms, structure, is_aligned = self.terms
        others = given[len(common) :]
        if others:
            of_call = _named(query.dtype, self.names[len(common) :], others)
            terms = terms | of_call
            structure, is_aligned = terms_of(terms), is_aligned and are_aligned(of_call.values())
        strides: tuple[Any, ...] = query.stride(), key.stride(), value.stride()
        is_tf32 = query.dtype == torch.float32 and compat.multiplies_in_tf32()
        shapes = query.shape, key.shape, value.shape, strides, is_tf32, *[(x.shape, x.stride()) for x in others]
        if shapes == self.shapes and self.kernels is not None:
            kernels = self.kernels
        else:
            tensors = [x if _is_readable(x) else x.contiguous() for x in (query, key, value)]
            _, _, tiling, form, scale, skip_below, own = self.rest
            kernels = Kernels(tensors, terms, KernelLayout.unflat(form), scale, tiling, skip_below, own)
            if self.kernels is None and all(x is y for x, y in zip(tensors, (query, key, value), strict=True)):
                self.kernels, self.shapes = kernels, shapes
            query, key, value = tensors
            strides = query.stride(), key.stride(), value.stride()
        rows = [Rows(x, *of[:3]) for x, of in zip((query, key, value), strides, strict=True)]
        arguments: Tensors = {"q": rows[0], "k": rows[1], "v": rows[2], "terms": structure}
        return kernels, Inputs(query, key, value, arguments, terms, is_aligned and are_aligned((query, key, value)))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, given: Sequence[Tensor], *_: Any
    ) -> tuple[Tensor, Tensor]:
        """As `_triton`."""
        kernels, inputs = self._inputs(query, key, value, given)
        return kernels.forward(inputs)

    def backward(
        self,
        dout: Tensor,
        dlse: Tensor | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        lse: Tensor,
        given: Sequence[Tensor],
        *_: Any,
    ) -> list[Tensor]:
        """As `_triton_backward`."""
        kernels, inputs = self._inputs(query, key, value, given)
        # What was saved may come back in another order.
        found = kernels.backward(inputs, dout, dlse, out.contiguous(), lse.contiguous(), self.learned)
        of = dict(zip(self.names, given, strict=True))
        learned = (found[name].to(of[name].dtype).contiguous() for name in self.learned)
        return [*(found[name] for name in ("q", "k", "v")), *learned]


triton = custom_operator("posenc::triton", _triton, _triton_backward)
