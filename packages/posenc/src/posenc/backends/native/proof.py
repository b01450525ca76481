"""Known-answer tests that a library of the kernel must pass before it is used.

A compiler can generate wrong code from correct C++ without anyone noticing. So a library computes the `cases`, and
its output, log-sum-exp and gradients are compared with those of the reference in float64. `known.json` stores three
numbers for each tensor x: its norm |x|, and the complex projection sum_n x_n e^(i a_n) with non-repeating angles a_n.
An error e in a single entry changes the projection by |e|, and errors in many entries do not cancel: for independent
errors the change is about their norm.

The tolerance is stored in units of rounding: ``off`` is the error of the reference in float32 against float64, which
includes the cancellation in this case, and ``least`` is the minimum error of a kernel that stores log-sum-exps.
Sums in another order may differ by `MARGIN` times the larger of both. In half precision, weights, outputs and gradients
of scores are rounded separately: the tolerance is `MARGIN` times that rounding of |x|, or ``off`` roundings if sums
cancel more.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import compat
from posenc.arguments import check_choice
from posenc.backends.blockwise import IN_DOUBLE, POSSIBLE, KernelLayout
from posenc.encoding.terms import skipped_by_default
from posenc.positions.layout import Layout
from posenc.positions.positions import Positions
from posenc.positions.tiles import Tiling, Visibility, distances, tiles

# -- inputs: integer arithmetic, the same on every machine ------------------------------------------------------------


P = 65521  # a prime
ANGLES = ("query_cos", "query_sin", "key_cos", "key_sin")
WITHOUT_GRADIENT = ("query_place", "key_place", "ends", "key_norms", *ANGLES)  # tensors without a gradient
CLIP_DISTANCE = 6  # clipped tables are constant from this distance on
COLUMNS = 29  # tokens in a row, where they have two coordinates
BREAKPOINTS = (41 / 1024, 171 / 1024, 1023 / 1024)  # of a piecewise linear function; all x are multiples of 1/512


@functools.cache
def aperiodic_numbers() -> Tensor:
    """(40503 n^2 mod P) / P for n = 1 .. P: aperiodic numbers from 0 to 1."""
    n = torch.arange(1, P + 1, dtype=torch.int64)
    return (n * n * 40503 % P).double() / P


@functools.cache
def _number_sequence() -> Tensor:
    """The numbers of all cases, repeated once."""
    return (aperiodic_numbers() * 128).floor().sub(64).div(64).repeat(2)


@dataclass(frozen=True)
class Geometry:
    """Positions of queries and keys, visibility, and sizes."""

    query_positions: Callable[[], Positions]
    key_positions: Callable[[], Positions]
    visibility: Visibility
    batch: int
    heads: int
    kv_heads: int
    per_head: bool  # whether each head has its own table
    scale: float
    width: int = 16
    value_width: int = 16
    threads: int = 1


@functools.cache
def _packed() -> Positions:
    """Two rows: three documents; and one document with a gap in its coordinates, then padding."""
    packed = Positions.packed([[37, 50, 16], [90]])
    coords = packed.coords.clone()
    coords[1, 41:] += 23
    return packed.with_coords(coords)


def _text(n: int, start: int = 0) -> Callable[[], Positions]:
    return functools.cache(lambda: Positions.arange(n, start=start))


def _window(n: int) -> Visibility:
    return Visibility(is_causal=True, left=n - 1, right=0)


# The kernel has blocks of 64, 256 and 512 tokens: the lengths are not multiples of them and exceed each.
GEOMETRIES = {
    "window of 9": Geometry(_text(131), _text(131), _window(9), 1, 4, 2, True, 1.0),
    "window of 40": Geometry(_text(530), _text(530), _window(40), 1, 2, 1, False, 0.7),
    "all keys": Geometry(_text(67, 500), _text(570), Visibility(), 1, 2, 1, True, 0.7, value_width=20),
    "packed": Geometry(_packed, _packed, Visibility(is_causal=True), 2, 3, 3, False, 1.0, width=21),
    "few queries": Geometry(_text(3, 597), _text(600), Visibility(is_causal=True), 1, 2, 2, True, 1.0),
    "two threads": Geometry(_text(300), _text(300), Visibility(is_causal=True), 1, 2, 1, True, 1.0, threads=2),
}


@dataclass(frozen=True)
class KnownAnswerCase:
    """A term with a `Geometry`."""

    term: str
    geometry_name: str

    @property
    def name(self) -> str:
        return f"{self.term}, {self.geometry_name}"

    @property
    def geometry(self) -> Geometry:
        return GEOMETRIES[self.geometry_name]

    @property
    def is_planar(self) -> bool:
        return "coordinates" in self.term

    @functools.cached_property
    def query_positions(self) -> Positions:
        return self._positions(self.geometry.query_positions())

    @functools.cached_property
    def key_positions(self) -> Positions:
        return self._positions(self.geometry.key_positions())

    def _positions(self, positions: Positions) -> Positions:
        if not self.is_planar:
            return positions
        order = positions.order
        coords = torch.stack((order // COLUMNS, order % COLUMNS), -1)
        return Positions(coords, order=positions.order, document=positions.document)

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        both = self.query_positions.layout, self.key_positions.layout
        return (both[0].by_order(), both[1].by_order()) if self.is_planar else both

    @functools.cached_property
    def distance_range(self) -> tuple[int, int]:
        """The lowest and highest difference of any coordinate, key minus query: of unmasked pairs or, with two
        coordinates, of all pairs."""
        if self.is_planar:
            x, y = self.query_positions.coords, self.key_positions.coords
            return int(y.min() - x.max()), int(y.max() - x.min())
        seen = distances(list(tiles(*self.layouts, self.geometry.visibility, self.geometry.batch)))
        assert seen is not None
        return seen

    def numbers(self, what: str, *shape: int) -> Tensor:
        """Numbers from -1 to 63/64 in float64, which depend on the names of the case and of ``what``."""
        start = zlib.crc32(f"{self.name}: {what}".encode()) % P
        return _number_sequence()[start : start + math.prod(shape)].reshape(shape)

    def table(self, what: str, width: int, ends: tuple[int, int]) -> Tensor:
        """A table of all distances from one end to the other, (heads or 1, entries, width)."""
        return self.numbers(what, self.geometry.heads if self.geometry.per_head else 1, ends[1] - ends[0] + 1, width)

    @functools.cached_property
    def tensors(self) -> dict[str, Tensor]:
        """query, key and value, and the gradients of output and log-sum-exp."""
        geometry = self.geometry
        sizes = {
            "query": (geometry.heads, len(self.query_positions)),
            "key": (geometry.kv_heads, len(self.key_positions)),
        }
        shapes = {
            "query": (*sizes["query"], geometry.width),
            "key": (*sizes["key"], geometry.width),
            "value": (*sizes["key"], geometry.value_width),
            "gradient of the output": (*sizes["query"], geometry.value_width),
            "gradient of the log-sum-exp": sizes["query"],
        }
        tensors = {name: self.numbers(name, geometry.batch, *shape) for name, shape in shapes.items()}
        tensors["query"] = tensors["query"] * 4
        if self.skips_keys:  # a key far from most queries, with a norm too large to be skipped
            loud = torch.arange(tensors["key"].size(2)) == 100
            tensors["key"] = torch.where(loud[:, None], tensors["key"] * 32, tensors["key"])
        return tensors

    @functools.cached_property
    def operands(self) -> tuple[dict[str, Tensor], dict[str, int], list[int]]:
        """The operator's tensors by name, the first entries of its tables, and its function."""
        return TERMS[self.term](self)

    @property
    def rotation(self) -> list[int]:
        """The first rotated channel, and whether pairs are interleaved; empty without a rotation."""
        return ROTATIONS.get(self.term, [])

    @property
    def skips_keys(self) -> bool:
        """Whether negligible keys are skipped."""
        return "faint" in self.term


