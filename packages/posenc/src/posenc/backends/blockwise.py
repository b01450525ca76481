"""What the backends that compute tile by tile, native and triton, share: what they ask of a call, the operands of
kernels, which blocks of keys count, and custom operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from posenc import compat
from posenc.arguments import one_or
from posenc.backends.cache import cached
from posenc.backends.call import Call, Unless, never
from posenc.compat import no_grad
from posenc.encoding.staleness import read_by
from posenc.encoding.terms import (
    AddedVector,
    Bias,
    BrokenLine,
    CumulativeBias,
    Distance,
    Function,
    RelativeDot,
    Row,
    ScoreTerm,
    Term,
    Value,
    skip_threshold,
)
from posenc.lowering.distances import ENTRIES_PER_TOKEN, Block
from posenc.lowering.forms import added_to_query, check_width, meets
from posenc.positions.layout import Span, distance_bounds
from posenc.positions.positions import PADDING
from posenc.positions.tiles import Tiling, Visibility, distances, tiles

# -- of a call --------------------------------------------------------------------------------------------------------


def inputs(call: Call) -> str | None:
    """Why a call cannot be computed from its tiles, whatever its terms."""
    if call.attn_mask is not None or call.dropout_p:
        return "it does not support attn_mask and dropout"
    if compat.is_forward_mode():  # its tangents would be dropped without an error
        return "it has no forward-mode derivative"
    if compat.is_transformed():
        return "its operator does not support torch.func transforms"
    if call.scale <= 0:
        return "it masks before it scales, so the scale must be positive"
    if 0 in (*call.query.shape, *call.key.shape, *call.value.shape):
        return "an input is empty"
    if call.layouts is None:
        return "the layout of the positions is unknown: use positions.with_layout(), or a constructor of Positions"
    return None


def order(call: Call) -> str | None:
    """Why terms of supported kinds cannot be computed in this order, or so many of them."""
    folds = [term for term in call.score_terms if isinstance(term, AddedVector)]
    on_key = any(term.key is not None for term in folds)
    changing = [n for n, term in enumerate(call.score_terms) if _changes(term)]
    if len(changing) > 1 or any(n not in (0, len(call.score_terms) - 1) for n in changing):
        return "a score term that is a function of the score is between other terms"
    if on_key and any(term.query is not None for term in folds):
        return "vectors are added to both query and key, and their product is an unwanted cross term"
    if on_key and changing[:1] == [0] and len(call.score_terms) > 1:
        return "a score term needs the score before a vector is added to the key"
    if changing[:1] == [0] and folds:
        return "a score term needs the score before a vector is added to the query"
    if sum(isinstance(term, CumulativeBias) for term in call.score_terms) > 1:
        return "there is more than one cumulative feature"
    return None


def _changes(term: ScoreTerm) -> bool:
    """Whether it is a function of the score, and not a piecewise linear one of both coordinates."""
    return isinstance(term, Function) and not term.reads_coordinates


def lines_known(call: Call) -> str | None:
    """Why a call's distances are unknown."""
    assert call.layouts is not None
    if distances_of(call) and any(s.line is None for layout in call.layouts for row in layout.rows or () for s in row):
        return "a term depends on distance, and coordinates are not known to increase by one with the tokens"
    return None


LONG = "a term needs a table of all distances, whose range is too large"


# -- of a term --------------------------------------------------------------------------------------------------------


def _differs_between_queries(term: AddedVector, call: Call) -> bool:
    query = term.of_tokens
    return query is not None and not (query.dim() == 4 and query.size(0) == query.size(2) == 1)


def _differs_between_heads(term: AddedVector, call: Call) -> bool:
    return term.key is not None and not one_or(term.key.size(1), call.key.size(1))


NO_SEGMENTS = Unless(
    "a score term depends on segments", lambda term, call: term.distance is not None and term.distance.axis == "segment"
)
ONE_AXIS = Unless("a score term depends on several coordinates", lambda term, call: term.is_planar)
HIDES = Unless("a score term masks keys", lambda term, call: term.masks)
SAME_FOR_QUERIES = Unless("a vector added to the query differs from token to token", _differs_between_queries)
SAME_FOR_GROUPS = Unless("a vector added to the key differs from query head to query head", _differs_between_heads)
BY_DISTANCE = Unless("a score term is a function of both coordinates", lambda term, call: term.reads_coordinates)
NO_ROWS = never("a score term needs whole rows of scores")

KINDS: dict[type[Term], tuple[Unless, ...]] = {
    Bias: (HIDES, ONE_AXIS),
    RelativeDot: (NO_SEGMENTS, ONE_AXIS),
    AddedVector: (SAME_FOR_QUERIES, SAME_FOR_GROUPS),
    CumulativeBias: (),
    Function: (ONE_AXIS, BY_DISTANCE),
    Row: NO_ROWS,
    Value: (ONE_AXIS,),
}
"""What tiles can do with each kind; a backend may do more, or less."""


