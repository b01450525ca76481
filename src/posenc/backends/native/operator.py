"""The custom operator of the CPU kernel, and its derivative."""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import compat
from posenc.backends.native.bounds import bounds_of
from posenc.backends.native.library import library, pool
from posenc.backends.native.structures import NUMBERS, ROWS, Call, differences, rows, table, tiles_of
from posenc.backends.native.structures import turn as turn_of
from posenc.backends.operands import TABLES, differentiate
from posenc.encoding.horizon import skip_threshold
from posenc.positions.layout import unflat
from posenc.positions.tiles import Visibility, tiles
from posenc.rotation.phases import PairLayout

# custom_op evaluates annotations, so no `from __future__ import annotations` here.

CHANNELS = 16  # rows of channels are a multiple of this
OF_TURN = ("query_cos", "query_sin", "key_cos", "key_sin")
LAYOUTS: tuple[PairLayout, ...] = ("half", "interleaved")
OF_CHANNELS = ("vectors", "key_vectors", "values", "meeting", "shift")

PLACES = ("query_place", "key_place", "run_end")
OF_PLANE = ("plane", "by_row", "by_column")
BROKEN = ("lines", "share", "ends")


def _run(is_backward: bool, like: Tensor, call: Call) -> None:
    kernel = library(like.dtype)
    _check_fields(kernel)
    kernel.posenc_work.restype = ctypes.c_int64
    call.work_size = kernel.posenc_work(ctypes.byref(call), ctypes.c_int64(is_backward))
    work = like.new_empty(call.threads * call.work_size, dtype=_wide(like.dtype))
    call.work, call.pool = work.data_ptr(), pool()
    (kernel.posenc_backward if is_backward else kernel.posenc_forward)(ctypes.byref(call))


@functools.cache
def _check_fields(kernel: ctypes.CDLL) -> None:
    found = differences(kernel)
    if found:
        raise RuntimeError(f"call.h and structures.py differ in {', '.join(found)}")


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of scores, sums and tables."""
    return torch.promote_types(dtype, torch.float32)


def _call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    given: dict[str, Tensor],
    lows: Sequence[int],
    gradients: dict[str, Tensor],
    found: Any,
    function: Sequence[int],
    scale: float,
    turn: Sequence[int],
    bounds: dict[str, Tensor],
    skip_below: float,
    threads: int,
) -> Call:
    batch, heads, queries, width = query.shape
    for name, x in {"key": key, "value": value, **given}.items():  # the kernel does not check dtypes
        wanted = query.dtype if name in ("key", "value") else _wide(query.dtype)
        if name.endswith("clock") or name in ("lines", "share"):
            wanted = torch.float64
        elif name in PLACES or name == "ends":
            wanted = torch.int64
        if x.dtype != wanted:
            raise RuntimeError(f"the kernel takes {name} in {wanted}, got {x.dtype}")
    if key.shape[:3] != value.shape[:3]:
        raise RuntimeError(f"the kernel takes as many values as keys, got {value.shape} and {key.shape}")
    numbers = (len(found), batch, heads, key.size(1), queries, key.size(2), width, value.size(-1), *function)
    call = Call(**dict(zip(NUMBERS, numbers, strict=False)), threads=threads, softmax_scale=scale)
    call.q, call.k, call.v = rows(query), rows(key), rows(value)
    for name, x in given.items():
        if name == "key_norms" or name in OF_TURN:  # key_norms are only used for bounds
            continue
        if name in OF_PLANE or name in PLACES:
            setattr(call.places, name, x.data_ptr())
        elif name in BROKEN:
            setattr(call.broken, name, x.data_ptr())
        elif name in TABLES:
            setattr(call, name, table(x, lows[TABLES.index(name)], gradients.get(name), heads // key.size(1)))
        else:
            setattr(call, name, rows(x) if name in ROWS else x.data_ptr())
    if "key_place" in given:
        places = [given[name] for name in PLACES]
        call.places.query_batch, call.places.key_batch, _ = (x.size(1) if x.size(0) > 1 else 0 for x in places)
        call.places.low = lows[-1]
        call.places.entries = next(given[name].size(-1) for name in OF_PLANE if name in given)
    if "lines" in given:
        share = given["share"]
        call.broken.segments, call.broken.batch = given["lines"].size(1), share.size(1) if share.size(0) > 1 else 0
    if turn:
        call.turn = turn_of(given, *turn)
    for name, x in bounds.items():
        setattr(call, name, x.data_ptr())
    call.skip_threshold = skip_threshold(skip_below, key.size(2))
    call.tiles = ctypes.cast(found, ctypes.c_void_p)
    return call


@functools.lru_cache(maxsize=16)  # of all layers, forward and backward, the same numbers give the same tiles
def _found(queries: tuple[int, ...], keys: tuple[int, ...], seen: tuple[int, ...], batch: int) -> Any:
    return tiles_of(tiles(unflat(queries), unflat(keys), Visibility.unflat(seen), batch))


@torch.library.custom_op("posenc::native", mutates_args=())
def _native(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    given: Sequence[Tensor],
    names: str,
    learned: str,
    lows: Sequence[int],
    queries: Sequence[int],
    keys: Sequence[int],
    seen: Sequence[int],
    function: Sequence[int],
    scale: float,
    skip_below: float,
    turn: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp. ``given`` are the tensors of these names, of which the ``learned`` get gradients;
    ``lows`` the distance of the first entry of each possible table; ``skip_below`` the fraction of a row's weight that
    may be skipped; ``turn`` is empty or, if queries and keys are to be rotated by cos and sin in ``given``, the first
    channel and 1 if interleaved, else 0."""
    with compat.by_itself() as threads:
        width = value.size(-1)
        query, key, value = map(_aligned, (query, key, value))
        out = value.new_empty((*query.shape[:3], value.size(-1)))
        lse = query.new_empty(query.shape[:3], dtype=_wide(query.dtype))
        found = _found(tuple(queries), tuple(keys), tuple(seen), query.size(0))
        inputs = _named(names, given)  # kept alive, since the kernel only has their addresses
        bounds = bounds_of(query, key, inputs, function, scale, skip_below)
        call = _call(query, key, value, inputs, lows, {}, found, function, scale, turn, bounds, skip_below, threads)
        call.o, call.lse = rows(out), rows(lse[..., None])
        _run(False, query, call)
        return _cut(out, width), lse


