"""Attention by the kernel as an operator, with another for its derivative."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends.given import TABLES, differentiate
from posenc.backends.native.bounds import SPAN, bounds_of
from posenc.backends.native.library import by_itself, library, pool
from posenc.horizon import faint
from posenc.layout import unflat
from posenc.phases import PairLayout, PairRotation
from posenc.tiles import Tile, Visibility, tiles

# custom_op reads annotations as types: no `from __future__ import annotations` here, which makes them strings.

ANY = 2**40  # a bound that no index reaches
CHANNELS = 16  # rows of channels are a multiple of this
OF_TURN = ("query_cos", "query_sin", "key_cos", "key_sin")
LAYOUTS: tuple[PairLayout, ...] = ("half", "interleaved")
OF_CHANNELS = ("vectors", "key_vectors", "values", "meeting", "shift")

_i64 = ctypes.c_int64


class _Rows(ctypes.Structure):
    """A tensor (batch, heads, rows, channels), the channels side by side."""

    _fields_ = (("x", ctypes.c_void_p), ("batch", _i64), ("head", _i64), ("row", _i64))


class _Table(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
        *((name, _i64) for name in ("head", "low", "entries", "width", "slot", "share")),
    )


class _Places(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query_place", "key_place", "run_end")),
        *((name, _i64) for name in ("query_batch", "key_batch", "low", "entries")),
        *((name, ctypes.c_void_p) for name in ("plane", "d_plane", "by_row", "by_column", "d_by_row", "d_by_column")),
    )


class _Broken(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("lines", "share", "ends", "d_lines", "d_share")),
        *((name, _i64) for name in ("segments", "batch")),
    )


class _Tile(ctypes.Structure):
    _fields_ = tuple(
        (name, _i64) for name in ("batch", "batch_end", "start", "stop", "first", "last", "low", "high", "distance")
    )


ROWS = ("q", "k", "v", "out", "lse", "meeting", "dout", "delta", "dq", "dk", "dv", "d_meeting")
POINTERS = ("shift", "d_shift", "query_clock", "key_clock", "d_query_clock", "d_key_clock")
OF_PLANE = ("plane", "by_row", "by_column")
PLACES = ("query_place", "key_place", "run_end")
BROKEN = ("lines", "share", "ends")
BOUNDS = ("query_most", "key_most", "bias_most", "meeting_most", "clock_least")
NUMBERS = (
    *("count", "batch", "heads", "kv_heads", "queries", "keys", "width", "value_width"),
    *("function", "is_last", "threads", "slots", "parts"),
)


class _Call(ctypes.Structure):
    """What `call.h` has, field by field."""

    _fields_ = (
        *((name, _Rows) for name in ROWS),
        *((name, _Table) for name in TABLES),
        ("places", _Places),
        ("broken", _Broken),
        *((name, ctypes.c_void_p) for name in (*POINTERS, *BOUNDS, "tiles")),
        *((name, _i64) for name in NUMBERS),
        ("scale", ctypes.c_double),
        ("faint", ctypes.c_double),
        ("work", ctypes.c_void_p),
        ("work_size", _i64),
        ("pool", ctypes.c_void_p),
    )


def _run(is_backward: bool, like: Tensor, call: _Call) -> None:
    kernel = library(like.dtype)
    if (kernel.posenc_size(), kernel.posenc_span()) != (ctypes.sizeof(_Call), SPAN):
        raise RuntimeError("call.h and operator.py do not say the same of a call")
    kernel.posenc_work.restype = _i64
    call.work_size = -(-kernel.posenc_work(ctypes.byref(call), _i64(is_backward)) // 16) * 16
    work = like.new_empty(call.threads * call.work_size)
    call.work, call.pool = work.data_ptr(), pool()
    (kernel.posenc_backward if is_backward else kernel.posenc_forward)(ctypes.byref(call))


def _rows(x: Tensor) -> _Rows:
    assert x.stride(-1) == 1
    return _Rows(x.data_ptr(), *x.stride()[:3])


def _table(x: Tensor, low: int, gradient: Tensor | None, groups: int) -> _Table:
    """Of (heads, entries, width), with gradients (slots, heads, entries, width); or of one table for all heads, with
    one gradient for each key head."""
    head = x.stride(0) if x.size(0) > 1 else 0
    given = (None, 0) if gradient is None else (gradient.data_ptr(), gradient.stride(0))
    share = 1 if x.size(0) > 1 else groups
    return _Table(x.data_ptr(), given[0], head, low, x.size(1), x.size(2), given[1], share)


def _tiles(found: Sequence[Tile]) -> Any:
    made = (_Tile * len(found))()
    for to, tile in zip(made, found, strict=True):
        low, high = -ANY if tile.low is None else tile.low, ANY if tile.high is None else tile.high
        ends = (tile.start, tile.stop, tile.first, tile.last)
        to.__init__(tile.row.start, tile.row.stop, *ends, low, high, tile.distance or 0)
    return made


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
    bounds: dict[str, Tensor],
    skip_below: float,
    threads: int,
) -> _Call:
    batch, heads, queries, width = query.shape
    for name, x in {"key": key, "value": value, **given}.items():  # the kernel would read whatever stands there
        wanted = query.dtype
        if name.endswith("clock") or name in ("lines", "share"):
            wanted = torch.float64
        elif name in PLACES or name == "ends":
            wanted = torch.int64
        if x.dtype != wanted:
            raise RuntimeError(f"the kernel takes {name} in {wanted}, got {x.dtype}")
    if key.shape[:3] != value.shape[:3]:
        raise RuntimeError(f"the kernel takes as many values as keys, got {value.shape} and {key.shape}")
    numbers = (len(found), batch, heads, key.size(1), queries, key.size(2), width, value.size(-1), *function)
    call = _Call(**dict(zip(NUMBERS, numbers, strict=False)), threads=threads, scale=scale)
    call.q, call.k, call.v = _rows(query), _rows(key), _rows(value)
    for name, x in given.items():
        if name == "key_norms":  # of which bounds are made
            continue
        if name in OF_PLANE or name in PLACES:
            setattr(call.places, name, x.data_ptr())
        elif name in BROKEN:
            setattr(call.broken, name, x.data_ptr())
        elif name in TABLES:
            setattr(call, name, _table(x, lows[TABLES.index(name)], gradients.get(name), heads // key.size(1)))
        else:
            setattr(call, name, _rows(x) if name in ROWS else x.data_ptr())
    if "key_place" in given:
        places = [given[name] for name in PLACES]
        call.places.query_batch, call.places.key_batch, _ = (x.size(1) if x.size(0) > 1 else 0 for x in places)
        call.places.low = lows[-1]
        call.places.entries = next(given[name].size(-1) for name in OF_PLANE if name in given)
    if "lines" in given:
        share = given["share"]
        call.broken.segments, call.broken.batch = given["lines"].size(1), share.size(1) if share.size(0) > 1 else 0
    for name, x in bounds.items():
        setattr(call, name, x.data_ptr())
    call.faint = faint(skip_below, key.size(2))
    call.tiles = ctypes.cast(found, ctypes.c_void_p)
    return call


def _found(queries: Sequence[int], keys: Sequence[int], seen: Sequence[int], rows: int) -> Any:
    return _tiles(list(tiles(unflat(queries), unflat(keys), Visibility.unflat(seen), rows)))


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
    ``lows`` the distance of the first entry of each table there may be; ``skip_below`` the share of a row's weight that
    may be left out; ``turn`` is the first channel and 1 if interleaved, else 0, of queries and keys that are still to
    be turned by cos and sin as ``given``, or nothing."""
    with by_itself() as threads:
        width = value.size(-1)
        if turns := _turns(names, given, turn, query.size(-1)):  # until the kernel turns where it reads
            query, key = turns[0](query), turns[1](key)
        query, key, value = map(_aligned, (query, key, value))
        out = value.new_empty((*query.shape[:3], value.size(-1)))
        lse = query.new_empty(query.shape[:3])
        found = _found(queries, keys, seen, query.size(0))
        inputs = _named(names, given)  # kept: the kernel has no more than their addresses
        bounds = bounds_of(query, key, inputs, function, scale, skip_below)
        call = _call(query, key, value, inputs, lows, {}, found, function, scale, bounds, skip_below, threads)
        call.out, call.lse = _rows(out), _rows(lse[..., None])
        _run(False, query, call)
        return _cut(out, width), lse