# -- distances --------------------------------------------------------------------------------------------------------


def distances_of(call: Call) -> list[Distance]:
    """Those of lines of distances: of all terms that are not planar, and of piecewise linear functions."""
    found = [term.distance for term in (*call.values, *call.score_terms) if not term.is_planar]
    broken = [Distance(p.scheme) for p in call.score_terms if isinstance(p, Function) and p.reads_coordinates]
    return [distance for distance in found if distance is not None] + broken


def is_spread(call: Call) -> bool:
    """Whether the range of distances is too large for a table, as on both sides of a gap."""
    assert call.layouts is not None
    query, key = call.layouts
    if query.run is not None and key.run is not None:
        return False  # contiguous texts have as many distances as tokens
    most = ENTRIES_PER_TOKEN * (call.query.size(2) + call.key.size(2))
    bounds = distance_bounds(query, key)
    if bounds is not None and bounds[1] - bounds[0] < most:
        return False
    least, greatest = reach_of(call)
    return greatest - least >= most


def reach_of(call: Call) -> tuple[int, int]:
    """The lowest and highest distance of any unmasked pair."""
    assert call.layouts is not None
    query, key = (layout.run for layout in call.layouts)
    # The spans of a grid have no line.
    if (
        torch.compiler.is_compiling()
        and query is not None
        and key is not None
        and query.line is not None
        and key.line is not None
    ):
        return _reach_of_runs(query, key, call)
    found = list(tiles(*call.layouts, call.visibility, call.query.size(0)))
    reached = distances(found)
    assert reached is not None or not distances_of(call)
    return reached or (0, 0)


def _reach_of_runs(query: Span, key: Span, call: Call) -> tuple[int, int]:
    """The same without comparing lengths, which may be symbolic."""
    assert query.line is not None
    assert key.line is not None
    m, n = call.query.size(2), call.key.size(2)
    apart = key.line - query.line
    lowest, highest = apart - (m - 1), apart + n - 1
    if call.visibility.furthest is not None:
        level = (key.line - key.order) - (query.line - query.order)
        highest = compat.sym_min(highest, level + call.visibility.furthest)
    return lowest, highest


def line_of(at: Callable[[Tensor], Tensor], distance: Distance, block: Block, r: Tensor) -> Tensor:
    """The values of a term at these distances, (heads or 1, distances[, width]), in the scores' dtype."""
    return block.of_heads(at(distance.clamped(r)), distance.scheme).to(block.dtype)


# -- tables of two coordinates ----------------------------------------------------------------------------------------


ENTRIES_OF_PLANE = 64  # for each token: of 64 x 64 patches there are two, of 16 x 256 thirty-two
FEW_ENTRIES = 2**14


def refused_plane(call: Call) -> str | None:
    """Why the planar terms of a call cannot be tables; None if they can."""
    score_terms = [term for term in call.score_terms if term.is_planar]
    if not score_terms:
        return None
    for positions in (call.query_positions, call.key_positions):
        coords = positions.coords
        if coords.dim() != 3 or coords.size(2) != 2 or coords.dtype != torch.int64:
            return "a score term depends on several coordinates, which are not two integers"
    reached = _reach_of_plane(call, score_terms)
    if reached is None:
        return "a score term depends on several coordinates, whose bounds are unknown"
    entries, tokens = reached[1] - reached[0] + 1, call.query.size(2) + call.key.size(2)
    is_plane = any(isinstance(term, Bias) for term in score_terms)
    if (is_plane and entries**2 > max(FEW_ENTRIES, ENTRIES_OF_PLANE * tokens)) or entries > ENTRIES_PER_TOKEN * tokens:
        return "a term needs a table of all differences of two coordinates, whose range is too large"
    return None


def _reach_of_plane(call: Call, score_terms: Sequence[ScoreTerm]) -> tuple[int, int] | None:
    """The lowest and highest difference of any coordinate, key minus query, with an entry; None: unknown."""
    bounds = distance_bounds(call.query_positions.layout, call.key_positions.layout)
    if bounds is None:
        return None
    low, high = map(int, bounds)
    reaches = [term.distance.reach for term in score_terms if term.distance is not None]
    if all(reach is not None for reach in reaches):
        most = max(side - 1 for reach in reaches for side in reach or ())
        low, high = max(low, -most), min(high, most)
    return (low, high) if low <= high else (0, 0)  # all pairs beyond the reach are masked