TermOperands = tuple[dict[str, Tensor], dict[str, int], list[int]]
NO_FUNCTION, RELU, RELU_LAST, CAP, CAP_LAST = [0, 0], [1, 0], [1, 1], [2, 0], [2, 1]


def _tables(
    *names: str, tail: int | None = CLIP_DISTANCE, function: list[int] = NO_FUNCTION
) -> Callable[[KnownAnswerCase], TermOperands]:

    def make(case: KnownAnswerCase) -> TermOperands:
        ends = case.distance_range if tail is None else (-tail, tail)
        widths = {
            "vectors": case.geometry.width,
            "key_vectors": case.geometry.width,
            "values": case.geometry.value_width,
        }
        tensors = {name: case.table(name, widths.get(name, 1), ends) for name in names}
        if "factor" in tensors:  # a cap must not be 0
            tensors["factor"] = tensors["factor"] / 2 + 1.5
        return tensors, dict.fromkeys(names, ends[0]), function

    return make


def _combine(
    *terms: Callable[[KnownAnswerCase], TermOperands], **more: Callable[[KnownAnswerCase], Tensor]
) -> Callable[[KnownAnswerCase], TermOperands]:

    def make(case: KnownAnswerCase) -> TermOperands:
        tensors: dict[str, Tensor] = {}
        lows: dict[str, int] = {}
        function = NO_FUNCTION
        for term in terms:
            of_term, low, function = term(case)
            tensors |= of_term
            lows |= low
        return tensors | {name: of(case) for name, of in more.items()}, lows, function

    return make