def _turns(names: str, given: Sequence[Tensor], turn: Sequence[int], width: int) -> tuple[PairRotation, ...]:
    """The turns of queries and of keys that are still to be done, if there are some."""
    if not turn:
        return ()
    of, layout = dict(zip(names.split(), given, strict=True)), LAYOUTS[turn[1]]
    return tuple(
        PairRotation(of[f"{side}_cos"], of[f"{side}_sin"], layout, width, turn[0]) for side in ("query", "key")
    )


def _named(names: str, given: Sequence[Tensor]) -> dict[str, Tensor]:
    named = {name: x for name, x in zip(names.split(), given, strict=True) if name not in OF_TURN}
    if "key_place" in named:
        named["run_end"] = _run_ends(named["key_place"])
    return {name: _aligned(x) if name in OF_CHANNELS else x for name, x in named.items()}


def _run_ends(place: Tensor) -> Tensor:
    """Of keys at (rows, keys, 2) for each the end of those after it whose second coordinate alone rises, by one."""
    keys = place.size(1)
    pace = place.diff(dim=1)
    breaks = (pace[..., 0] != 0) | (pace[..., 1] != 1)
    ends = torch.where(breaks, torch.arange(1, keys), keys)
    ends = torch.cat((ends, ends.new_full((len(ends), 1), keys)), 1)
    return ends.flip(1).cummin(1).values.flip(1).contiguous()


