"""Known-answer tests that a library of the kernel must pass before it is used.

A compiler can generate wrong code from correct C++ without anyone noticing. So a library computes the `questions`, and
its output, log-sum-exp and gradients are compared with those of the reference in float64. `known.json` stores three
numbers for each tensor x: its norm |x|, and the complex projection sum_n x_n e^(i a_n) with non-repeating angles a_n.
An error e in a single entry changes the projection by |e|, and errors in many entries do not cancel: for independent
errors the change is about their norm.

The tolerance is stored in units of rounding: ``off`` is the error of the reference in float32 against float64, which
includes the cancellation in this question, and ``least`` is the minimum error of a kernel that stores log-sum-exps.
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
from posenc.encoding.pieces import skipped_by_default
from posenc.positions.layout import Layout
from posenc.positions.positions import Positions
from posenc.positions.tiles import Tiling, Visibility, distances, tiles

# -- inputs: integer arithmetic, the same on every machine ------------------------------------------------------------


P = 65521  # a prime
ANGLES = ("query_cos", "query_sin", "key_cos", "key_sin")
FIXED = ("query_place", "key_place", "ends", "key_norms", *ANGLES)  # tensors without a gradient
TAIL = 6  # clipped tables are constant from this distance on
COLUMNS = 29  # tokens in a row, where they have two coordinates
BREAKS = (41 / 1024, 171 / 1024, 1023 / 1024)  # of a piecewise linear function; all x are multiples of 1/512


@functools.cache
def scattered() -> Tensor:
    """(40503 n^2 mod P) / P for n = 1 .. P: aperiodic numbers from 0 to 1."""
    n = torch.arange(1, P + 1, dtype=torch.int64)
    return (n * n * 40503 % P).double() / P


@functools.cache
def _line() -> Tensor:
    """The numbers of all questions, repeated once."""
    return (scattered() * 128).floor().sub(64).div(64).repeat(2)


@dataclass(frozen=True)
class Place:
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
PLACES = {
    "window of 9": Place(_text(131), _text(131), _window(9), 1, 4, 2, True, 1.0),
    "window of 40": Place(_text(530), _text(530), _window(40), 1, 2, 1, False, 0.7),
    "all keys": Place(_text(67, 500), _text(570), Visibility(), 1, 2, 1, True, 0.7, value_width=20),
    "packed": Place(_packed, _packed, Visibility(is_causal=True), 2, 3, 3, False, 1.0, width=21),
    "few queries": Place(_text(3, 597), _text(600), Visibility(is_causal=True), 1, 2, 2, True, 1.0),
    "two threads": Place(_text(300), _text(300), Visibility(is_causal=True), 1, 2, 1, True, 1.0, threads=2),
}


@dataclass(frozen=True)
class Question:
    """A term with a `Place`."""

    term: str
    place_name: str

    @property
    def name(self) -> str:
        return f"{self.term}, {self.place_name}"

    @property
    def place(self) -> Place:
        return PLACES[self.place_name]

    @property
    def is_planar(self) -> bool:
        return "coordinates" in self.term

    @functools.cached_property
    def query_positions(self) -> Positions:
        return self._positions(self.place.query_positions())

    @functools.cached_property
    def key_positions(self) -> Positions:
        return self._positions(self.place.key_positions())

    def _positions(self, positions: Positions) -> Positions:
        if not self.is_planar:
            return positions
        at = positions.order
        coords = torch.stack((at // COLUMNS, at % COLUMNS), -1)
        return Positions(coords, order=positions.order, document=positions.document)

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        both = self.query_positions.layout, self.key_positions.layout
        return (both[0].by_order(), both[1].by_order()) if self.is_planar else both

    @functools.cached_property
    def reach(self) -> tuple[int, int]:
        """The lowest and highest difference of any coordinate, key minus query: of unmasked pairs or, with two
        coordinates, of all pairs."""
        if self.is_planar:
            x, y = self.query_positions.coords, self.key_positions.coords
            return int(y.min() - x.max()), int(y.max() - x.min())
        seen = distances(list(tiles(*self.layouts, self.place.visibility, self.place.batch)))
        assert seen is not None
        return seen

    def numbers(self, what: str, *shape: int) -> Tensor:
        """Numbers from -1 to 63/64 in float64, which depend on the names of the question and of ``what``."""
        start = zlib.crc32(f"{self.name}: {what}".encode()) % P
        return _line()[start : start + math.prod(shape)].reshape(shape)

    def table(self, what: str, width: int, ends: tuple[int, int]) -> Tensor:
        """A table of all distances from one end to the other, (heads or 1, entries, width)."""
        return self.numbers(what, self.place.heads if self.place.per_head else 1, ends[1] - ends[0] + 1, width)

    @functools.cached_property
    def tensors(self) -> dict[str, Tensor]:
        """query, key and value, and the gradients of output and log-sum-exp."""
        at = self.place
        sizes = {"query": (at.heads, len(self.query_positions)), "key": (at.kv_heads, len(self.key_positions))}
        shapes = {
            "query": (*sizes["query"], at.width),
            "key": (*sizes["key"], at.width),
            "value": (*sizes["key"], at.value_width),
            "gradient of the output": (*sizes["query"], at.value_width),
            "gradient of the log-sum-exp": sizes["query"],
        }
        found = {name: self.numbers(name, at.batch, *shape) for name, shape in shapes.items()}
        found["query"] = found["query"] * 4
        if self.skips:  # a key far from most queries, with a norm too large to be skipped
            loud = torch.arange(found["key"].size(2)) == 100
            found["key"] = torch.where(loud[:, None], found["key"] * 32, found["key"])
        return found

    @functools.cached_property
    def given(self) -> tuple[dict[str, Tensor], dict[str, int], list[int]]:
        """The operator's tensors by name, the first entries of its tables, and its function."""
        return TERMS[self.term](self)

    @property
    def rotation(self) -> list[int]:
        """The first rotated channel, and whether pairs are interleaved; empty without a rotation."""
        return ROTATIONS.get(self.term, [])

    @property
    def skips(self) -> bool:
        """Whether negligible keys are skipped."""
        return "faint" in self.term


