"""The custom operator of the CPU kernel and its derivative, and what its C++ takes."""

# custom_op evaluates annotations, so no `from __future__ import annotations` here.

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import compat
from posenc.backends.blockwise import IN_DOUBLE, TABLES, KernelLayout, custom_operator
from posenc.backends.native.library import library, pool
from posenc.encoding.terms import skip_threshold
from posenc.positions.tiles import Tiling
from posenc.rotation.phases import PairLayout

UNBOUNDED = ("key_vectors", "plane", "by_row", "by_column", "away")  # terms without a bound
FEWEST_KEYS = 256  # the minimum for which bounds pay off
FEWEST_QUERIES = 16  # the minimum for which computing the norms of all keys pays off


def bounds_of(
    query: Tensor, key: Tensor, given: Mapping[str, Tensor], function: Sequence[int], scale: float, skip_below: float
) -> dict[str, Tensor]:
    """The tensors of `bounds.h`, by name; empty if no key can be skipped.

    ``given`` are the operator's tensors by name. Keys can be skipped because of a bias (heads or 1, entries, 1) that
    decays far enough, or of cumulative features (batch, heads, tokens). A function of the score has no such bound.
    "key_norms" (batch, kv_heads, keys) are the norms of keys, if the caller has them.
    """
    keys, bias = key.size(2), given.get("bias")
    if function[0] or any(name in given for name in UNBOUNDED) or skip_below <= 0 or keys < FEWEST_KEYS:
        return {}
    key_norms = given.get("key_norms")
    if key_norms is None and query.size(2) < FEWEST_QUERIES:  # the kernel checks computed scores instead
        return {}
    by = skip_threshold(skip_below, keys)  # how far a bias must decay for keys to be skipped because of it; not NaN
    if "key_clock" not in given and (bias is None or not bool(torch.sub(*torch.aminmax(bias)) < by)):
        return {}
    shift = given.get("shift")
    moved = query if shift is None else query + shift[:, None]
    bounds = {
        "query_most": _lengths(moved) * (scale * _growth(given)),
        "key_most": _greatest(_lengths(key) if key_norms is None else key_norms),
    }
    if bias is not None:
        bounds["bias_most"] = _greatest(bias[..., 0])
    if "vectors" in given:
        vectors = _lengths(given["vectors"]).amax(-1, keepdim=True)
        met = _lengths(given["meeting"]) if "meeting" in given else _lengths(query) * scale
        bounds["meeting_most"] = met * vectors
    if "key_clock" in given:
        bounds["clock_least"] = -_greatest(-given["key_clock"])
    return {name: x.contiguous() for name, x in bounds.items()}


def _lengths(x: Tensor) -> Tensor:
    found = torch.linalg.vector_norm(x, dim=-1)
    # An upper bound without a float32 copy of x: the norm rounded to bfloat16 may be too low by a factor of 1 - 2**-9.
    return found if found.dtype != torch.bfloat16 else found.float() * (1 + 2**-8)


def _growth(given: Mapping[str, Tensor]) -> Tensor | float:
    """The largest factor by which the rotation can increase |q| |k|: other channels keep their norm."""
    if "query_cos" not in given:
        return 1.0
    most = [torch.hypot(given[f"{side}_cos"], given[f"{side}_sin"]).amax().clamp(min=1.0) for side in ("query", "key")]
    return most[0] * most[1]


def _greatest(x: Tensor) -> Tensor:
    """The maximum of every `SPAN` elements of (..., n), (..., spans)."""
    missing = -x.size(-1) % SPAN
    return F.pad(x, (0, missing), value=-torch.inf).unflatten(-1, (-1, SPAN)).amax(-1)


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


class Rotation(ctypes.Structure):
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
        ("rotation", Rotation),
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


STRUCTURES = {"Rows<Real>": Rows, "Table": Table, "Rotation": Rotation, "Places": Places, "Broken": Broken}
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
    return Rows(*_steps(x))


def _steps(x: Tensor) -> tuple[int, ...]:
    assert x.stride(-1) == 1
    return x.data_ptr(), *x.stride()[:3]


def _contiguous(shape: Sequence[int]) -> tuple[int, int, int]:
    """The steps of `Rows` in a contiguous tensor."""
    return shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3]