def _aligned(x: Tensor) -> Tensor:
    """x with rows of a multiple of 16 channels, side by side; those added are 0."""
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
    """The gradients of query, key and value, and of what is learned."""
    with by_itself() as threads:
        if turns := _turns(names, given, turn, query.size(-1)):  # until the kernel turns where it reads
            query, key = turns[0](query), turns[1](key)
        batch, heads, kv_heads = query.size(0), query.size(1), key.size(1)
        widths = [x.size(-1) for x in (query, key, value)]
        query, key, value = map(_aligned, (query, key, value))
        inputs = _named(names, given)
        wanted = learned.split()
        of_tables = [name for name in wanted if name in TABLES]
        # Rows of the batch, and parts of the keys, whose gradients are summed apart: enough for all threads.
        slots = (
            min(batch, -(-2 * threads // kv_heads)) if of_tables or "plane" in wanted or "lines" in wanted else batch
        )
        parts = max(1, threads // (slots * kv_heads))
        delta = (dout * out).sum(-1)
        dout = _aligned(dout)
        if dlse is not None:
            delta -= dlse.masked_fill(lse == -torch.inf, 0.0)
        dq = query.new_zeros((parts, *query.shape))
        dk, dv = (x.new_zeros(x.shape) for x in (key, value))
        tables: dict[str, Tensor] = {}
        for name in of_tables:
            x = inputs[name]
            tables[name] = x.new_zeros((slots * parts, heads if x.size(0) > 1 else kv_heads, *x.shape[1:]))
        found = _found(queries, keys, seen, batch)
        bounds = bounds_of(query, key, inputs, function, scale, skip_below)
        call = _call(query, key, value, inputs, lows, tables, found, function, scale, bounds, skip_below, threads)
        call.slots, call.parts = slots * parts, parts
        call.lse, call.delta, call.dout = _rows(lse[..., None]), _rows(delta[..., None]), _rows(dout)
        call.dq, call.dk, call.dv = _rows(dq.flatten(0, 1)), _rows(dk), _rows(dv)
        others: dict[str, Tensor] = {}
        for name in OF_PLANE:
            if name in wanted:
                several = slots * parts if name == "plane" else parts
                others[name] = query.new_zeros((several, *inputs[name].shape))
                setattr(call.places, f"d_{name}", others[name].data_ptr())
        if "lines" in wanted:
            others["lines"] = inputs["lines"].new_zeros((slots * parts, *inputs["lines"].shape))
            call.broken.d_lines = others["lines"].data_ptr()
        if "share" in wanted:
            others["share"] = inputs["share"].new_zeros((parts, *query.shape[:3]))
            call.broken.d_share = others["share"].data_ptr()
        if "meeting" in inputs:
            others["meeting"] = dq.new_zeros((parts, *inputs["meeting"].shape))
            call.d_meeting = _rows(others["meeting"].flatten(0, 1))
        if "shift" in wanted:
            others["shift"] = dq.new_zeros((slots * parts, *inputs["shift"].shape))
            call.d_shift = others["shift"].data_ptr()
        if "query_clock" in wanted or "key_clock" in wanted:
            others["query_clock"] = dq.new_zeros((parts, *inputs["query_clock"].shape))
            others["key_clock"] = dq.new_zeros((1, *inputs["key_clock"].shape))
            call.d_query_clock, call.d_key_clock = (others[f"{side}_clock"].data_ptr() for side in ("query", "key"))
        _run(True, query, call)
        grads = [_cut(x, width) for x, width in zip((_sum(dq), dk, dv), widths, strict=True)]
        if turns:  # gradients by the transpose, which is the turn back, also of a turn that lengthens
            grads[:2] = turns[0].inverse()(grads[0]), turns[1].inverse()(grads[1])
        of = dict(zip(names.split(), given, strict=True))
        for name in wanted:
            gradient = _cut(_sum(tables[name] if name in tables else others[name]), of[name].size(-1))
            if name in TABLES and inputs[name].size(0) == 1:
                gradient = gradient.sum(0, keepdim=True)
            elif name == "share":  # one number of each query for all heads, and maybe for all rows
                gradient = gradient.sum(1).sum_to_size(of[name].shape)
            grads.append(gradient.to(inputs[name].dtype))
        return grads


def _sum(x: Tensor) -> Tensor:
    return x[0] if x.size(0) == 1 else x.sum(0)


differentiate(_native, _native_backward)