Term = tuple[dict[str, Tensor], dict[str, int], list[int]]
NO_FUNCTION, RELU, RELU_LAST, CAP, CAP_LAST = [0, 0], [1, 0], [1, 1], [2, 0], [2, 1]


def _tables(*names: str, tail: int | None = TAIL, function: list[int] = NO_FUNCTION) -> Callable[[Question], Term]:

    def make(ask: Question) -> Term:
        ends = ask.reach if tail is None else (-tail, tail)
        widths = {"vectors": ask.place.width, "key_vectors": ask.place.width, "values": ask.place.value_width}
        found = {name: ask.table(name, widths.get(name, 1), ends) for name in names}
        if "factor" in found:  # a cap must not be 0
            found["factor"] = found["factor"] / 2 + 1.5
        return found, dict.fromkeys(names, ends[0]), function

    return make


def _also(*terms: Callable[[Question], Term], **more: Callable[[Question], Tensor]) -> Callable[[Question], Term]:

    def make(ask: Question) -> Term:
        found: dict[str, Tensor] = {}
        lows: dict[str, int] = {}
        function = NO_FUNCTION
        for term in terms:
            tensors, low, function = term(ask)
            found |= tensors
            lows |= low
        return found | {name: of(ask) for name, of in more.items()}, lows, function

    return make


def _feature(ask: Question) -> Term:
    """The product of vectors with a feature of another width than the query."""
    at, width = ask.place, 11
    meeting = ask.numbers("meeting", at.batch, at.heads, len(ask.query_positions), width)
    return {"meeting": meeting, "vectors": ask.table("vectors", width, (-TAIL, TAIL))}, {"vectors": -TAIL}, NO_FUNCTION


def _shift(ask: Question) -> Tensor:
    return ask.numbers("shift", ask.place.heads, ask.place.width)


ROTATIONS = {"rotated queries and keys (half)": [0, 0], "rotated queries and keys (some, interleaved)": [4, 1]}


def _rotated(pairs: int) -> Callable[[Question], Term]:

    def make(ask: Question) -> Term:
        at, found = ask.place, dict[str, Tensor]()
        for side, heads, positions in (
            ("query", at.heads, ask.query_positions),
            ("key", at.kv_heads, ask.key_positions),
        ):
            # (1 - t^2) / (1 + t^2) and 2t / (1 + t^2) are a cos and sin that need no math library.
            t = ask.numbers(f"{side} angles", 1, heads if at.per_head else 1, len(positions), pairs)
            found[f"{side}_cos"], found[f"{side}_sin"] = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
        return found, {}, NO_FUNCTION

    return make


def _clock(side: str) -> Callable[[Question], Tensor]:
    def make(ask: Question) -> Tensor:
        positions = ask.query_positions if side == "query" else ask.key_positions
        readings = ask.numbers(f"{side} clock", ask.place.batch, ask.place.heads, len(positions))
        # An increasing one makes distant keys negligible.
        return readings - positions.coords[:, None].double() / 2 if ask.skips else readings

    return make


def _falling(ask: Question) -> Term:
    """A bias that decays so far that most keys are negligible."""
    low, high = ask.reach
    r = torch.arange(low, high + 1, dtype=torch.float64)
    line = -r.abs() / 2 + ask.table("bias", 1, ask.reach)[..., 0]
    return {"bias": line[..., None]}, {"bias": low}, NO_FUNCTION