def tables_of_plane(score_terms: Sequence[Bias | RelativeDot], call: Call) -> tuple[int, dict[str, Tensor]]:
    """The difference of the first entry, and the tensors of planar terms by name: "plane" (heads, entries, entries),
    "by_row" and "by_column" (batch, heads, queries, entries), and the coordinates (rows, tokens, 2)."""
    heads = call.query.size(1)
    reached = _reach_of_plane(call, score_terms)
    assert reached is not None
    r = torch.arange(reached[0], reached[1] + 1, device=call.query.device)
    found: dict[str, list[Tensor]] = {"plane": [], "by_row": [], "by_column": []}
    for term in score_terms:
        distance = term.distance
        if isinstance(term, Bias) and distance.axis is None:
            both = torch.stack(torch.meshgrid(r, r, indexing="ij"), -1)  # all pairs of differences
            found["plane"].append(line_of(term.at, distance, call, both).expand(heads, -1, -1))
        elif isinstance(term, Bias):
            line = line_of(term.at, distance, call, r)
            line = line[:, :, None] if distance.axis == 0 else line[:, None]
            found["plane"].append(line.expand(heads, len(r), len(r)))
        else:
            vectors = line_of(term.at, distance, call, r)
            meeting = meets(term, call)
            check_width(vectors, meeting, distance.scheme)
            products = (meeting @ vectors.mT).expand(call.query.size(0), heads, -1, -1)
            found["by_row" if distance.axis == 0 else "by_column"].append(products.to(call.dtype))
    tensors = {name: reduce(torch.add, terms) for name, terms in found.items() if terms}
    tensors["query_place"], tensors["key_place"] = call.query_positions.coords, call.key_positions.coords
    return reached[0], tensors


# -- operands ---------------------------------------------------------------------------------------------------------


TABLES = ("bias", "vectors", "values", "factor", "key_vectors", "away")
POSSIBLE = (*TABLES, "plane")  # those that begin at some distance
IN_DOUBLE = ("query_clock", "key_clock", "lines", "share")
FUNCTIONS = {"relu times": 1, "cap": 2}  # functions that kernels support, by `Function.formula`


class KernelLayout(NamedTuple):
    """What an operator takes in whole numbers: a function of the score and whether it comes last; the distance of the
    first entry of each possible table; and where the kernel rotates, the first channel and 1 if interleaved, else 0."""

    function: Sequence[int]
    lows: Sequence[int]
    rotation: Sequence[int] = ()

    def low_of(self, name: str) -> int:
        """The distance of the first entry of a table."""
        return self.lows[POSSIBLE.index(name)]

    def flat(self) -> list[int]:
        """As one list."""
        return [*self.function, *self.lows, *self.rotation]

    @staticmethod
    def unflat(numbers: Sequence[int]) -> KernelLayout:
        """The inverse of `flat`."""
        past = 2 + len(POSSIBLE)
        return KernelLayout(numbers[:2], numbers[2:past], numbers[past:])


def is_of_positions(call: Call) -> bool:
    """Whether no query, key or feature is part of a call's operands, so that other layers have the same."""
    return not any(
        term.is_planar or term.feature is not None or (isinstance(term, AddedVector) and term.key is not None)
        for term in call.score_terms
    )