def _named(listed: str, given: Sequence[Tensor]) -> dict[str, Tensor]:
    named = dict(zip(listed.split(), given, strict=True))
    if "key_place" in named:
        named["run_end"] = _run_ends(named["key_place"])
    for names in (OF_TURN[:2], OF_TURN[2:]):  # cos and sin need equal strides and contiguous tokens
        angles = [named[name] for name in names if name in named]
        if any(x.stride() != angles[0].stride() or x.stride()[2:] != (x.size(-1), 1) for x in angles):
            named |= {name: named[name].contiguous() for name in names}
    return {name: _aligned(x) if name in OF_CHANNELS else x for name, x in named.items()}


def _run_ends(place: Tensor) -> Tensor:
    """For each key at (rows, keys, 2), the end of the run in which only the second coordinate increases, by one."""
    keys = place.size(1)
    pace = place.diff(dim=1)
    breaks = (pace[..., 0] != 0) | (pace[..., 1] != 1)
    ends = torch.where(breaks, torch.arange(1, keys), keys)
    ends = torch.cat((ends, ends.new_full((len(ends), 1), keys)), 1)
    return ends.flip(1).cummin(1).values.flip(1).contiguous()


def _aligned(x: Tensor) -> Tensor:
    """x padded with zeros to a multiple of 16 channels, contiguous along channels."""
    missing = -x.size(-1) % CHANNELS
    x = F.pad(x, (0, missing)) if missing else x
    return x if x.stride(-1) == 1 else x.contiguous()


def _cut(x: Tensor, width: int) -> Tensor:
    return x if x.size(-1) == width else x[..., :width].contiguous()


