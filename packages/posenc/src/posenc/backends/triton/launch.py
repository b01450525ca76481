"""The launch of the Triton kernels: what all kernels of a call are given, and in which blocks they run."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from posenc import compat
from posenc.backends.operands import Form
from posenc.backends.triton.skipping import Counted, counted
from posenc.backends.triton.tasks import LOWS, TABLES, Tasks, tasks_of

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
    file = name.split("_")[0]
    if name in ("backward_queries_near", "backward_keys_near", "backward_tables"):
        file = "backnear"
    return getattr(importlib.import_module(f"posenc.backends.triton.{file}"), name)


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