def _lengths_of_keys(ask: Question) -> Tensor:
    return torch.linalg.vector_norm(ask.tensors["key"], dim=-1)


def _broken(ask: Question) -> Term:
    low, high = ask.reach
    away = torch.arange(low, high + 1).neg().clamp(min=0).double() / 64
    share = (2.0 ** -(ask.query_positions.coords % 4).double()).expand(ask.place.batch, -1)
    least = torch.tensor(BREAKS, dtype=torch.float64) / share[..., None]
    # `away` decreases with the distance: entries beyond the n-th break come before the n-th end.
    ends = len(away) - torch.searchsorted(away.flip(0), least.contiguous(), right=True)
    lines = ask.numbers("lines", ask.place.heads, len(BREAKS) + 1, 2)
    tensors = {"away": away[None, :, None], "share": share.contiguous(), "lines": lines, "ends": ends}
    return tensors, {"away": low}, NO_FUNCTION


def _plane(*names: str) -> Callable[[Question], Term]:

    def make(ask: Question) -> Term:
        at, entries = ask.place, ask.reach[1] - ask.reach[0] + 1
        shapes = {"plane": (at.heads, entries, entries)}
        of_queries = (at.batch, at.heads, len(ask.query_positions), entries)
        found = {name: ask.numbers(name, *shapes.get(name, of_queries)) for name in names}
        found["query_place"], found["key_place"] = ask.query_positions.coords, ask.key_positions.coords
        return found, {"plane": ask.reach[0]}, NO_FUNCTION

    return make


TERMS: Mapping[str, Callable[[Question], Term]] = {
    "no term": lambda ask: ({}, {}, NO_FUNCTION),
    "bias (clipped)": _tables("bias"),
    "bias (a line)": _tables("bias", tail=None),
    "vectors that queries meet (clipped)": _tables("vectors"),
    "vectors that queries meet (all distances)": _tables("vectors", tail=None),
    "vectors that features meet": _feature,
    "vectors that keys meet (clipped)": _tables("key_vectors"),
    "vectors that keys meet (all distances)": _tables("key_vectors", tail=None),
    "values by distance (clipped)": _tables("values"),
    "values by distance (all distances)": _tables("values", tail=None),
    "functions of the score (relu times)": _tables("factor", tail=None, function=RELU),
    "functions of the score (relu times, clipped)": _tables("factor", function=RELU),
    "functions of the score (relu times, last)": _tables("factor", "bias", tail=None, function=RELU_LAST),
    "functions of the score (cap)": _tables("factor", "bias", tail=None, function=CAP),
    "functions of the score (one cap, last)": _also(
        _tables("factor", tail=0, function=CAP_LAST), query_clock=_clock("query"), key_clock=_clock("key")
    ),
    "broken line": _broken,
    "clocks": _also(_tables(), query_clock=_clock("query"), key_clock=_clock("key")),
    "a vector added to queries": _also(_tables("vectors"), shift=_shift),
    "rotated queries and keys (half)": _rotated(8),
    "rotated queries and keys (some, interleaved)": _rotated(5),
    "two coordinates (plane)": _plane("plane"),
    "two coordinates (by row)": _plane("by_row"),
    "two coordinates (by column)": _plane("by_column"),
    "two coordinates (all three)": _plane("plane", "by_row", "by_column"),
    "what is too faint (bias)": _falling,
    "what is too faint (bias, vectors)": _also(_falling, _tables("vectors"), shift=_shift, key_norms=_lengths_of_keys),
    "what is too faint (clocks)": _also(_tables(), query_clock=_clock("query"), key_clock=_clock("key")),
}
MANY_KEYS = ("all keys", "few queries")  # enough to skip some
# Threads share keys in the same way for every term: a few terms suffice, since on a busy machine threads wait.
SHARED = (
    "bias (a line)",
    "vectors that queries meet (clipped)",
    "values by distance (clipped)",
    "broken line",
    "clocks",
)


def questions() -> Iterator[Question]:
    """All questions, newly created, so that their tensors are not kept."""
    for term in TERMS:
        for place in PLACES:
            if (place in MANY_KEYS or "faint" not in term) and (place != "two threads" or term in SHARED):
                yield Question(term, place)


# -- answers ----------------------------------------------------------------------------------------------------------


KNOWN = Path(__file__).with_name("known.json")
MARGIN = 8.0
BLIND = -100.0  # replaces the log-sum-exp of a fully masked query


@dataclass(frozen=True)
class Precision:
    """The dtypes of tokens and tables, the unit roundoff of sums and, if larger, of products, and the inputs that a
    library of this precision does not support."""

    of_tokens: torch.dtype
    of_tables: torch.dtype
    unit: float
    rounding: float = 0.0
    untaken: tuple[str, ...] = ()


