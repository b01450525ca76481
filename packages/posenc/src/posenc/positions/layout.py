"""`Layout`: what is known of positions without reading their values.

A layout lists the *spans* of every row of a batch: contiguous tokens of one document whose order and coordinates are
arithmetic progressions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, overload

import torch
from jaxtyping import Int
from torch import Tensor

from posenc import compat
from posenc.arguments import shown, whole

PADDING = -1  # the document of padding

# A layout with more spans than this fraction of its tokens would hardly be smaller than the values: it is dropped.
SPANS_PER_TOKEN = 1 / 8
MIN_SPANS_ALLOWED = 16
CHUNKS = 2**32 + 7_842_243  # above the number of chunks of a document; also spreads values that overflow int64
EXACT = 2**52  # up to here float64 represents integers and their differences exactly


@dataclass(frozen=True)
class Span:
    """Tokens ``start`` to ``stop`` of a row, all of one document.

    Token t has order ``order + order_step (t - start)``, the step 1 or 0, and coordinate ``coords[a] + steps[a] (t -
    start)`` along axis a. ``coords`` is None if the coordinates are not known to be an arithmetic progression.
    """

    start: int
    stop: int
    document: int
    order: int
    order_step: int = 1
    coords: tuple[int | float, ...] | None = None
    steps: tuple[int | float, ...] = (1,)

    def cut(self, start: int, stop: int) -> Span:
        """The part of the span between ``start`` and ``stop``, with indices relative to ``start``."""
        first, last = max(self.start, start), min(self.stop, stop)
        by = first - self.start
        coords = (
            None if self.coords is None else tuple(c + s * by for c, s in zip(self.coords, self.steps, strict=True))
        )
        return replace(
            self, start=first - start, stop=last - start, order=self.order + self.order_step * by, coords=coords
        )

    @property
    def line(self) -> int | None:
        """The first token's coordinate, if coordinates are integers of one axis that increase by one; else None."""
        if self.coords is None or self.steps != (1,):
            return None
        start = self.coords[0]
        if isinstance(start, float):
            last = start + self.stop - self.start
            return int(start) if start.is_integer() and max(abs(start), abs(last)) <= EXACT else None
        return start

    def moved(self, by: int) -> Span:
        """The same span, ``by`` tokens later in the row."""
        return replace(self, start=self.start + by, stop=self.stop + by)

    def goes_on(self, other: Span) -> bool:
        """Whether ``other`` continues this span in index, document, order and coordinates."""
        end = self.cut(self.stop, self.stop)
        # Number by number, since a compiled graph does not compare dataclasses of symbolic numbers.
        return (
            (self.stop, self.document, end.order) == (other.start, other.document, other.order)
            and (self.order_step, self.steps, end.coords is None)
            == (other.order_step, other.steps, other.coords is None)
            and all(a == b for a, b in zip(end.coords or (), other.coords or (), strict=True))
        )