def _feature_product(case: KnownAnswerCase) -> TermOperands:
    """The product of vectors with a feature of another width than the query."""
    geometry, width = case.geometry, 11
    meeting = case.numbers("meeting", geometry.batch, geometry.heads, len(case.query_positions), width)
    return (
        {"meeting": meeting, "vectors": case.table("vectors", width, (-CLIP_DISTANCE, CLIP_DISTANCE))},
        {"vectors": -CLIP_DISTANCE},
        NO_FUNCTION,
    )


def _shift(case: KnownAnswerCase) -> Tensor:
    return case.numbers("shift", case.geometry.heads, case.geometry.width)


ROTATIONS = {"rotated queries and keys (half)": [0, 0], "rotated queries and keys (some, interleaved)": [4, 1]}


def _rotation(pairs: int) -> Callable[[KnownAnswerCase], TermOperands]:

    def make(case: KnownAnswerCase) -> TermOperands:
        geometry, tensors = case.geometry, dict[str, Tensor]()
        for side, heads, positions in (
            ("query", geometry.heads, case.query_positions),
            ("key", geometry.kv_heads, case.key_positions),
        ):
            # (1 - t^2) / (1 + t^2) and 2t / (1 + t^2) are a cos and sin that need no math library.
            t = case.numbers(f"{side} angles", 1, heads if geometry.per_head else 1, len(positions), pairs)
            tensors[f"{side}_cos"], tensors[f"{side}_sin"] = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
        return tensors, {}, NO_FUNCTION

    return make


def _cumulative_bias(side: str) -> Callable[[KnownAnswerCase], Tensor]:
    def make(case: KnownAnswerCase) -> Tensor:
        positions = case.query_positions if side == "query" else case.key_positions
        readings = case.numbers(f"{side} clock", case.geometry.batch, case.geometry.heads, len(positions))
        # An increasing one makes distant keys negligible.
        return readings - positions.coords[:, None].double() / 2 if case.skips_keys else readings

    return make


def _decaying_bias(case: KnownAnswerCase) -> TermOperands:
    """A bias that decays so far that most keys are negligible."""
    low, high = case.distance_range
    r = torch.arange(low, high + 1, dtype=torch.float64)
    line = -r.abs() / 2 + case.table("bias", 1, case.distance_range)[..., 0]
    return {"bias": line[..., None]}, {"bias": low}, NO_FUNCTION


def _piecewise_linear(case: KnownAnswerCase) -> TermOperands:
    low, high = case.distance_range
    away = torch.arange(low, high + 1).neg().clamp(min=0).double() / 64
    share = (2.0 ** -(case.query_positions.coords % 4).double()).expand(case.geometry.batch, -1)
    least = torch.tensor(BREAKPOINTS, dtype=torch.float64) / share[..., None]
    # `away` decreases with the distance: entries beyond the n-th break come before the n-th end.
    ends = len(away) - torch.searchsorted(away.flip(0), least.contiguous(), right=True)
    lines = case.numbers("lines", case.geometry.heads, len(BREAKPOINTS) + 1, 2)
    tensors = {"away": away[None, :, None], "share": share.contiguous(), "lines": lines, "ends": ends}
    return tensors, {"away": low}, NO_FUNCTION


def _plane(*names: str) -> Callable[[KnownAnswerCase], TermOperands]:

    def make(case: KnownAnswerCase) -> TermOperands:
        geometry, entries = case.geometry, case.distance_range[1] - case.distance_range[0] + 1
        shapes = {"plane": (geometry.heads, entries, entries)}
        of_queries = (geometry.batch, geometry.heads, len(case.query_positions), entries)
        tensors = {name: case.numbers(name, *shapes.get(name, of_queries)) for name in names}
        tensors["query_place"], tensors["key_place"] = case.query_positions.coords, case.key_positions.coords
        return tensors, {"plane": case.distance_range[0]}, NO_FUNCTION

    return make