class KernelOperands:
    """The arguments of a kernel besides query and value: the key, tensors by name, and the first entries of tables.

    - "bias" and "factor" (heads or 1, entries, 1), "vectors" and "values" (heads or 1, entries, width).
    - "key_vectors", scaled, to multiply with keys.
    - "shift" (heads, head_dim), added to the query.
    - "meeting" (batch, heads, queries, width), multiplied with the vectors instead of the query.
    - "query_clock" and "key_clock" (batch, heads, tokens), in float64.
    - The tables of `tables_of_plane`.
    - "away" (1, entries, 1), "share" (rows, queries) and "lines" (heads, lines, 2) of a `BrokenLine`, the latter two in
      float64, and "ends" (rows, queries, lines - 1), the number of entries of "away" before each break of a query.
    """

    tails: tuple[str | None, ...] = ("constant",)  # those for which a table ends where they begin

    def __init__(self, call: Call) -> None:
        planar = [term for term in call.score_terms if term.is_planar and isinstance(term, (Bias, RelativeDot))]
        if planar:
            call = replace(call, score_terms=tuple(term for term in call.score_terms if not term.is_planar))
        self.call = call
        self.reach = reach_of(call)
        self.key = call.key
        self.tensors: dict[str, Tensor] = {}
        self.lows: dict[str, int] = {}
        self.function = [0, 0]
        self._biases_and_meetings()
        self._others()
        if planar:
            self.lows["plane"], tables = tables_of_plane(planar, call)
            self.tensors.update(tables)

    def _entries(self, distances: Sequence[Distance]) -> tuple[int, Tensor]:
        """The first distance of a table for all of these, and its distances: those of any pair or, if every term is
        constant beyond some distance, only up to that. The kernel repeats the end entries."""
        lowest, highest = self.reach
        if all(distance.tail in self.tails for distance in distances):
            past = max(distance.past for distance in distances)
            lowest, highest = (compat.sym_min(compat.sym_max(end, lowest), highest) for end in (-past, past))
        return lowest, torch.arange(lowest, highest + 1, device=self.call.query.device)

    def _put(self, name: str, low: int, table: Tensor) -> None:
        self.tensors[name], self.lows[name] = (table if table.dim() == 3 else table[..., None]), low

    def _biases_and_meetings(self) -> None:
        call, heads = self.call, self.call.query.size(1)
        biases = [term for term in call.score_terms if isinstance(term, Bias)]
        meetings = [term for term in call.score_terms if isinstance(term, RelativeDot)]
        shifted = [term for term in meetings if term.shift is not None]  # these also add a bias
        of_vectors = [term.distance for term in meetings]
        of_lines = [term.distance for term in biases]
        if shifted:
            of_vectors = of_lines = [*of_vectors, *of_lines]
        lines: list[Tensor] = []
        vectors: list[Tensor] = []
        key_vectors: list[Tensor] = []
        features: list[tuple[Tensor, Tensor]] = []
        if meetings:
            low, r = self._entries(of_vectors)
        for meeting in meetings:
            line = line_of(meeting.at, meeting.distance, call, r)
            feature = call.query if meeting.feature is None else meets(meeting, call)
            check_width(line, feature, meeting.distance.scheme)
            if meeting.feature is not None:
                features.append((feature, line.expand(heads, -1, -1)))
                continue
            (vectors if meeting.side == "query" else key_vectors).append(line)
            if meeting.shift is not None:
                v = call.of_heads(meeting.shift.to(call.dtype), meeting.distance.scheme)
                lines.append((line @ v[..., None])[..., 0] * call.scale)
        if features:
            if vectors:
                features.insert(
                    0, (call.query.to(call.dtype) * call.scale, reduce(torch.add, vectors).expand(heads, -1, -1))
                )
            self.tensors["meeting"], joined = (torch.cat(each, -1) for each in zip(*features, strict=True))
            self._put("vectors", low, joined)
        elif vectors:
            self._put("vectors", low, reduce(torch.add, vectors))
        if key_vectors:
            self._put("key_vectors", low, reduce(torch.add, key_vectors) * call.scale)
        if biases or shifted:
            low, r = self._entries(of_lines)
            lines += [line_of(bias.at, bias.distance, call, r) for bias in biases]
            self._put("bias", low, reduce(torch.add, lines))

    def _others(self) -> None:
        call = self.call
        if call.values:
            low, r = self._entries([term.distance for term in call.values])
            lines = [line_of(term.vectors, term.distance, call, r) for term in call.values]
            self._put("values", low, reduce(torch.add, lines))
        for term in call.score_terms:
            if isinstance(term, AddedVector):
                self._fold(term)
            elif isinstance(term, CumulativeBias):
                self._clock(term)
            elif isinstance(term, Function):
                self._function(term)

    def _fold(self, term: AddedVector) -> None:
        if term.key is not None:
            check_width(term.key, self.call.query, term.scheme)
            self.key = self.key + term.key.to(self.call.dtype)
        elif term.of_tokens is not None:
            check_width(term.of_tokens, self.call.query, term.scheme)
            u = self.call.of_heads(term.of_tokens[0, :, 0].to(self.call.dtype), term.scheme)
            u = u.expand(self.call.query.size(1), -1)
            self.tensors["shift"] = self.tensors["shift"] + u if "shift" in self.tensors else u

    def _clock(self, term: CumulativeBias) -> None:
        shape = *self.call.query.shape[:2], -1
        for side in ("query", "key"):
            self.tensors[f"{side}_clock"] = self.call.feature(term.feature, side).expand(shape).double()

    def _function(self, term: Function) -> None:
        if term.broken is not None:
            return self._broken(term.broken, term.scheme)
        assert term.formula is not None
        assert term.distance is not None
        low, r = self._entries([term.distance])
        (c,) = term.coefficients(r)
        is_last = int(len(self.call.score_terms) > 1 and self.call.score_terms[-1] is term)
        self._put("factor", low, self.call.of_heads(c.to(self.call.dtype), term.distance.scheme))
        self.function = [FUNCTIONS[term.formula], is_last]

    def _broken(self, term: BrokenLine, scheme: str) -> None:
        low, r = self._entries([Distance(scheme)])
        away, share = term.away(r), term.share(self.call.query_positions.scalar(scheme))
        breaks, lines = term.lines()
        # Entries decrease: those before the n-th end are beyond the n-th break.
        least = (breaks / share[..., None]).detach()
        ends = away.size(0) - torch.searchsorted(away.detach().flip(0), least, right=True)
        self._put("away", low, away.to(self.call.dtype)[None])
        heads = self.call.query.size(1)
        self.tensors.update(share=share, lines=self.call.of_heads(lines, scheme).expand(heads, -1, -1), ends=ends)

    @property
    def learned(self) -> list[str]:
        """The names of tensors whose gradients are wanted."""
        return [name for name, x in self.tensors.items() if x.requires_grad] if torch.is_grad_enabled() else []

    def arguments(self, rotation: Sequence[int] = ()) -> tuple[Any, ...]:
        """The arguments of an operator from ``given`` on, except the scale."""
        learned = self.learned
        assert self.call.layouts is not None
        return (
            [(x.detach() if x.requires_grad and not learned else x).contiguous() for x in self.tensors.values()],
            " ".join(self.tensors),
            " ".join(learned),
            Tiling(*self.call.layouts, self.call.visibility).flat(),
            KernelLayout(self.function, [self.lows.get(name, 0) for name in POSSIBLE], rotation).flat(),
        )