@dataclass(frozen=True)
class Layout:
    """What is known of the positions of rows of ``tokens`` tokens.

    ``rows`` are the spans of each row, or a single row if all are the same; tokens in no span are padding. None:
    unknown. ``bounds``: every token's coordinates are within [lowest, highest]. None: unknown.
    """

    tokens: int
    rows: tuple[tuple[Span, ...], ...] | None = None
    bounds: tuple[int | float, int | float] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the coordinates of every token are known."""
        return self.rows is not None and all(span.coords is not None for row in self.rows for span in row)

    @property
    def run(self) -> Span | None:
        """The single span that covers every row, if there is one and its order increases; else None."""
        if self.rows is None or len(self.rows) != 1 or len(self.rows[0]) != 1:
            return None
        span = self.rows[0][0]
        return span if span.stop - span.start == self.tokens and span.order_step == 1 else None

    @property
    def start(self) -> tuple[int, int] | None:
        """Document and order of the first token, if every row is one document whose order increases by one, such as a
        text or patches in raster order; else None."""
        if self.run is not None:
            return self.run.document, self.run.order
        if self.rows is None or len(self.rows) != 1 or not self.rows[0]:
            return None
        first, place = self.rows[0][0], 0
        for span in self.rows[0]:
            goes_on = (span.document, span.order_step, span.order) == (first.document, 1, first.order + place)
            if not goes_on or span.start != place:
                return None
            place = span.stop
        return (first.document, first.order) if place == self.tokens else None

    def __getitem__(self, index: slice) -> Layout:
        """The layout of tokens ``start`` to ``stop``, which must be ints within the row."""
        start, stop = index.start, index.stop
        rows: tuple[tuple[Span, ...], ...] | None = None
        run = self.run
        if run is not None:  # without reading its length, which may be symbolic
            rows = ((run.cut(start, stop),),)
        elif self.rows is not None:
            rows = tuple(
                tuple(s.cut(start, stop) for s in row if s.start < stop and s.stop > start) for row in self.rows
            )
        bounds = self.bounds if run is not None and torch.compiler.is_compiling() else _bounds(rows, self.bounds)
        return Layout(stop - start, rows, bounds)

    def of_row(self, row: int) -> tuple[Span, ...]:
        """The spans of a row."""
        assert self.rows is not None
        return self.rows[0 if len(self.rows) == 1 else row]

    def shifted(self, offset: int, factor: int = 1) -> Layout:
        """The layout after every integer coordinate c is replaced by factor c + offset."""
        rows = None
        if self.rows is not None:
            rows = tuple(tuple(_shifted(span, offset, factor) for span in row) for row in self.rows)
        bounds = None
        if self.bounds is not None:
            ends = [factor * end + offset for end in self.bounds]
            bounds = (min(ends), max(ends))
        return Layout(self.tokens, rows, bounds)

    def in_chunks(self, size: int, change: Callable[[Span, int], Span]) -> Layout:
        """The layout with spans cut at chunks of ``size`` coordinates, each replaced by ``change(span, number of its
        chunk)``. Its rows are unknown if coordinates are not known to increase by one."""
        if self.rows is None or any(span.line is None for row in self.rows for span in row):
            return Layout(self.tokens, None, self.bounds)
        rows = []
        for row in self.rows:
            spans = []
            for span in row:
                at, line = span.start, span.line
                assert line is not None
                while at < span.stop:
                    number = (line + at - span.start) // size
                    end = min(span.stop, span.start + (number + 1) * size - line)
                    spans.append(change(span.cut(at, end).moved(at), number))
                    at = end
            rows.append(tuple(spans))
        return Layout(self.tokens, tuple(rows), self.bounds)

    def by_order(self) -> Layout:
        """The layout without coordinates, with spans joined by document and order, such as the lines of an image."""
        if self.rows is None:
            return Layout(self.tokens, None, self.bounds)
        rows = []
        for row in self.rows:
            joined: list[tuple[int, int, int, int, int]] = []
            for s in row:
                start, stop, document, order, step = joined[-1] if joined else (0, -1, 0, 0, 0)
                goes_on = (stop, document, step) == (s.start, s.document, s.order_step)
                if goes_on and s.order == order + step * (s.start - start):
                    joined[-1] = start, s.stop, document, order, step
                else:
                    joined.append((s.start, s.stop, s.document, s.order, s.order_step))
            rows.append(tuple(Span(*numbers) for numbers in joined))
        return Layout(self.tokens, tuple(rows), self.bounds)

    def without_coords(self) -> Layout:
        """The layout without coordinates."""
        rows = None if self.rows is None else tuple(tuple(replace(s, coords=None) for s in row) for row in self.rows)
        return Layout(self.tokens, rows)


@overload
def document_of_chunk(document: Tensor, number: Tensor) -> Tensor: ...
@overload
def document_of_chunk(document: int, number: int) -> int: ...
def document_of_chunk(document: Any, number: Any) -> Any:
    """The new document number of a chunk of a document; padding stays padding.

    Distinct for documents from 0 to 2^31 with chunks from -2^31 to 2^31. If chunks are split into chunks again, the
    product overflows int64 (ints wrap in the same way), and numbers are distinct for documents and chunks within 2^20
    of zero: every nonzero (a, b, c) with a CHUNKS^2 + b CHUNKS + c = 0 modulo 2^64 has a component of at least 2^21.
    """
    made = document * CHUNKS + CHUNKS // 2 + number
    if isinstance(made, Tensor):
        return made.masked_fill(document == PADDING, PADDING)
    return (made + 2**63) % 2**64 - 2**63


def _bounds(
    rows: tuple[tuple[Span, ...], ...] | None, within: tuple[int | float, int | float] | None
) -> tuple[int | float, int | float] | None:
    """The lowest and highest coordinate of these spans, or ``within`` if a coordinate is unknown."""
    spans = [span for row in rows or () for span in row]
    if not spans or any(span.coords is None for span in spans):
        return within
    last = (span.cut(span.stop - 1, span.stop) for span in spans)
    ends = [coord for span in (*spans, *last) for coord in span.coords or ()]
    return min(ends), max(ends)


def _shifted(span: Span, offset: int, factor: int) -> Span:
    coords = None if span.coords is None else tuple(factor * c + offset for c in span.coords)
    return replace(span, coords=coords, steps=tuple(factor * s for s in span.steps))


def distance_bounds(query: Layout, key: Layout) -> tuple[int | float, int | float] | None:
    """The lowest and highest difference of two coordinates, key minus query; None: unknown."""
    if query.bounds is None or key.bounds is None:
        return None
    return key.bounds[0] - query.bounds[1], key.bounds[1] - query.bounds[0]


def join(layouts: Sequence[Layout], rows: int) -> Layout:
    """The layout of concatenated positions."""
    tokens = sum(layout.tokens for layout in layouts)
    ends = [layout.bounds for layout in layouts if layout.tokens]
    stated = [end for end in ends if end is not None]
    bounds = None
    if stated and len(stated) == len(ends):
        bounds = (min(low for low, _ in stated), max(high for _, high in stated))
    if any(layout.rows is None for layout in layouts):
        return Layout(tokens, None, bounds)
    several = rows if any(len(layout.rows or ()) > 1 for layout in layouts) else 1
    joined = []
    for row in range(several):
        spans: list[Span] = []
        at = 0
        for layout in layouts:
            for span in layout.of_row(row) if layout.tokens else ():  # a run without tokens has a span
                new = span.moved(at)
                if spans and spans[-1].goes_on(new):
                    spans[-1] = replace(spans[-1], stop=new.stop)
                else:
                    spans.append(new)
            at += layout.tokens
        joined.append(tuple(spans))
    return Layout(tokens, tuple(joined), bounds)


def overlap(layout: Layout) -> int | None:
    """A document with two tokens of the same order in different spans of a row, or None."""
    for row in layout.rows or ():
        if len(row) < 2:
            continue
        ends = sorted((s.document, s.order, s.order + s.order_step * (s.stop - s.start - 1)) for s in row)
        for (document, _, last), (other, first, _) in itertools.pairwise(ends):
            if document == other and first <= last:
                return document
    return None


def skipped(before: Layout, after: Layout) -> tuple[int, int] | None:
    """The order that the next token of a document would have, and that of the first which comes ``after``, where
    neither this order nor a coordinate goes on from ``before``; None if all do, as far as is known."""
    for row in range(max(len(before.rows or ()), len(after.rows or ()))):
        last: dict[int, Span] = {}
        highest: Any = 0
        for s in before.of_row(row) if before.rows else ():
            if s.document not in last or _last_order(s) >= _last_order(last[s.document]):
                last[s.document] = s
            highest = compat.sym_max(highest, _last_order(s))
        for span in after.of_row(row) if after.rows else ():
            known = last.pop(span.document, None)
            if known is None or span.order <= _last_order(known) + 1 or span.order == highest + 1:
                continue  # earlier tokens may come later
            end = known.cut(known.stop, known.stop)
            if None not in (end.coords, span.coords) and end.coords != span.coords:
                return _last_order(known) + 1, span.order
    return None


def _last_order(span: Span) -> int:
    return span.order + span.order_step * (span.stop - span.start - 1)


# -- reading ----------------------------------------------------------------------------------------------------------


def read(coords: Tensor, order: Tensor, document: Tensor) -> Layout:
    """The layout of these values. Reads them, which synchronizes a GPU.

    Spans are as long as order and document allow. Coordinates that are irregular nearly everywhere are left unknown.
    """
    tokens = order.size(1)
    coords = coords if coords.dim() == 3 else coords[..., None]
    coords, order, document = (_distinct_row(x) for x in (coords, order, document))
    rows = max(x.size(0) for x in (coords, order, document))
    if tokens == 0 or rows == 0:
        return Layout(tokens, ((),))
    coords, order, document = (x.expand(rows, *x.shape[1:]) for x in (coords, order, document))
    inside = coords[document != PADDING]
    bounds = (inside.min().item(), inside.max().item()) if inside.numel() else None
    found = _changes(coords, order, document)
    if found is None:
        return Layout(tokens, None, bounds)
    ends, changes, is_even = found
    every = [
        _spans(coords[row], order[row], document[row], starts, is_even)
        for row, starts in enumerate(_starts(ends, changes))
    ]
    same = all(spans == every[0] for spans in every)
    return Layout(tokens, tuple(every[:1] if same else every), bounds)


def _changes(coords: Tensor, order: Tensor, document: Tensor) -> tuple[Tensor, Tensor, bool] | None:
    """Two masks of neighbouring tokens: where a span must end, and where anything changes; and whether coordinates are
    among it, which are left out where they change nearly everywhere. None if there are too many even so."""
    rows, tokens = order.shape
    seen = document != PADDING
    padding = ~(seen[:, 1:] | seen[:, :-1])
    step, pace = order.diff(dim=1), coords.diff(dim=1)
    ends = (document.diff(dim=1) != 0) | (step < 0) | (step > 1)
    uneven = [_changed(step[..., None]), _changed(pace)]
    max_changes = 2 * max(MIN_SPANS_ALLOWED, int(tokens * SPANS_PER_TOKEN)) * rows
    for is_even in (True, False):
        changes = (ends | uneven[0] | uneven[1] if is_even else ends | uneven[0]) & ~padding
        if int(changes.sum()) <= max_changes:
            return ends, changes, is_even
    return None


def _changed(steps: Tensor) -> Tensor:
    return torch.nn.functional.pad((steps[:, 1:] != steps[:, :-1]).any(-1), (1, 0))[:, : steps.size(1)]


def _starts(ends: Tensor, changes: Tensor) -> list[list[int]]:
    starts: list[list[int]] = [[0] for _ in range(len(changes))]
    places = changes.nonzero()
    for (row, at), is_end in zip(places.tolist(), ends[places[:, 0], places[:, 1]].tolist(), strict=True):
        if is_end or starts[row][-1] != at:  # a new span may have any step
            starts[row].append(at + 1)
    return starts


def _spans(coords: Tensor, order: Tensor, document: Tensor, starts: list[int], is_even: bool) -> tuple[Span, ...]:
    """The spans of a row, given their first tokens; padding is none."""
    tokens = len(order)
    first = torch.tensor(starts, device=order.device)
    second = (first + 1).clamp(max=tokens - 1)
    documents, orders, next_orders = document[first].tolist(), order[first].tolist(), order[second].tolist()
    here, after = coords[first].tolist(), coords[second].tolist()
    spans = []
    for n, (start, stop) in enumerate(zip(starts, [*starts[1:], tokens], strict=True)):
        if documents[n] == PADDING:
            continue
        order_step, steps = 1, (1,) * len(here[n])
        if stop - start > 1:
            order_step = next_orders[n] - orders[n]
            steps = tuple(b - a for a, b in zip(here[n], after[n], strict=True)) if is_even else steps
        spans.append(Span(start, stop, documents[n], orders[n], order_step, tuple(here[n]) if is_even else None, steps))
    return tuple(spans)


def _distinct_row(x: Tensor) -> Tensor:
    """A single row if all rows are equal."""
    if x.size(0) > 1 and (x.stride(0) == 0 or bool((x[1:] == x[:1]).all())):
        return x[:1]
    return x


# -- as ints, for arguments of custom operators -----------------------------------------------------------------------


def flat(layout: Layout) -> list[int]:
    """The layout as ints. Coordinates are kept only if they are integers of one axis that increase by one."""
    assert layout.rows is not None
    numbers: list[Any] = [layout.tokens, len(layout.rows)]
    for row in layout.rows:
        numbers.append(len(row))
        for s in row:
            line = s.line
            numbers += [s.start, s.stop, s.document, s.order, s.order_step, int(line is not None), line or 0]
    return numbers


def unflat(take: Iterator[int]) -> Layout:
    """The inverse of `flat`, from numbers of which others may follow."""
    tokens, rows = next(take), []
    for _ in range(next(take)):
        spans = []
        for _ in range(next(take)):
            start, stop, document, order, step, even, coord = (next(take) for _ in range(7))
            spans.append(Span(start, stop, document, order, step, (coord,) if even else None))
        rows.append(tuple(spans))
    return Layout(tokens, tuple(rows))


# -- tokens divided among processes -----------------------------------------------------------------------------------


Order: TypeAlias = Literal["contiguous", "zigzag", "striped", "documents"] | Sequence[Int[Tensor, " held"]]
"""How tokens are divided among ``world`` processes:

- ``"contiguous"``: each process holds one run of tokens.
- ``"zigzag"``: the text is cut into 2 world runs, and process r holds runs r and 2 world - 1 - r, so that under a
  causal mask all have the same number of pairs.
- ``"striped"``: process r holds tokens r, r + world, r + 2 world, ...
- ``"documents"``: whole documents, so that attention needs no communication; one with more than a process's share of
  all pairs is divided in zigzag.
- a sequence of ``world`` index tensors, in which every token is once.
"""

ORDERS = ("contiguous", "zigzag", "striped", "documents")


def indices(layout: Layout, world: int, order: Any) -> tuple[Tensor, ...]:
    """The indices of the tokens of each process, by an `Order`. They may be uneven, or empty. Raises ValueError for
    another order, and for indices in which a token is missing or twice."""
    tokens = torch.arange(layout.tokens)
    if isinstance(order, str):
        if order == "contiguous":
            return tokens.tensor_split(world)
        if order == "zigzag":
            return _zigzag(tokens, world)
        if order == "striped":
            return tuple(tokens[rank::world] for rank in range(world))
        if order == "documents":
            return _by_document(layout, world)
    if isinstance(order, str) or not isinstance(order, Sequence):
        names = ", ".join(map(repr, ORDERS))
        raise ValueError(f"order must be one of {names}, or an index tensor for each process, got {shown(order)}")
    if len(order) != world:
        raise ValueError(f"order must have an index tensor for each of {world} processes, got {len(order)}")
    for index in order:
        if not isinstance(index, Tensor) or index.dim() != 1 or index.dtype != torch.int64:
            raise ValueError(f"order must have 1-D int64 tensors of token indices, got {shown(index)}")
    held = torch.cat([index.cpu() for index in order])
    if not torch.equal(held.sort().values, tokens):
        raise ValueError(f"order must have each of the {layout.tokens} tokens once, got {_fault(held, layout.tokens)}")
    return tuple(index.cpu() for index in order)


def _zigzag(tokens: Tensor, world: int) -> tuple[Tensor, ...]:
    runs = tokens.tensor_split(2 * world)
    return tuple(torch.cat((runs[rank], runs[2 * world - 1 - rank])) for rank in range(world))


def _by_document(layout: Layout, world: int) -> tuple[Tensor, ...]:
    """Documents in falling length, each to the process that has the fewest pairs so far."""
    if layout.rows is None or len(layout.rows) != 1:
        raise ValueError(
            "order='documents' needs one row, or rows of the same documents, whose layout is known: pass positions on "
            "the CPU or positions.with_layout(), or another order"
        )
    of_document: dict[int, list[Tensor]] = {}
    for span in layout.rows[0]:
        of_document.setdefault(span.document, []).append(torch.arange(span.start, span.stop))
    texts = sorted((torch.cat(runs) for runs in of_document.values()), key=len, reverse=True)
    is_padding = torch.ones(layout.tokens, dtype=torch.bool)
    for text in texts:
        is_padding[text] = False
    share = sum(len(text) ** 2 for text in texts) / world
    held: list[list[Tensor]] = [[] for _ in range(world)]
    pairs = [0.0] * world
    for text in texts:
        if len(text) ** 2 > share:
            pieces = list(enumerate(_zigzag(text, world)))
        else:
            pieces = [(min(range(world), key=pairs.__getitem__), text)]
        for rank, piece in pieces:
            held[rank].append(piece)
            pairs[rank] += len(text) * len(piece)
    held[-1].append(is_padding.nonzero()[:, 0])
    return tuple(torch.cat(each).sort().values if each else torch.arange(0) for each in held)


def _fault(held: Tensor, tokens: int) -> str:
    outside = held[(held < 0) | (held >= tokens)]
    if len(outside):
        return f"index {int(outside[0])}"
    counts = torch.bincount(held, minlength=tokens)
    token = int((counts != 1).nonzero()[0])
    return f"token {token} {int(counts[token])} times"


def place_of(of: Any) -> tuple[int, int]:
    """The rank and the number of processes that ``of`` names: a DeviceMesh of one axis, or (rank, world)."""
    if hasattr(of, "get_local_rank"):
        if of.ndim != 1:
            raise ValueError(f"of must be a mesh of one axis, got one of {of.ndim}: pass mesh['name of an axis']")
        return of.get_local_rank(), of.size()
    if not isinstance(of, tuple) or len(of) != 2:
        raise ValueError(f"of must be a DeviceMesh of one axis, or (rank, world), got {shown(of)}")
    world = whole("world", of[1])
    return whole("rank", of[0], 0, world - 1), world