TERMS: Mapping[str, Callable[[KnownAnswerCase], TermOperands]] = {
    "no term": lambda case: ({}, {}, NO_FUNCTION),
    "bias (clipped)": _tables("bias"),
    "bias (a line)": _tables("bias", tail=None),
    "vectors that queries meet (clipped)": _tables("vectors"),
    "vectors that queries meet (all distances)": _tables("vectors", tail=None),
    "vectors that features meet": _feature_product,
    "vectors that keys meet (clipped)": _tables("key_vectors"),
    "vectors that keys meet (all distances)": _tables("key_vectors", tail=None),
    "values by distance (clipped)": _tables("values"),
    "values by distance (all distances)": _tables("values", tail=None),
    "functions of the score (relu times)": _tables("factor", tail=None, function=RELU),
    "functions of the score (relu times, clipped)": _tables("factor", function=RELU),
    "functions of the score (relu times, last)": _tables("factor", "bias", tail=None, function=RELU_LAST),
    "functions of the score (cap)": _tables("factor", "bias", tail=None, function=CAP),
    "functions of the score (one cap, last)": _combine(
        _tables("factor", tail=0, function=CAP_LAST),
        query_clock=_cumulative_bias("query"),
        key_clock=_cumulative_bias("key"),
    ),
    "broken line": _piecewise_linear,
    "clocks": _combine(_tables(), query_clock=_cumulative_bias("query"), key_clock=_cumulative_bias("key")),
    "a vector added to queries": _combine(_tables("vectors"), shift=_shift),
    "rotated queries and keys (half)": _rotation(8),
    "rotated queries and keys (some, interleaved)": _rotation(5),
    "two coordinates (plane)": _plane("plane"),
    "two coordinates (by row)": _plane("by_row"),
    "two coordinates (by column)": _plane("by_column"),
    "two coordinates (all three)": _plane("plane", "by_row", "by_column"),
    "what is too faint (bias)": _decaying_bias,
    "what is too faint (bias, vectors)": _combine(
        _decaying_bias, _tables("vectors"), shift=_shift, key_norms=lambda case: case.tensors["key"].norm(dim=-1)
    ),
    "what is too faint (clocks)": _combine(
        _tables(), query_clock=_cumulative_bias("query"), key_clock=_cumulative_bias("key")
    ),
}
GEOMETRIES_WITH_SKIPPING = ("all keys", "few queries")  # enough to skip some
# Threads share keys in the same way for every term: a few terms suffice, since on a busy machine threads wait.
TERMS_OF_THREADS = (
    "bias (a line)",
    "vectors that queries meet (clipped)",
    "values by distance (clipped)",
    "broken line",
    "clocks",
)


def cases() -> Iterator[KnownAnswerCase]:
    """All cases, newly created, so that their tensors are not kept."""
    for term in TERMS:
        for geometry in GEOMETRIES:
            if (geometry in GEOMETRIES_WITH_SKIPPING or "faint" not in term) and (
                geometry != "two threads" or term in TERMS_OF_THREADS
            ):
                yield KnownAnswerCase(term, geometry)


# -- answers ----------------------------------------------------------------------------------------------------------


KNOWN_ANSWERS = Path(__file__).with_name("known.json")
MARGIN = 8.0
MASKED_LSE = -100.0  # replaces the log-sum-exp of a fully masked query


@dataclass(frozen=True)
class Precision:
    """The dtypes of tokens and tables, the unit roundoff of sums and, if larger, of products, and the inputs that a
    library of this precision does not support."""

    token_dtype: torch.dtype
    table_dtype: torch.dtype
    unit: float
    rounding: float = 0.0
    unsupported: tuple[str, ...] = ()


PRECISIONS = {
    "float": Precision(torch.float32, torch.float32, 2.0**-24),
    "double": Precision(torch.float64, torch.float64, 2.0**-53),
    "bfloat16": Precision(torch.bfloat16, torch.float32, 2.0**-24, 2.0**-8, ("key_vectors",)),
}
_under_test = threading.local()


def library_under_test() -> ctypes.CDLL | None:
    """The library that this thread is testing, to call instead of the loaded one."""
    return getattr(_under_test, "kernel", None)