class _Repeatable(torch.autograd.Function):
    """Tensors that were computed from others, with a gradient that any number of backward passes may compute: what a
    context saves is freed after the first, its attributes are not."""

    @staticmethod
    def forward(ctx: Any, tensors: Sequence[Tensor], *others: Tensor) -> tuple[Tensor, ...]:
        ctx.tensors, ctx.others = tensors, others
        return tuple(x.detach() for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        is_again = torch.is_grad_enabled()
        return None, *torch.autograd.grad(
            ctx.tensors, ctx.others, gradients, retain_graph=True, create_graph=is_again, allow_unused=True
        )


def copies_read(call: Call) -> list[Tensor]:
    """The copies of parameters that the terms of a call read, if layers may share what is derived of them."""
    if call.store is None or not torch.is_grad_enabled() or not is_of_positions(call):
        return []
    return [x for x in read_by((*call.score_terms, *call.values)) if x.grad_fn is not None]


def deriving(is_shared: bool) -> AbstractContextManager[object]:
    """A context in which to derive tensors: no hook may take hold of what layers share, as that of a checkpoint, in
    which some of them run."""
    return compat.without_saved_tensors_hooks() if is_shared else nullcontext()


def repeatable(tensors: Sequence[Tensor], others: Iterable[Tensor]) -> list[Tensor] | None:
    """The same tensors for layers of any number of backward passes, each of which computes the gradient of the
    ``others``, which they were computed from, once for all layers. None if more than these were read."""
    learned = [x for x in tensors if x.requires_grad]
    ends = {_edge_of(x): x for x in others}
    read, is_all = _reached({_edge_of(x) for x in learned}, ends)
    before = {edge for node, _ in read for edge in node.next_functions}
    if not is_all or _reached(before, read)[0]:  # what another was computed from would get the gradient twice
        return None
    found = iter(_Repeatable.apply(learned, *(ends[edge] for edge in read)))  # type: ignore[no-untyped-call]
    return [next(found) if x.requires_grad else x for x in tensors]


Edge: TypeAlias = tuple[Any, int]  # of a graph of gradients: a node and which of its outputs


def _edge_of(x: Tensor) -> Edge:
    return x.grad_fn, x.output_nr


def _reached(edges: set[Edge], ends: Collection[Edge]) -> tuple[set[Edge], bool]:
    """The ends that gradients reach from these edges, none through another, and whether they reach nothing else."""
    found: set[Edge] = set()
    seen: set[Edge] = set()
    is_all = True
    while edges:
        edge = edges.pop()
        node, _ = edge
        if edge in ends:
            found.add(edge)
        elif node is not None and edge not in seen:
            seen.add(edge)
            is_all = is_all and len(node.next_functions) > 0  # else a leaf
            edges |= set(node.next_functions)
    return found, is_all


# -- blocks that count ------------------------------------------------------------------------------------------------


FEWEST_KEYS = 1024  # the minimum for which the check pays off


def seen_blocks(
    document: Tensor, of_key: Tensor, oldest: Tensor, newest: Tensor, key_order: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """The blocks of ``size`` queries and keys with some unmasked pair, and those with only unmasked pairs, (batch,
    query_blocks, key_blocks). Queries are in ``document`` and attend to orders from ``oldest`` to ``newest``."""
    (least, most), (first_oldest, last_oldest), (first_newest, last_newest) = (
        _facing(_ends_of_blocks(x, size), 2) for x in (document, oldest, newest)
    )
    (key_least, key_most), (key_earliest, key_latest) = (
        _facing(_ends_of_blocks(x, size), 1) for x in (of_key, key_order)
    )
    one, key_one = least == most, key_least == key_most
    padding = (one & (least == PADDING)) | (key_one & (key_least == PADDING))
    some = (least <= key_most) & (key_least <= most) & ~padding
    some = some & (key_earliest <= last_newest) & (key_latest >= first_oldest)
    every = some & one & key_one & (least == key_least) & (key_latest <= first_newest) & (key_earliest >= last_oldest)
    return some, every


def orders_seen(order: Tensor, seen: Visibility) -> tuple[Tensor, Tensor]:
    """The lowest and highest order that each query attends to; without a limit, numbers beyond all orders."""
    beyond = torch.iinfo(order.dtype).max // 2
    left, right = (beyond if limit is None else limit for limit in (seen.left, seen.furthest))
    return order - left, order + right


def computed_share(call: Call, size: int = 64) -> float:
    """The fraction of unmasked blocks that are not skipped. Reads tensor values."""
    counted = counted_blocks(call, size)
    if counted is None:
        return 1.0
    query, key = call.query_positions, call.key_positions
    some, _ = seen_blocks(query.document, key.document, *orders_seen(query.order, call.visibility), key.order, size)
    some = some[:, None].expand_as(counted)
    return float((some & counted).sum() / some.sum().clamp(min=1))


@no_grad
def counted_blocks(call: Call, size: int) -> Bool[Tensor, "batch heads query_blocks key_blocks"] | None:
    """The blocks of ``size`` queries and keys that must be computed; None for all. Does not synchronize a device."""
    if torch.compiler.is_compiling() or call.skip_below <= 0 or call.key.size(2) < FEWEST_KEYS:
        return None  # a dynamic graph must not depend on the length
    own, reach = own_keys(call), _reach(call)
    if own is None or reach is None:
        return None
    near = cached(call.store, ("near", size), call.query.device, lambda: _near(call, size, reach))
    block, heads = replace(call, query=call.query.to(call.dtype)), call.query.size(1)
    groups = heads // call.key.size(1)
    query = block.query
    for term in call.score_terms:
        if isinstance(term, AddedVector) and term.of_tokens is not None:
            query = query + added_to_query(term, term.of_tokens, block).to(query.dtype)
    mine = block.key[:, :, None, own : own + query.size(2)]
    score = (query.unflatten(1, (-1, groups)) * mine).sum(-1).flatten(1, 2) * call.scale
    longest = torch.linalg.vector_norm(block.key, dim=-1, dtype=call.dtype)
    longest = _blocks(longest, size).repeat_interleave(groups, 1)
    most = _blocks(query.norm(dim=-1) * call.scale, size)[..., None] * longest[..., None, :]
    if near.bias is not None and near.own is not None:
        most, score = most + near.bias, score + near.own
    for term, vectors in zip(call.score_terms, near.vectors, strict=True):
        if isinstance(term, RelativeDot):
            at_most = meets(term, block).norm(dim=-1) * vectors
            if term.side == "key":
                most, score = most + _blocks(at_most, size)[..., None, :], score - at_most.amax(-1, keepdim=True)
            else:
                most, score = most + _blocks(at_most, size)[..., None], score - at_most
        elif isinstance(term, CumulativeBias):
            here, there = (block.feature(term.feature, side).expand(-1, heads, -1) for side in ("query", "key"))
            most = most + (_blocks(here, size)[..., None] + _blocks(-there, size)[..., None, :]).to(most.dtype)
            score = score + (here - there[..., own : own + query.size(2)]).to(score.dtype)
    least = -_blocks(-score, size)[..., None]
    return ~(most < least + skip_threshold(call.skip_below, call.key.size(2)))  # NaN is computed


class _Near(NamedTuple):
    """What no query or key is part of: the highest bias of every block (rows, heads, query_blocks, key_blocks) and that
    of a query's own key (heads, 1), or None; and for each `RelativeDot` the norm of its longest vector (heads or 1,
    1)."""

    bias: Tensor | None
    own: Tensor | None
    vectors: tuple[Tensor | None, ...]


def _near(call: Call, size: int, reach: tuple[int, int]) -> _Near:
    heads = call.query.size(1)
    r = torch.arange(reach[0], reach[1] + 1, device=call.query.device)
    vectors = tuple(
        line_of(p.at, p.distance, call, r).norm(dim=-1).amax(-1)[:, None] if isinstance(p, RelativeDot) else None
        for p in call.score_terms
    )
    lines = [line_of(p.at, p.distance, call, r).expand(heads, -1) for p in call.score_terms if isinstance(p, Bias)]
    if not lines:
        return _Near(None, None, vectors)
    line = reduce(torch.add, lines)
    first, last = (_ends_of_blocks(p.coords, size) for p in (call.query_positions, call.key_positions))
    low, high = last[0][:, None] - first[1][..., None], last[1][:, None] - first[0][..., None]
    # For every entry the maximum from there on, over the range of distances of two contiguous blocks.
    window = 2 * size - 1
    greatest = F.max_pool1d(F.pad(line, (0, window - 1), value=-torch.inf), window, 1)
    bias = greatest[:, (low - reach[0]).clamp(0, len(r) - 1)].movedim(0, 1)
    return _Near(bias.masked_fill((high - low >= window)[:, None], torch.inf), line[:, -reach[0], None], vectors)


def own_keys(call: Call) -> int | None:
    """The index difference of a query's own key, if every query is known to attend to its own and all terms have known
    upper bounds; else None."""
    fades = any(term.fades for term in call.score_terms)
    known = all(
        isinstance(p, CumulativeBias)
        or (isinstance(p, (Bias, RelativeDot)) and not p.masks and not p.is_planar)
        or (isinstance(p, AddedVector) and p.key is None)
        for p in call.score_terms
    )
    seen = call.visibility
    if not fades or not known or call.scale <= 0 or call.attn_mask is not None or (seen.furthest or 0) < 0:
        return None
    query, key = call.query_positions, call.key_positions
    spans = [span for row in query.layout.rows or () for span in row]
    is_known = len(spans) > 0 and all(span.coords is not None for span in spans)
    if query is key or (is_known and query.layout == key.layout):
        return 0
    runs = query.layout.run, key.layout.run
    if runs[0] is None or runs[1] is None or runs[0].document != runs[1].document or runs[0].line is None:
        return None
    own = runs[0].order - runs[1].order
    is_same = runs[1].line is not None and runs[1].line + own == runs[0].line
    return own if is_same and 0 <= own <= call.key.size(2) - call.query.size(2) else None


def _reach(call: Call) -> tuple[int, int] | None:
    """The lowest and highest distance of two tokens, if known and few enough for a table; else None."""
    bounds = distance_bounds(call.query_positions.layout, call.key_positions.layout)
    if bounds is None or call.key_positions.coords.dtype != torch.int64:
        return None
    low, high = map(int, bounds)
    tokens = call.query.size(2) + call.key.size(2)
    return (low, high) if low <= 0 <= high and high - low < ENTRIES_PER_TOKEN * tokens else None


def _blocks(x: Tensor, size: int) -> Tensor:
    """The maximum of every block of (..., tokens); the last block may be shorter."""
    return F.pad(x, (0, -x.size(-1) % size), value=-torch.inf).unflatten(-1, (-1, size)).amax(-1)


def _facing(ends: tuple[Tensor, Tensor], axis: int) -> tuple[Tensor, Tensor]:
    """Both with an extra dimension, to broadcast with those of the other side."""
    return ends[0].unsqueeze(axis), ends[1].unsqueeze(axis)


def _ends_of_blocks(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    return torch.aminmax(torch.cat((x, x[:, -1:].expand(-1, -x.size(1) % size)), 1).unflatten(1, (-1, size)), dim=-1)


# -- operators --------------------------------------------------------------------------------------------------------


ONCE = (
    "attention's fused kernels have only a first derivative: pass backend='reference' for a second one "
    "(create_graph=True)"
)


def refuse(ctx: Any, *_: Any) -> Any:
    """The derivative of a derivative: ValueError."""
    raise ValueError(ONCE)


class _Once(torch.autograd.Function):
    """A gradient that has no derivative."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    backward = staticmethod(refuse)


def derived_once(out: Tensor) -> Tensor:
    """The output of PyTorch's attention. A second derivative through its fused kernel raises ValueError."""
    node = out.grad_fn if compat.is_eager() else None
    if node is not None and "ScaledDotProduct" in node.name():
        node.register_hook(
            lambda grads, _: tuple(_Once.apply(x) if x is not None and x.requires_grad else x for x in grads)  # type: ignore[no-untyped-call]
        )
    return out


@dataclass
class Rows:
    """The output and log-sum-exp of whole rows of scores, in place of those of a part of their keys."""

    out: Tensor
    lse: Tensor
    is_taken: bool = False

    def take(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Both, once, the output in a dtype; copies, since autograd takes them for results of the operator."""
        assert not self.is_taken, "using_global_lse must hold one call of an operator"
        self.is_taken = True
        return self.out.to(like.dtype, copy=True), self.lse.clone()


_ROWS: ContextVar[Rows | None] = ContextVar("rows", default=None)


@contextmanager
def using_global_lse(out: Tensor, lse: Tensor) -> Iterator[Rows]:
    """A context for one call of attention to a part of the keys, whose gradients are wanted: those of the part that
    follow from gradients of whole rows, whose output and log-sum-exp are given. If the operators here compute the call,
    `Rows.is_taken` is set, its forward pass is left out, and it returns what was given."""
    rows = Rows(out.contiguous(), lse.contiguous())
    token = _ROWS.set(rows)
    try:
        yield rows
    finally:
        _ROWS.reset(token)


def custom_operator(name: str, forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Registers two functions as the custom operators ``name`` and ``name_backward``, the second as the derivative of
    the first, and returns a function that does the same as the first operator.

    ``forward`` takes query, key, value, `KernelOperands.arguments` and the scale, and returns output and log-sum-exp.
    ``backward`` takes the gradients of both, query, key, value, output, log-sum-exp and the rest, and returns the
    gradients of query, key and value, and of learned tensors.

    The returned function calls ``forward`` directly unless something compiles, traces, transforms or profiles the
    operator, or a tensor is not plain memory (`compat.can_bypass_dispatch`): PyTorch's dispatch of a custom operator
    takes as long as attention over 64 tokens (docs/decisions/006-plan-per-pass.md). ``prepared`` may have a ``forward``
    and a ``backward`` that do the same as these two for the same arguments, faster, and ``has_plain_memory`` if the
    tensors that are given with it have."""
    op = torch.library.custom_op(name, forward, mutates_args=())
    op_backward = torch.library.custom_op(f"{name}_backward", backward, mutates_args=())

    @op.register_fake
    def fake(query, key, value, *_):  # type: ignore[no-untyped-def]
        lse = query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
        return value.new_empty((*query.shape[:3], value.size(-1))), lse

    @op_backward.register_fake
    def fake_backward(dout, dlse, query, key, value, out, lse, given, names, learned, *_):  # type: ignore[no-untyped-def]
        of = dict(zip(names.split(), given, strict=True))
        tensors = (query, key, value, *(of[name] for name in learned.split()))
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]

    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
        query, key, value, given, *ctx.rest = inputs
        ctx.save_for_backward(query, key, value, *output, *given)
        ctx.set_materialize_grads(False)

    def grads(
        ctx: Any, dout: Tensor | None, dlse: Tensor | None, backward: Callable[..., Any] = backward
    ) -> list[Tensor | None]:
        saved = ctx.saved_tensors  # once, since checkpointing computes them only once
        query, key, value, out, lse, *given = saved
        if dout is None and dlse is None:
            return [None] * (3 + len(given))
        dout = torch.zeros_like(out) if dout is None else dout.contiguous()
        tensors = [x for x in (dout, dlse, *saved) if x is not None]
        run = backward if not torch.is_grad_enabled() and compat.can_bypass_dispatch(tensors) else op_backward
        found = run(dout, dlse, query, key, value, out, lse, given, *ctx.rest)
        names, learned = ctx.rest[0].split(), ctx.rest[1].split()
        of = dict(zip(learned, found[3:], strict=True))
        return [*found[:3], *map(of.get, names)]

    def op_grads(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
        found = grads(ctx, dout, dlse)
        return *found[:3], found[3:], *(None,) * len(ctx.rest)

    op.register_autograd(op_grads, setup_context=save)
    op_backward.register_autograd(refuse)

    def direct_forward(
        ctx: Any, prepared: Any, rest: Sequence[Any], query: Tensor, key: Tensor, value: Tensor, *given: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows, ctx.backward_of = _ROWS.get(), backward if prepared is None else prepared.backward
        if rows is None:
            output = (forward if prepared is None else prepared.forward)(query, key, value, given, *rest)
        else:
            output = rows.take(value)
        save(ctx, (query, key, value, given, *rest), output)
        return output

    def direct_backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
        return None, None, *grads(ctx, dout, dlse, ctx.backward_of)

    # Named after the operator, as errors and anomaly mode name the node.
    methods = {"forward": staticmethod(direct_forward), "backward": staticmethod(direct_backward)}
    direct: Any = type(name.replace("::", "_"), (torch.autograd.Function,), methods)

    def run(
        query: Tensor, key: Tensor, value: Tensor, given: Sequence[Tensor], *rest: Any, prepared: Any = None
    ) -> Any:
        is_known = prepared is not None and prepared.has_plain_memory  # of what is given with it
        if not compat.can_bypass_dispatch((query, key, value) if is_known else (query, key, value, *given)):
            return op(query, key, value, given, *rest)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value, *given)):
            return direct.apply(prepared, rest, query, key, value, *given)
        return (forward if prepared is None else prepared.forward)(query, key, value, given, *rest)

    return run