CHANNELS = 16  # rows of channels are a multiple of this
ANGLES = ("query_cos", "query_sin", "key_cos", "key_sin")
LAYOUTS: tuple[PairLayout, ...] = ("half", "interleaved")
OF_CHANNELS = ("vectors", "key_vectors", "values", "meeting", "shift")

PLACES = ("query_place", "key_place", "run_end")
OF_PLANE = ("plane", "by_row", "by_column")
BROKEN = ("lines", "share", "ends")
# The structure inside `Call` that has a tensor's address, if it is not the call itself.
INSIDE = dict.fromkeys((*PLACES, *OF_PLANE), "places") | dict.fromkeys(BROKEN, "broken")
# Of each slot, a group of batch rows and a part of the keys, there is a gradient; of other inputs of each part alone.
OF_SLOTS = (*TABLES, "plane", "lines", "shift")


@functools.lru_cache(maxsize=16)  # all layers, forward and backward, have the same numbers
def _tiles(tiling: tuple[int, ...], rows: int) -> Any:
    found = Tiling.unflat(tiling).tiles(rows)
    made = (OfTile * len(found))()
    for to, tile in zip(made, found, strict=True):
        low, high = -ANY if tile.low is None else tile.low, ANY if tile.high is None else tile.high
        ends = (tile.start, tile.stop, tile.first, tile.last)
        to.__init__(tile.row.start, tile.row.stop, *ends, low, high, tile.distance or 0)
    return made


