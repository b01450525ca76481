"""The structures of `call.h` for ctypes, field by field."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from posenc.backends.operands import TABLES
from posenc.positions.tiles import Tile

ANY = 2**40  # a limit beyond any index
SPAN = 64  # keys, or entries of a table, per maximum, as in bounds.h

_i64 = ctypes.c_int64


def _pointers(*names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, ctypes.c_void_p) for name in names)


def _numbers(*names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, _i64) for name in names)


class Rows(ctypes.Structure):
    """A tensor (batch, heads, rows, channels), contiguous along channels."""

    _fields_ = (*_pointers("x"), *_numbers("batch", "head", "row"))


class Table(ctypes.Structure):
    """A table by distance, with its gradient."""

    _fields_ = (*_pointers("x", "gradient"), *_numbers("head", "low", "entries", "width", "slot", "share"))


class Turn(ctypes.Structure):
    """The rotation of queries and keys."""

    _fields_ = (
        *_pointers("query_cos", "query_sin", "key_cos", "key_sin"),
        *_numbers("query_batch", "query_head", "key_batch", "key_head", "pairs", "first", "interleaved"),
    )


class Places(ctypes.Structure):
    """Terms by two coordinates."""

    _fields_ = (
        *_pointers("query_place", "key_place", "run_end"),
        *_numbers("query_batch", "key_batch", "low", "entries"),
        *_pointers("plane", "d_plane", "by_row", "by_column", "d_by_row", "d_by_column"),
    )


class Broken(ctypes.Structure):
    """A piecewise linear function."""

    _fields_ = (*_pointers("lines", "share", "ends", "d_lines", "d_share"), *_numbers("segments", "batch"))


class OfTile(ctypes.Structure):
    """A tile of attention."""

    _fields_ = _numbers("batch", "batch_end", "start", "stop", "first", "last", "low", "high", "distance")


ROWS = ("q", "k", "v", "o", "dout", "lse", "meeting", "delta", "dq", "dk", "dv", "dq_sums", "d_meeting")
BOUNDS = ("query_most", "key_most", "bias_most", "meeting_most", "clock_least")
NUMBERS = (
    *("count", "batch", "heads", "kv_heads", "queries", "keys", "width", "value_width"),
    *("function", "is_last", "threads", "slots", "parts"),
)


class Call(ctypes.Structure):
    """A call of the kernel."""

    _fields_ = (
        *((name, Rows) for name in ROWS),
        *((name, Table) for name in TABLES),
        ("turn", Turn),
        ("places", Places),
        ("broken", Broken),
        *_pointers("shift", "d_shift", "query_clock", "key_clock", "d_query_clock", "d_key_clock", *BOUNDS, "tiles"),
        *_numbers(*NUMBERS),
        ("softmax_scale", ctypes.c_double),
        ("skip_threshold", ctypes.c_double),
        *_pointers("work"),
        *_numbers("work_size"),
        *_pointers("pool"),
    )


class _Field(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), *_numbers("offset", "size"))


STRUCTURES = {"Rows<Real>": Rows, "Table": Table, "Turn": Turn, "Places": Places, "Broken": Broken}
STRUCTURES |= {"Tile": OfTile, "Call": Call}


def differences(kernel: ctypes.CDLL) -> list[str]:
    """The names of fields whose offset or size differs between the library and this file."""
    found = ctypes.POINTER(_Field)()
    kernel.posenc_fields.restype = _i64
    count = kernel.posenc_fields(ctypes.byref(found))
    theirs = {field.name.decode(): (field.offset, field.size) for field in found[:count]}
    ours = {
        f"{name}.{field}": (getattr(structure, field).offset, getattr(structure, field).size)
        for name, structure in STRUCTURES.items()
        for field, *_ in structure._fields_
    }
    kernel.posenc_span.restype = _i64
    theirs["SPAN"], ours["SPAN"] = (kernel.posenc_span(), 0), (SPAN, 0)
    return sorted(name for name in theirs | ours if theirs.get(name) != ours.get(name))


def rows(x: Tensor) -> Rows:
    """The `Rows` of (batch, heads, rows, channels)."""
    assert x.stride(-1) == 1
    return Rows(x.data_ptr(), *x.stride()[:3])


def table(x: Tensor, low: int, groups: int) -> Table:
    """The `Table` of (heads, entries, width); or of one table for all heads, with a gradient for each key head."""
    several = x.size(0) > 1
    step, share = (x.stride(0), 1) if several else (0, groups)
    return Table(x.data_ptr(), None, step, low, x.size(1), x.size(2), 0, share)


def turn(given: dict[str, Tensor], first: int, interleaved: int) -> Turn:
    """The `Turn` of cos and sin (rows or 1, heads or 1, tokens, pairs), by the names of its fields."""
    names = ("query_cos", "query_sin", "key_cos", "key_sin")
    steps = [
        x.stride(axis) if x.size(axis) > 1 else 0 for x in (given["query_cos"], given["key_cos"]) for axis in (0, 1)
    ]
    return Turn(*(given[name].data_ptr() for name in names), *steps, given["key_cos"].size(-1), first, interleaved)


def tiles_of(found: Iterable[Tile] | Sequence[Tile]) -> Any:
    """An array of tiles."""
    found = list(found)
    made = (OfTile * len(found))()
    for to, tile in zip(made, found, strict=True):
        low, high = -ANY if tile.low is None else tile.low, ANY if tile.high is None else tile.high
        ends = (tile.start, tile.stop, tile.first, tile.last)
        to.__init__(tile.row.start, tile.row.stop, *ends, low, high, tile.distance or 0)
    return made