def failures(kernel: ctypes.CDLL, precision: str) -> tuple[str, ...]:
    """The cases that a library answers wrongly, with the names of the wrong tensors.

    ``precision`` is that of the library, a name in `PRECISIONS`. Runs in a new thread, so that modes set by the caller
    do not apply.
    """
    check_choice("precision", precision, tuple(PRECISIONS))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_failures, kernel, PRECISIONS[precision]).result()


def _failures(kernel: ctypes.CDLL, precision: Precision) -> tuple[str, ...]:
    torch.get_num_threads()  # PyTorch initializes it per thread on first use
    set_threads = compat.c_function("omp_set_num_threads")
    _under_test.kernel = kernel
    failures: list[str] = []
    with torch.no_grad():
        for case in cases():
            if any(name in case.operands[0] for name in precision.unsupported):
                continue
            if set_threads is not None:
                set_threads(case.geometry.threads)  # for parallel loops started by this thread
            known = _known_answers()[case.name]
            wrong = [name for name, x in answers(case, precision).items() if differs(x, known[name], precision)]
            if wrong:
                failures.append(f"{case.name}: {', '.join(wrong)}")
    return tuple(failures)


@functools.cache
def _known_answers() -> dict[str, dict[str, list[float]]]:
    """For every case and answer: projection (2), norm, ``off`` and ``least``."""
    return dict(json.loads(KNOWN_ANSWERS.read_text()))


def answers(case: KnownAnswerCase, precision: Precision) -> dict[str, Tensor]:
    """The operator's answers to a case, by name."""
    dtypes = dict.fromkeys(IN_DOUBLE, torch.float64) | dict.fromkeys(WITHOUT_GRADIENT[:3], torch.int64)
    query, key, value, dout, dlse = (x.to(precision.token_dtype) for x in case.tensors.values())
    tensors, lows, function = case.operands
    operands = [x.to(dtypes.get(name, precision.table_dtype)).contiguous() for name, x in tensors.items()]
    learned = [name for name in tensors if name not in WITHOUT_GRADIENT]
    rest = (
        operands,
        " ".join(tensors),
        " ".join(learned),
        Tiling(*case.layouts, case.geometry.visibility).flat(),
        KernelLayout(function, [lows.get(name, 0) for name in POSSIBLE], case.rotation).flat(),
        case.geometry.scale,
        skipped_by_default(precision.token_dtype) if case.skips_keys else 0.0,
    )
    out, lse = torch.ops.posenc.native(query, key, value, *rest)
    gradients = torch.ops.posenc.native_backward(dout, dlse.to(lse.dtype), query, key, value, out, lse, *rest)
    return answers_by_name(out, lse, dict(zip(("query", "key", "value", *learned), gradients, strict=True)))


def answers_by_name(out: Tensor, lse: Tensor, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """The answers by their names in reports."""
    words = {name: f"gradient of the {name.replace('_', ' ')}" for name in gradients}
    of = {words[name]: x for name, x in gradients.items()}
    return {"output": out, "log-sum-exp": lse.masked_fill(lse == -torch.inf, MASKED_LSE), **of}


@functools.cache
def _projection_vectors() -> Tensor:
    """cos and sin of P angles, (2, P)."""
    angles = aperiodic_numbers() * (2 * math.pi)
    return torch.stack((angles.cos(), angles.sin()))


def fingerprint(x: Tensor) -> list[float]:
    """The projection of x, two numbers, and its norm."""
    line = x.detach().double().flatten()
    once = line if len(line) <= P else F.pad(line, (0, -len(line) % P)).view(-1, P).sum(0)
    # Not a matrix product, whose summation order depends on the processor and whose error for thousands of numbers
    # exceeds the tolerance in float64. `sum` uses pairwise summation.
    return [*(_projection_vectors()[:, : len(once)] * once).sum(1).tolist(), torch.linalg.vector_norm(line).item()]


def differs(x: Tensor, known: list[float], precision: Precision) -> bool:
    """Whether an answer differs from the known one by more than rounding explains, or is NaN."""
    c, s, length = (a - b for a, b in zip(fingerprint(x), known, strict=False))
    *_, size, off, least = known
    of_sums, of_products = MARGIN * max(off, least), max(MARGIN * size, off)
    return not max(math.hypot(c, s), abs(length)) <= precision.unit * of_sums + precision.rounding * of_products