class _Kernel:
    """A call of the kernel: its structure, filled for tensors of these shapes, strides and dtypes, and the tensors that
    every call has in common. A call sets the addresses of its own; each thread needs a structure of its own."""

    def __init__(self, tensors: Sequence[Tensor], given: Sequence[Tensor], rest: Sequence[Any], threads: int) -> None:
        query, key, value = tensors
        names, _, tiling, numbers_of_form, scale, skip_below = rest
        self.names, self.form = names.split(), KernelLayout.unflat(numbers_of_form)
        self.dtype, self.real = query.dtype, torch.promote_types(query.dtype, torch.float32)
        self.library = library(query.dtype)
        _check_fields(self.library)
        self.scale, self.skip_below = scale, skip_below
        self.has_bounds: bool | None = None  # None: not known yet
        self.tiles = _tiles(tuple(tiling), query.size(0))
        (batch, heads, queries, width), (kv_heads, keys) = query.shape, key.shape[1:3]
        numbers = (len(self.tiles), batch, heads, kv_heads, queries, keys, width, value.size(-1), *self.form.function)
        self.call = call = Call(**dict(zip(NUMBERS, numbers, strict=False)), threads=threads, softmax_scale=scale)
        self.inputs = call.q, call.k, call.v
        for to, x in zip(self.inputs, tensors, strict=True):
            to.__init__(*_steps(x))
        self.put(given)
        self._check(key, value)
        call.skip_threshold = skip_threshold(skip_below, keys)
        call.tiles = ctypes.cast(self.tiles, ctypes.c_void_p)
        call.pool = pool()
        self.reference = ctypes.byref(call)
        self.shape = (batch, heads, queries, value.size(-1))
        self.outputs = call.o, call.lse
        for to, shape in zip(self.outputs, (self.shape, (*self.shape[:3], 1)), strict=True):
            to.__init__(None, *_contiguous(shape))
        self.work: dict[bool, int] = {}

    def _put_bounds(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        """Those of these queries and keys, to be held until the kernel has run."""
        bounds = bounds_of(query, key, self.given, self.form.function, self.scale, self.skip_below)
        for name, x in bounds.items():
            setattr(self.call, name, x.data_ptr())
        self.has_bounds = len(bounds) > 0
        return bounds

    def _check(self, key: Tensor, value: Tensor) -> None:
        """RuntimeError for a dtype or shape that the kernel, which checks none, would misread."""
        wanted = {"key": self.dtype, "value": self.dtype}
        wanted |= dict.fromkeys(IN_DOUBLE, torch.float64) | dict.fromkeys((*PLACES, "ends"), torch.int64)
        for name, x in {"key": key, "value": value, **self.given}.items():
            dtype = wanted.get(name, self.real)
            if x.dtype != dtype:
                raise RuntimeError(f"the kernel takes {name} in {dtype}, got {x.dtype}")
        if key.shape[:3] != value.shape[:3]:
            raise RuntimeError(f"the kernel takes as many values as keys, got {value.shape} and {key.shape}")

    def put(self, tensors: Sequence[Tensor]) -> None:
        """Takes these tensors besides query, key and value."""
        given = _in_memory_order(dict(zip(self.names, tensors, strict=True)))
        call, form, self.given = self.call, self.form, given
        self.has_bounds = None
        for name in BOUNDS:
            setattr(call, name, None)
        for name, x in given.items():
            if name in TABLES:
                # One table for all heads has a gradient for each key head.
                step, share = (x.stride(0), 1) if x.size(0) > 1 else (0, call.heads // call.kv_heads)
                table = Table(x.data_ptr(), None, step, form.low_of(name), x.size(1), x.size(2), 0, share)
                setattr(call, name, table)
            elif name in ROWS:
                setattr(call, name, rows(x))
            elif name not in ANGLES and name != "key_norms":  # which are only used for bounds
                setattr(self._place_of(name), name, x.data_ptr())
        if "key_place" in given:
            places = [given[name] for name in PLACES]
            call.places.query_batch, call.places.key_batch, _ = (x.size(1) if x.size(0) > 1 else 0 for x in places)
            call.places.low = form.low_of("plane")
            call.places.entries = next(given[name].size(-1) for name in OF_PLANE if name in given)
        if "lines" in given:
            share = given["share"]
            call.broken.segments, call.broken.batch = given["lines"].size(1), share.size(1) if share.size(0) > 1 else 0
        if form.rotation:
            both = given["query_cos"], given["key_cos"]  # (rows or 1, heads or 1, tokens, pairs)
            steps = [x.stride(axis) if x.size(axis) > 1 else 0 for x in both for axis in (0, 1)]
            angles = (given[name].data_ptr() for name in ANGLES)
            call.rotation = Rotation(*angles, *steps, both[1].size(-1), *form.rotation)

    def _place_of(self, name: str) -> ctypes.Structure:
        found: ctypes.Structure = getattr(self.call, INSIDE[name]) if name in INSIDE else self.call
        return found

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp."""
        held = None if self.has_bounds is False else self._put_bounds(query, key)
        out, lse = value.new_empty(self.shape), query.new_empty(self.shape[:3], dtype=self.real)
        for to, x in zip((*self.inputs, *self.outputs), (query, key, value, out, lse), strict=True):
            to.x = x.data_ptr()
        self._run(False, query)
        del held
        return out, lse

    def _run(self, is_backward: bool, like: Tensor) -> None:
        kernel = self.library
        if is_backward not in self.work:
            kernel.posenc_work.restype = ctypes.c_int64
            size = kernel.posenc_work(self.reference, ctypes.c_int64(is_backward))
            self.work[is_backward] = size
        self.call.work_size = self.work[is_backward]
        work = like.new_empty(self.call.threads * self.work[is_backward], dtype=self.real)
        self.call.work = work.data_ptr()
        (kernel.posenc_backward if is_backward else kernel.posenc_forward)(self.reference)

    # -- the backward pass --------------------------------------------------------------------------------------------

    def divide(self, wanted: Sequence[str]) -> None:
        """Sets slots and parts, whose gradients are accumulated separately: enough for all threads."""
        call = self.call
        shares = any(name in TABLES or name in ("plane", "lines") for name in wanted)
        slots = min(call.batch, -(-2 * call.threads // call.kv_heads)) if shares else call.batch
        call.parts = max(1, call.threads // (slots * call.kv_heads))
        call.slots = slots * call.parts
        call.dout.__init__(None, *_contiguous(self.shape))
        call.delta.__init__(None, *_contiguous((*self.shape[:3], 1)))

    def backward(
        self,
        wanted: Sequence[str],
        dout: Tensor,
        dlse: Tensor | None,
        tensors: Sequence[Tensor],
        out: Tensor,
        lse: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """The gradients of query, key, value and, of the given tensors, of those that are wanted; `divide` came first.
        ``dout``, ``out`` and ``lse`` are contiguous."""
        call, (query, key, value) = self.call, tensors
        held = None if self.has_bounds is False else self._put_bounds(query, key)
        delta = lse.new_zeros(lse.shape)  # the kernel adds dout . out
        if dlse is not None:
            delta -= dlse.masked_fill(lse == -torch.inf, 0.0)
        for to, x in zip(
            (*self.inputs, *self.outputs, call.dout, call.delta),
            (query, key, value, out, lse, dout, delta),
            strict=True,
        ):
            to.x = x.data_ptr()
        dq = self._query_gradient(query)
        dk, dv = key.new_zeros(key.shape), value.new_zeros(value.shape)
        call.dk, call.dv = rows(dk), rows(dv)
        found = {name: self._gradient_of(name) for name in _given_gradients(wanted, self.given)}
        self._run(True, query)
        del held
        return _sum(dq).to(query.dtype), dk, dv, found

    def _gradient_of(self, name: str) -> Tensor:
        """Zeros that the kernel adds the gradients of an input to, each slot's or part's apart."""
        call, x = self.call, self.given[name]
        shape = tuple(x.shape)
        if name in TABLES:
            shape = (call.heads if x.size(0) > 1 else call.kv_heads, *shape[1:])
        elif name == "share":
            shape = (call.batch, call.heads, call.queries)
        several = 1 if name == "key_clock" else call.slots if name in OF_SLOTS else call.parts
        made = x.new_zeros((several, *shape), dtype=torch.float64 if name in ("lines", "share") else self.real)
        if name in TABLES:
            place = getattr(call, name)
            place.gradient, place.slot = made.data_ptr(), made.stride(0)
        elif name == "meeting":
            call.d_meeting = rows(made.flatten(0, 1))
        else:
            setattr(self._place_of(name), f"d_{name}", made.data_ptr())
        return made

    def _query_gradient(self, query: Tensor) -> Tensor:
        """That of the queries, accumulated in place if there are several parts or no rounding; otherwise each task
        accumulates and rounds its own. (parts or 1, batch, heads, queries, width)."""
        parts, shape = self.call.parts, query.shape
        if parts > 1 or self.real == query.dtype:
            made = query.new_zeros((parts, *shape), dtype=self.real)
            self.call.dq_sums = rows(made.flatten(0, 1))
            return made
        made = query.new_empty((1, *shape))
        self.call.dq = rows(made[0])
        return made


@functools.cache
def _check_fields(kernel: ctypes.CDLL) -> None:
    found = differences(kernel)
    if found:
        raise RuntimeError(f"call.h and operator.py differ in {', '.join(found)}")


def _native(
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
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp. ``given`` are the tensors of these names, of which the ``learned`` get gradients;
    ``tiling`` and ``form`` the numbers of a `Tiling` and a `KernelLayout`; ``skip_below`` the fraction of a row's
    weight that may be skipped. If the form has a rotation, queries and keys are rotated by cos and sin in ``given``."""
    with compat.single_threaded() as threads:
        tensors = [_aligned(x) for x in (query, key, value)]
        kernel = _Kernel(tensors, given, (names, learned, tiling, form, scale, skip_below), threads)
        out, lse = kernel.forward(*tensors)
        return _cut(out, value.size(-1)), lse


def _in_memory_order(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in the memory order of the kernel, and what it needs besides."""
    named = dict(given)
    if "key_place" in named:
        named["run_end"] = _run_ends(named["key_place"])
    for names in (ANGLES[:2], ANGLES[2:]):  # cos and sin need equal strides and contiguous tokens
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
    tiling: Sequence[int],
    form: Sequence[int],
    scale: float,
    skip_below: float,
) -> list[Tensor]:
    """The gradients of query, key and value, and of learned tensors."""
    with compat.single_threaded() as threads:
        inputs, wanted = dict(zip(names.split(), given, strict=True)), learned.split()
        tensors = [_aligned(x) for x in (query, key, value)]
        kernel = _Kernel(tensors, given, (names, learned, tiling, form, scale, skip_below), threads)
        kernel.divide(wanted)
        out, dout, lse = _aligned(out).contiguous(), _aligned(dout).contiguous(), lse.contiguous()
        *of_tokens, found = kernel.backward(wanted, dout, dlse, tensors, out, lse)
        return [
            *(_cut(x, like.size(-1)) for x, like in zip(of_tokens, (query, key, value), strict=True)),
            *(_finished(name, found[name], inputs[name]) for name in wanted),
        ]


def _given_gradients(wanted: Sequence[str], given: dict[str, Tensor]) -> list[str]:
    """The inputs whose gradients the kernel computes: those that are wanted, and what it cannot leave out."""
    clocks = ("query_clock", "key_clock")
    needed = [name for name in wanted if name not in (*clocks, "meeting")]
    needed += ["meeting"] if "meeting" in given else []
    return needed + (list(clocks) if any(clock in wanted for clock in clocks) else [])


def _finished(name: str, found: Tensor, x: Tensor) -> Tensor:
    """The gradient of an input x, from those of slots or parts."""
    gradient = _cut(_sum(found), x.size(-1))
    if name in TABLES and x.size(0) == 1:
        gradient = gradient.sum(0, keepdim=True)
    elif name == "share":  # one number per query, shared by all heads and possibly all rows
        gradient = gradient.sum(1).sum_to_size(x.shape)
    return gradient.to(x.dtype)


def _sum(x: Tensor) -> Tensor:
    return x[0] if x.size(0) == 1 else x.sum(0)


class Prepared:
    """What calls of one plan have in common: the operator's arguments besides query, key and value, and structures that
    are filled for them, of which a call changes only addresses: filling one takes longer than attention over 64 tokens.
    ``given``: None if each call has tensors of its own, of the same shapes. ``is_shared``: whether what they were
    computed from learns, and belongs to the encoding.

    A call takes a structure out of the list, and puts it back, so that no two threads have the same. There are never
    more than calls were running at once. Tensors of other strides, and those that must be padded, are run without one.
    """

    def __init__(self, dtype: torch.dtype, is_shared: bool, given: Sequence[Tensor] | None, *rest: Any) -> None:
        self.dtype, self.given, self.rest = dtype, given, rest  # the dtype of query, key and value
        self.is_shared = is_shared
        self.learned = rest[1].split()
        self.has_plain_memory = given is not None and compat.is_plain_memory(given)
        self.strides: tuple[tuple[int, ...], ...] | None = None  # of the first call; (): it had to be padded
        self.free: tuple[list[_Kernel], list[_Kernel]] = [], []  # for forward and backward

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of a call that has all its other tensors in common with the first."""
        assert self.given is not None
        dtype = query.dtype
        if dtype == self.dtype:
            out, lse = native(query, key, value, self.given, *self.rest, prepared=self)
            return out, lse
        query, key, value = query.to(self.dtype), key.to(self.dtype), value.to(self.dtype)
        out, lse = native(query, key, value, self.given, *self.rest, prepared=self)
        return out.to(dtype), lse

    def _take(self, is_backward: bool, tensors: Sequence[Tensor], given: Sequence[Tensor]) -> _Kernel | None:
        """A structure for these tensors; None if they must be run without one."""
        given = given if self.given is None else self.given  # what a hook has unpacked may be overwritten later
        query, key, value = tensors
        strides = query.stride(), key.stride(), value.stride()
        if strides != self.strides:
            if self.strides is not None:
                return None
            is_whole = all(x.size(-1) % CHANNELS == 0 and x.stride(-1) == 1 for x in tensors)
            self.strides = strides if is_whole else ()
            if not is_whole:
                return None
        try:
            made = self.free[is_backward].pop()
        except IndexError:
            made = _Kernel(tensors, given, self.rest, torch.get_num_threads())
            if is_backward:
                made.divide(self.learned)
            return made
        if self.given is None:
            made.put(given)
        return made

    def _give_back(self, is_backward: bool, kernel: _Kernel) -> None:
        if self.given is None:  # a plan holds no tensors of a layer
            kernel.given = {}
        self.free[is_backward].append(kernel)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, given: Sequence[Tensor], *_: Any
    ) -> tuple[Tensor, Tensor]:
        """As `_native`."""
        kernel = self._take(False, (query, key, value), given)
        if kernel is None:
            return _native(query, key, value, given, *self.rest)
        try:
            if kernel.has_bounds is False:
                return kernel.forward(query, key, value)
            with compat.single_threaded():
                return kernel.forward(query, key, value)
        finally:
            self._give_back(False, kernel)

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
        """As `_native_backward`."""
        kernel = self._take(True, (query, key, value), given)
        if kernel is None:
            return _native_backward(dout, dlse, query, key, value, out, lse, given, *self.rest)
        try:
            with compat.single_threaded():
                *of_tokens, found = kernel.backward(
                    self.learned, dout.contiguous(), dlse, (query, key, value), out.contiguous(), lse.contiguous()
                )
                inputs = dict(zip(self.rest[0].split(), given, strict=True))
                return [*of_tokens, *(_finished(name, found[name], inputs[name]) for name in self.learned)]
        finally:
            self._give_back(True, kernel)


native = custom_operator("posenc::native", _native, _native_backward)
