"""The custom operator of the Triton kernels, and its derivative."""

import functools
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from posenc import compat
from posenc.backends.call import FEW_QUERIES
from posenc.backends.custom import custom_operator
from posenc.backends.operands import Form
from posenc.backends.triton import steps
from posenc.backends.triton.skipping import Counted, counted, of_neighbours
from posenc.backends.triton.tasks import LOWS, SPAN, TABLES, Tasks, tasks_of

# custom_op evaluates annotations, so no `from __future__ import annotations` here.

GRID = 65_535  # the maximum of the second and third dimension of a grid on CUDA
SMALLEST = 16  # the minimum size of tl.dot
WINDOWED = ("vectors", "values")  # tables whose near pairs have kernels of their own
OTHERS = ("meeting", "shift", "query_clock", "key_clock")  # inputs other than tables
PARTIAL_SUMS = 256  # programs of all windows of distances and heads, if some are to share a window

Tensors: TypeAlias = dict[str, Any]  # those of a kernel by name, None, or a stride


class Sizes(NamedTuple):
    """The blocks of kernels: ``long`` tokens of a program against blocks of ``short``; near pairs in squares. ``long``
    is a multiple of ``square``."""

    long: int
    short: int
    square: int


FAR = {"num_warps": 8, "num_stages": 2}
NEAR = {"num_warps": 8, "num_stages": 1}
# The first that fits on the device is used, and remembered by what is run there.
_FITTING: dict[tuple[object, ...], int] = {}
SIZES = (Sizes(128, 64, 64), Sizes(64, 32, 32), Sizes(32, 16, 16), Sizes(16, 16, 16))


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
def _kernel(name: str) -> Any:
    """A kernel by name. Triton is imported on first use."""
    file = name.split("_")[0]
    if name in ("backward_queries_near", "backward_keys_near", "backward_tables"):
        file = "backnear"
    return getattr(importlib.import_module(f"posenc.backends.triton.{file}"), name)


def _out_of_resources() -> type[Exception]:
    """What Triton raises where a kernel does not fit on the device."""
    error: type[Exception] = importlib.import_module("triton.runtime.errors").OutOfResources
    return error


def _readable(x: Tensor) -> Tensor:
    """A tensor whose channels are side by side, and the rows of a block so near that 32 bits say how far."""
    return x if x.stride(-1) == 1 and x.stride(-2) * SIZES[0].long < 2**31 else x.contiguous()