@torch.library.custom_op("posenc::native_backward", mutates_args=())
def _native_backward(
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
    lows: Sequence[int],
    queries: Sequence[int],
    keys: Sequence[int],
    seen: Sequence[int],
    function: Sequence[int],
    scale: float,
    skip_below: float,
    turn: Sequence[int],
) -> list[Tensor]:
    """The gradients of query, key and value, and of learned tensors."""
    with compat.by_itself() as threads:
        batch, heads, kv_heads = query.size(0), query.size(1), key.size(1)
        widths = [x.size(-1) for x in (query, key, value)]
        query, key, value = map(_aligned, (query, key, value))
        inputs = _named(names, given)
        wanted = learned.split()
        of_tables = [name for name in wanted if name in TABLES]
        # Groups of batch rows, and parts of the keys, whose gradients are accumulated separately, for all threads.
        slots = (
            min(batch, -(-2 * threads // kv_heads)) if of_tables or "plane" in wanted or "lines" in wanted else batch
        )
        parts = max(1, threads // (slots * kv_heads))
        real = _wide(query.dtype)
        out, dout = _aligned(out), _aligned(dout)
        delta = lse.new_zeros(lse.shape)  # the kernel adds dout . out
        if dlse is not None:
            delta -= dlse.masked_fill(lse == -torch.inf, 0.0)
        # dq is accumulated in place if there are several parts or no rounding; otherwise each task has its own.
        is_summed_here = parts > 1 or real == query.dtype
        dq = query.new_zeros((parts, *query.shape), dtype=real) if is_summed_here else query.new_empty(query.shape)
        dk, dv = (x.new_zeros(x.shape) for x in (key, value))
        tables: dict[str, Tensor] = {}
        for name in of_tables:
            x = inputs[name]
            tables[name] = x.new_zeros((slots * parts, heads if x.size(0) > 1 else kv_heads, *x.shape[1:]))
        found = _found(tuple(queries), tuple(keys), tuple(seen), batch)
        bounds = bounds_of(query, key, inputs, function, scale, skip_below)
        call = _call(query, key, value, inputs, lows, tables, found, function, scale, turn, bounds, skip_below, threads)
        call.slots, call.parts = slots * parts, parts
        call.o = rows(out)
        call.lse, call.delta, call.dout = rows(lse[..., None]), rows(delta[..., None]), rows(dout)
        call.dk, call.dv = rows(dk), rows(dv)
        if is_summed_here:
            call.dq_sums = rows(dq.flatten(0, 1))
        else:
            call.dq = rows(dq)
        others: dict[str, Tensor] = {}
        for name in OF_PLANE:
            if name in wanted:
                several = slots * parts if name == "plane" else parts
                others[name] = query.new_zeros((several, *inputs[name].shape), dtype=real)
                setattr(call.places, f"d_{name}", others[name].data_ptr())
        if "lines" in wanted:
            others["lines"] = inputs["lines"].new_zeros((slots * parts, *inputs["lines"].shape))
            call.broken.d_lines = others["lines"].data_ptr()
        if "share" in wanted:
            others["share"] = inputs["share"].new_zeros((parts, *query.shape[:3]))
            call.broken.d_share = others["share"].data_ptr()
        if "meeting" in inputs:
            others["meeting"] = query.new_zeros((parts, *inputs["meeting"].shape), dtype=real)
            call.d_meeting = rows(others["meeting"].flatten(0, 1))
        if "shift" in wanted:
            others["shift"] = query.new_zeros((slots * parts, *inputs["shift"].shape), dtype=real)
            call.d_shift = others["shift"].data_ptr()
        if "query_clock" in wanted or "key_clock" in wanted:
            others["query_clock"] = query.new_zeros((parts, *inputs["query_clock"].shape), dtype=real)
            others["key_clock"] = query.new_zeros((1, *inputs["key_clock"].shape), dtype=real)
            call.d_query_clock, call.d_key_clock = (others[f"{side}_clock"].data_ptr() for side in ("query", "key"))
        _run(True, query, call)
        dq = _sum(dq).to(query.dtype) if is_summed_here else dq
        grads = [_cut(x, width) for x, width in zip((dq, dk, dv), widths, strict=True)]
        of = dict(zip(names.split(), given, strict=True))
        for name in wanted:
            gradient = _cut(_sum(tables[name] if name in tables else others[name]), of[name].size(-1))
            if name in TABLES and inputs[name].size(0) == 1:
                gradient = gradient.sum(0, keepdim=True)
            elif name == "share":  # one number per query for all heads, and possibly all batch rows
                gradient = gradient.sum(1).sum_to_size(of[name].shape)
            grads.append(gradient.to(inputs[name].dtype))
        return grads


def _sum(x: Tensor) -> Tensor:
    return x[0] if x.size(0) == 1 else x.sum(0)


differentiate(_native, _native_backward)