PRECISIONS = {
    "float": Precision(torch.float32, torch.float32, 2.0**-24),
    "double": Precision(torch.float64, torch.float64, 2.0**-53),
    "bfloat16": Precision(torch.bfloat16, torch.float32, 2.0**-24, 2.0**-8, ("key_vectors",)),
}
_trial = threading.local()


def on_trial() -> ctypes.CDLL | None:
    """The library that this thread is testing, to call instead of the loaded one."""
    return getattr(_trial, "kernel", None)


def failures(kernel: ctypes.CDLL, precision: str) -> tuple[str, ...]:
    """The questions that a library answers wrongly, with the names of the wrong tensors.

    ``precision`` is that of the library, a name in `PRECISIONS`. Runs in a new thread, so that modes set by the caller
    do not apply.
    """
    check_choice("precision", precision, tuple(PRECISIONS))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_failures, kernel, PRECISIONS[precision]).result()


def _failures(kernel: ctypes.CDLL, precision: Precision) -> tuple[str, ...]:
    torch.get_num_threads()  # PyTorch initializes it per thread on first use
    setting = compat.openmp("omp_set_num_threads")
    _trial.kernel = kernel
    found = []
    with torch.no_grad():
        for question in questions():
            if any(name in question.given[0] for name in precision.untaken):
                continue
            if setting is not None:
                setting(question.place.threads)  # for parallel loops started by this thread
            known = _known()[question.name]
            wrong = [name for name, x in answers(question, precision).items() if is_off(x, known[name], precision)]
            if wrong:
                found.append(f"{question.name}: {', '.join(wrong)}")
    return tuple(found)


@functools.cache
def _known() -> dict[str, dict[str, list[float]]]:
    """For every question and answer: projection (2), norm, ``off`` and ``least``."""
    return dict(json.loads(KNOWN.read_text()))


def answers(question: Question, precision: Precision) -> dict[str, Tensor]:
    """The operator's answers to a question, by name."""
    dtypes = dict.fromkeys(IN_DOUBLE, torch.float64) | dict.fromkeys(FIXED[:3], torch.int64)
    query, key, value, dout, dlse = (x.to(precision.of_tokens) for x in question.tensors.values())
    tensors, lows, function = question.given
    given = [x.to(dtypes.get(name, precision.of_tables)).contiguous() for name, x in tensors.items()]
    learned = [name for name in tensors if name not in FIXED]
    rest = (
        given,
        " ".join(tensors),
        " ".join(learned),
        Tiling(*question.layouts, question.place.visibility).flat(),
        KernelLayout(function, [lows.get(name, 0) for name in POSSIBLE], question.rotation).flat(),
        question.place.scale,
        skipped_by_default(precision.of_tokens) if question.skips else 0.0,
    )
    out, lse = torch.ops.posenc.native(query, key, value, *rest)
    found = torch.ops.posenc.native_backward(dout, dlse.to(lse.dtype), query, key, value, out, lse, *rest)
    return named(out, lse, dict(zip(("query", "key", "value", *learned), found, strict=True)))


def named(out: Tensor, lse: Tensor, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """The answers by their names in reports."""
    words = {name: f"gradient of the {name.replace('_', ' ')}" for name in gradients}
    of = {words[name]: x for name, x in gradients.items()}
    return {"output": out, "log-sum-exp": lse.masked_fill(lse == -torch.inf, BLIND), **of}


@functools.cache
def _wave() -> Tensor:
    """cos and sin of P angles, (2, P)."""
    angles = scattered() * (2 * math.pi)
    return torch.stack((angles.cos(), angles.sin()))


def measured(x: Tensor) -> list[float]:
    """The projection of x, two numbers, and its norm."""
    line = x.detach().double().flatten()
    once = line if len(line) <= P else F.pad(line, (0, -len(line) % P)).view(-1, P).sum(0)
    # Not a matrix product, whose summation order depends on the processor and whose error for thousands of numbers
    # exceeds the tolerance in float64. `sum` uses pairwise summation.
    return [*(_wave()[:, : len(once)] * once).sum(1).tolist(), torch.linalg.vector_norm(line).item()]


def is_off(x: Tensor, known: list[float], precision: Precision) -> bool:
    """Whether an answer differs from the known one by more than rounding explains, or is NaN."""
    c, s, length = (a - b for a, b in zip(measured(x), known, strict=False))
    *_, size, off, least = known
    of_sums, of_products = MARGIN * max(off, least), max(MARGIN * size, off)
    return not max(math.hypot(c, s), abs(length)) <= precision.unit * of_sums + precision.rounding * of_products
