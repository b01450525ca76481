"""The custom operator of the Triton kernels, and its derivative."""

import functools
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.backends.custom import custom_operator
from posenc.backends.operands import Form
from posenc.backends.triton.tasks import LOWS, TABLES, Tasks, tasks_of

# custom_op evaluates annotations, so no `from __future__ import annotations` here.

NARROW = 128  # bytes per row that fit into registers with a block of 64 (docs/log.md)
SMALLEST = 16  # the minimum size of tl.dot
HOW = {"num_warps": 8, "num_stages": 1, "enable_fp_fusion": True}
BLOCKS = (64, 32, 16)  # sizes of a block of scores; the first that fits on the device is used
FAR_HOW = {'num_warps': 8, 'num_stages': 2, 'enable_fp_fusion': True}
B = 64
FAR_BLOCKS = ((128, 64), (64, 64), (32, 32), (16, 16))
OTHERS = ("meeting", "shift", "query_clock", "key_clock")  # inputs other than tables

Tensors = dict[str, Tensor | None]


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


# Same as torch.compiler.assume_constant_result, which would import the whole compiler.
is_interpreted._dynamo_marked_constant = missing._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _kernel(name: str) -> Any:
    """A kernel by name. Triton is imported on first use."""
    module = importlib.import_module(f"posenc.backends.triton.{name.split('_')[0]}")
    return getattr(module, name)


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
    ) -> None:
        self.query, self.key, self.value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
        self.given = {name: x.to(query.dtype) if name == "meeting" else x.contiguous() for name, x in given.items()}
        self.form = form
        self.scale, self.tasks = scale, _tasks(query, tiling, form.lows)
        known, is_last = form.function
        vectors = self.given.get("vectors")
        widths = {"D": query.size(-1), "V": value.size(-1), "E": SMALLEST if vectors is None else vectors.size(-1)}
        blocks = {f"BLOCK_{name}": max(SMALLEST, 1 << (width - 1).bit_length()) for name, width in widths.items()}
        widest = max(blocks.values()) * query.element_size()
        self.blocks = BLOCKS if widest <= NARROW else BLOCKS[1:]
        # TF32 only if PyTorch's matrix products may use it.
        precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
        precision = "exact" if is_interpreted() else precision
        self.known = {**widths, **blocks, "FUNCTION": known * (1 + is_last), "PRECISION": precision}

    def arguments(self) -> dict[str, Any]:
        heads, queries = self.query.shape[1:3]
        given: dict[str, Any] = {"heads": heads, "groups": heads // self.key.size(1), "scale": self.scale}
        given |= {"queries": queries, "keys": self.key.size(2)}
        for short, x in (("q", self.query), ("k", self.key), ("v", self.value)):
            strides = zip(("batch", "head", "row"), x.stride()[:3], strict=True)
            given |= {short: x, **{f"{short}_{of}": stride for of, stride in strides}}
        for table in TABLES:
            entries = self.given.get(table)
            given[table] = entries
            given[f"{table}_head"] = 0 if entries is None or entries.size(0) == 1 else entries.stride(0)
            given[f"{table}_entries"] = 0 if entries is None else entries.size(1)
        given |= {other: self.given.get(other) for other in OTHERS}
        slopes = self.given.get("slopes")
        given |= {"slopes": slopes, "slopes_head": 0 if slopes is None or slopes.size(0) == 1 else 2}
        return given

    def __call__(self, name: str, side: int, made: Callable[[], Tensors]) -> Tensors:
        """Runs a kernel over blocks of queries (side 0) or keys (side 1) on the tensors from ``made``, and returns
        them."""
        heads = self.query.size(1)
        given = self.arguments()
        given.pop('slopes')
        given.pop('slopes_head')
        of_blocks = heads if side == 0 else self.key.size(1)
        errors = importlib.import_module("triton.runtime.errors")
        with torch.cuda.device_of(self.query):
            for block in self.blocks:
                tasks, results = self.tasks(block), made()
                work = {"tasks": tasks.tasks[side], "tiles": tasks.tiles[side]}
                grid = (work["tasks"].size(0), of_blocks, tasks.rows)
                if 0 in grid:  # everything is masked
                    return results
                try:
                    _kernel(name)[grid](**given, **work, **results, **self.known, BLOCK=block, **HOW)
                except errors.OutOfResources:
                    if block == self.blocks[-1]:
                        raise
                else:
                    return results
        raise AssertionError


def _forward(self: _Launch) -> tuple[Tensor, Tensor]:
    heads, queries = self.query.shape[1:3]
    given = self.arguments()
    M, N = FAR_BLOCKS[0]
    tasks = self.tasks(M)
    out = self.value.new_zeros((*self.query.shape[:3], self.value.size(-1)))
    lse = self.query.new_full(self.query.shape[:3], -torch.inf, dtype=torch.float32)
    work = {"tasks": tasks.tasks[0], "tiles": tasks.tiles[0]}
    grid = (work["tasks"].size(0), heads, tasks.rows)
    if 0 in grid:
        return out, lse
    tables = [(self.form.lows[LOWS[n]], self.given[t].size(1)) for n, t in enumerate(TABLES) if t in self.given]
    right = bool(tables) and tasks.furthest >= max(low + entries for low, entries in tables)
    near = "vectors" in self.given or "values" in self.given
    far = torch.zeros_like(out, dtype=torch.float32) if near else out
    known = {**self.known, "M": M, "N": N}
    _kernel("forward")[grid](**given, **work, out=far, lse=lse, **known, HAS_RIGHT=right, **FAR_HOW)
    if near:
        grid = (grid[0] * (M // B), *grid[1:])
        _kernel("forward_near")[grid](**given, **work, far=far, out=out, lse=lse, **known, B=B, **HOW)
    return out, lse


_CAPTURED: list[Tasks] = []  # a CUDA graph reads them when it is replayed


def _tasks(like: Tensor, tiling: Sequence[int], lows: Sequence[int]) -> Callable[[int], Tasks]:
    def of(block: int) -> Tasks:
        found = tasks_of(tuple(tiling), tuple(lows), like.size(0), block, like.is_cuda)
        if like.is_cuda and torch.cuda.is_current_stream_capturing():
            _CAPTURED.append(found)
        return found.on(like.device)

    return of


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
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp. ``given`` are the tensors of these names, of which the ``learned`` get gradients;
    ``tiling`` and ``form`` the numbers of a `Tiling` and a `Form`."""
    inputs = dict(zip(names.split(), given, strict=True))
    launch = _Launch(query, key, value, inputs, Form.unflat(form), scale, tiling)

    def made() -> Tensors:
        out = value.new_zeros((*query.shape[:3], value.size(-1)))
        return {"out": out, "lse": query.new_full(query.shape[:3], -torch.inf, dtype=torch.float32)}

    return _forward(launch)


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
) -> list[Tensor]:
    """The gradients of query, key and value, and of learned tensors."""
    inputs, wanted = dict(zip(names.split(), given, strict=True)), learned.split()
    launch = _Launch(query, key, value, inputs, Form.unflat(form), scale, tiling)
    delta = (dout.float() * out.float()).sum(-1)
    if dlse is not None:
        delta -= dlse.masked_fill(lse == -torch.inf, 0.0)
    known: Tensors = {"dout": dout, "lse": lse, "delta": delta}
    has_clock = any(clock in wanted for clock in ("query_clock", "key_clock"))

    def zeros(name: str) -> Tensor | None:
        x = inputs.get(name)
        needed = has_clock if name.endswith("clock") else name in wanted
        return x.new_zeros(x.shape) if x is not None and needed else None

    def of_queries() -> Tensors:
        others = {f"d_{name}": zeros(name) for name in (*TABLES, "meeting", "shift", "query_clock")}
        return {**known, "dq": query.new_zeros(query.shape), **others}

    def of_keys() -> Tensors:
        dk, dv = (x.new_zeros(x.shape) for x in (key, value))
        return {**known, "dk": dk, "dv": dv, "d_key_clock": zeros("key_clock")}

    found = launch("backward_queries", 0, of_queries) | launch("backward_keys", 1, of_keys)
    return [found[name] for name in ("dq", "dk", "dv", *(f"d_{name}" for name in wanted))]  # type: ignore[misc]


triton = custom_operator("posenc::triton", _triton, _triton_backward)