class _Launch:
    """The arguments of a call that all kernels share, and their launch."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        given: dict[str, Tensor],
        form: Form,
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
        blocks = {f"BLOCK_{name}": max(SMALLEST, 1 << (width - 1).bit_length()) for name, width in widths.items()}
        # TF32 only if PyTorch's matrix products may use it.
        precision = "tf32" if query.dtype == torch.float32 and compat.multiplies_in_tf32() else "ieee"
        precision = "exact" if is_interpreted() else precision
        self.known = {**widths, **blocks, "FUNCTION": known * (1 + is_last), "PRECISION": precision}
        self.is_windowed = any(name in self.given for name in WINDOWED)
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
        _kernel(name)[grid](**given, enable_fp_fusion=True)

    def run(self, name: str, tasks: Tasks, side: int, sizes: Sizes, made: Tensors, times: int = 1) -> None:
        """Runs a kernel over blocks of queries (side 0) or keys (side 1)."""
        work: dict[str, Any] = {"tasks": tasks.tasks[side], "tiles": tasks.tiles[side]}
        blocks = {"M": sizes.long, "N": sizes.short} if side == 0 else {"M": sizes.short, "N": sizes.long}
        how: dict[str, Any] = FAR
        if name.endswith("_near"):
            blocks["B"], how = sizes.square, NEAR
        else:
            work["HAS_RIGHT"] = self.has_right(tasks)
        grid = (work["tasks"].size(0) * times, self.query.size(1) if side == 0 else self.key.size(1), tasks.rows)
        self.start(name, grid, **self.shared, **work, **self.counted[side], **made, **self.known, **blocks, **how)

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
        widths = tuple(self.known.values())
        asked = (kernels, self.query.device, self.query.dtype, tuple(sorted(self.given)), widths)
        with torch.cuda.device_of(self.query):
            self.counted = counted(self, (0,) if lse is None else (0, 1), lse)
            for n in range(_FITTING.get(asked, 0), len(SIZES)):
                try:
                    found = run(SIZES[n])
                except _out_of_resources():
                    if n + 1 == len(SIZES):
                        raise
                else:
                    _FITTING[asked] = n
                    return found
        raise AssertionError

    # -- forward ----------------------------------------------------------------------------------------------------

    def forward(self, sizes: Sizes) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp."""
        out = self.value.new_zeros((*self.query.shape[:3], self.value.size(-1)))
        lse = self.query.new_full(self.query.shape[:3], -torch.inf, dtype=torch.float32)
        tasks = self.tasks(sizes.long)
        if not tasks.is_empty:
            far = torch.empty_like(out, dtype=torch.float32) if self.is_windowed else out
            self.run("forward", tasks, 0, sizes, {"out": far, "lse": lse})
            if self.is_windowed:
                near: Tensors = {"far": far, "out": out, "lse": lse}
                self.run("forward_near", tasks, 0, sizes, near, sizes.long // sizes.square)
        return out, lse

    # -- backward ---------------------------------------------------------------------------------------------------

    def backward(self, rows: Tensors, wanted: Sequence[str], sizes: Sizes) -> Tensors:
        """The gradients by name; ``rows`` are "dout", "lse" and "delta"."""
        query, key, value = self.query, self.key, self.value
        tasks = self.tasks(sizes.long)
        found: Tensors = {
            f"d{name}": torch.zeros_like(x, memory_format=torch.contiguous_format)
            for name, x in (("q", query), ("k", key), ("v", value))
        }
        found |= {name: torch.zeros_like(self.given[name], dtype=torch.float32) for name in wanted}
        if tasks.is_empty:
            return found
        times = sizes.long // sizes.square
        past = query.shape[:3].numel()

        def ends_of(is_made: bool) -> Tensor | None:
            return query.new_zeros((2, *query.shape[:3]), dtype=torch.float32) if is_made else None

        ends = {"met_ends": ends_of("vectors" in self.given), "out_ends": ends_of("values" in self.given)}
        pasts = {f"{name}_past": ends_of(name in wanted) for name in (*TABLES, "slopes")}
        clocks = {"query_clock", "key_clock"} & set(wanted)
        stored = torch.float32 if self.is_windowed else query.dtype
        dq, dk, dv = (
            x if x.dtype == stored else torch.zeros_like(x, dtype=stored)
            for x in (found["dq"], found["dk"], found["dv"])
        )
        others: Tensors = {"d_meeting": None, "d_shift": None, "d_query_clock": None}
        if "meeting" in wanted:
            others["d_meeting"] = torch.zeros_like(self.given["meeting"], dtype=torch.float32)
        if clocks:
            others["d_query_clock"] = torch.zeros_like(self.given["query_clock"], dtype=torch.float32)
        shifts = []

        def shift(times: int) -> Tensor | None:
            if "shift" not in wanted:
                return None
            count = tasks.tasks[0].size(0) * times * tasks.rows
            shifts.append(query.new_zeros((count, query.size(1), query.size(-1)), dtype=torch.float32))
            return shifts[-1]

        shared: Tensors = {**rows, **others, **pasts, "past": past}
        self.run("backward_queries", tasks, 0, sizes, {**shared, **ends, "dq": dq, "d_shift": shift(1)})
        of_keys = {**rows, **ends, "past": past}
        d_key_clock = torch.zeros_like(self.given["key_clock"], dtype=torch.float32) if clocks else None
        self.run("backward_keys", tasks, 1, sizes, {**of_keys, "dk": dk, "dv": dv, "d_key_clock": d_key_clock})
        if self.is_windowed:
            near = {**shared, "far": dq, "dq": found["dq"], "d_shift": shift(times)}
            self.run("backward_queries_near", tasks, 0, sizes, near, times)
            near = {**rows, "far_k": dk, "far_v": dv, "dk": found["dk"], "dv": found["dv"], "d_key_clock": d_key_clock}
            self.run("backward_keys_near", tasks, 1, sizes, near, times)
        found |= {"meeting": others["d_meeting"], "query_clock": others["d_query_clock"], "key_clock": d_key_clock}
        if shifts:
            found["shift"] = torch.stack([x.sum(0) for x in shifts]).sum(0)
        if pasts["slopes_past"] is not None:
            found["slopes"] = _of_heads(pasts["slopes_past"].sum((1, 3)).T, self.given["slopes"])
        self._tables(rows, [name for name in wanted if name in TABLES], pasts, sizes.square, found)
        return found

    def _tables(self, rows: Tensors, wanted: Sequence[str], pasts: Tensors, B: int, found: Tensors) -> None:
        """The gradients of tables: of the pairs beyond their ends, and of those within, window by window."""
        if not wanted:
            return
        query, lows = self.query, self.lows
        heads = query.size(1)
        least = min(lows[name] for name in wanted)
        most = max(lows[name] + self.given[name].size(1) for name in wanted)
        windows = -(-(most - least) // B)
        tasks = self.tasks(B)
        count = tasks.tasks[0].size(0)
        programs = max(1, min(PARTIAL_SUMS // (windows * heads), count * tasks.rows))
        widths = {name: self.given[name].size(2) for name in TABLES if name in self.given}
        sums: Tensors = {
            f"d_{name}": query.new_empty((programs, heads, windows + 1, 2, B, widths[name]), dtype=torch.float32)
            if name in wanted
            else None
            for name in TABLES
        }
        where = {"tasks": tasks.tasks[0], "tiles": tasks.tiles[0], "count": count, "batch": tasks.rows, "B": B}
        where |= {"least_r": least - B, "low": lows[wanted[0]], "lead": 6 + TABLES.index(wanted[0])}
        given = {**self.shared, **self.counted[0], **rows, **sums, **self.known, **where, **NEAR}
        self.start("backward_tables", (windows + 1, heads, programs), **given)
        for name in wanted:
            x = sums[f"d_{name}"].sum(0)  # (heads, windows + 1, 2, B, width)
            # Window w is the second half of its distances, and the first of those of window w + 1.
            line = x[:, :-1, 1] + x[:, 1:, 0]
            line = line.flatten(1, 2)[:, lows[name] - least :][:, : self.given[name].size(1)].clone()
            low, high = pasts[f"{name}_past"]
            if name in WINDOWED:
                by = rows["dout"] if name == "values" else self.given.get("meeting", query)
                factor = self.scale if name == "vectors" and "meeting" not in self.given else 1.0
                ends = [torch.einsum("bhi,bhid->hd", past, by.float()) * factor for past in (low, high)]
            else:
                ends = [past.sum((0, 2))[:, None] for past in (low, high)]
            line[:, 0] += ends[0]
            line[:, -1] += ends[1]
            found[name] = _of_heads(line, self.given[name])


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
    ``tiling`` and ``form`` the numbers of a `Tiling` and a `Form`; ``skip_below`` the fraction of a row's weight that
    may be skipped; each query attends to its own key, which is ``own`` tokens later, or if -1 it may not."""
    inputs = dict(zip(names.split(), given, strict=True))
    launch = _Launch(query, key, value, inputs, Form.unflat(form), scale, tiling, skip_below, own)
    if query.size(2) < FEW_QUERIES:
        return steps.split(launch)
    found: tuple[Tensor, Tensor] = launch.fitting("forward", launch.forward)
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
    launch = _Launch(query, key, value, inputs, Form.unflat(form), scale, tiling, skip_below, own)
    delta = (dout.float() * out.float()).sum(-1)
    if dlse is not None:
        delta -= dlse.masked_fill(lse == -torch.inf, 0.0)
    rows: Tensors = {"dout": dout, "lse": lse, "delta": delta}
    found = launch.fitting("backward " + learned, functools.partial(launch.backward, rows, wanted), lse)
    tables = (found[name].to(inputs[name].dtype).contiguous() for name in wanted)
    return [*(found[name] for name in ("dq", "dk", "dv")), *tables]


def counted_for(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> Tensor | None:
    """For each block of queries, the first key that it is computed with and the one after the last, (batch, heads,
    blocks, 2); None for all. The arguments are those of the operator. Reads tensor values."""
    given, names, _, tiling, form, scale, skip_below, own = arguments
    inputs = dict(zip(names.split(), given, strict=True))
    launch = _Launch(query, key, value, inputs, Form.unflat(form), scale, tiling, skip_below, own)
    with torch.cuda.device_of(query):
        (found,) = counted(launch, (0,))
    taken: Tensor | None = found["counted"]
    starts = launch.tasks(SIZES[0].long).tasks[0][:, 1]
    return taken if taken is None or not bool((starts % SPAN).any()) else of_neighbours(taken)


triton = custom_operator("posenc::triton", _triton, _triton_backward)
