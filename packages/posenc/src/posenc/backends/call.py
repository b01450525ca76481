"""A checked call of attention, what a backend is, and tokens that take no part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from posenc import compat
from posenc.backends.cache import cached
from posenc.encoding.terms import SKIP_BELOW, ScoreTerm, Term, Value
from posenc.lowering.distances import Block, check, check_heads
from posenc.positions.layout import Layout
from posenc.positions.positions import PADDING, Positions
from posenc.positions.tiles import Visibility, same_run, sees_all, tiles, visible
from posenc.rotation.phases import PairRotation, in_double

# Below this many queries the simple path is faster (measured on a CPU).
FEW_QUERIES = 16


@dataclass(frozen=True, eq=False)
class RotatedBand:
    """A band's queries and keys, rotated for pairs at a distance of at least ``reach``, shaped like the call's own."""

    reach: int
    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch kv_heads keys head_dim"]


@dataclass(frozen=True, eq=False)
class DeferredRotation:
    """A rotation of queries and keys that is not applied yet, of the same channel pairs in the same layout."""

    query: PairRotation
    key: PairRotation

    def part(self, queries: slice, keys: slice) -> DeferredRotation:
        """The rotation of some of the queries and keys."""
        return DeferredRotation(self.query.of_tokens(queries), self.key.of_tokens(keys))


@dataclass(frozen=True, eq=False, kw_only=True)
class Call(Block):
    """All queries against all keys, with value, pair terms and mask.

    query (B, H, M, d), key (B, H_kv, N, d), value (B, H_kv, N, d_v), H a multiple of H_kv; all of one dtype and device.
    Queries and keys are already rotated, unless ``rotation`` is the one to apply: see `rotated`. ``bands`` are the
    queries and keys for distant pairs, by the distance of `apart`; only the reference backend runs a call with bands.
    """

    value: Float[Tensor, "batch kv_heads keys value_dim"]
    score_terms: tuple[ScoreTerm, ...]
    values: tuple[Value, ...]
    attn_mask: Tensor | None
    visibility: Visibility
    dropout_p: float
    return_lse: bool
    skip_below: float = SKIP_BELOW
    key_norms: Tensor | None = None
    bands: tuple[RotatedBand, ...] = ()
    chunk: int | None = None
    rotation: DeferredRotation | None = None
    is_clear: bool = False  # see `posenc.backends.call`
    store: dict[str, Any] | None = field(default=None, init=False)  # see `with_store`; a call made of this one has none

    def with_store(self, store: dict[str, Any] | None) -> Call:
        """Gives the call, just made, a place for what a backend derives of it that no number in its tensors changes:
        other calls of the same plan are given it too."""
        object.__setattr__(self, "store", store)
        return self

    def rotated(self) -> Call:
        """The same call with queries and keys rotated."""
        if self.rotation is None:
            return self
        return replace(self, query=self.rotation.query(self.query), key=self.rotation.key(self.key), rotation=None)

    def apart(self) -> Shaped[Tensor, "rows queries keys"]:
        """The distance of each pair that bands refer to: g(p_i) - g(p_j), in coordinates or in chunks of them."""
        x, y = (counted(positions, self.chunk) for positions in (self.query_positions, self.key_positions))
        return x[:, :, None] - y[:, None, :]

    def visible(self) -> Bool[Tensor, "#batch #heads #queries #keys"] | None:
        """The mask by positions and a bool ``attn_mask``; None for all True."""
        seen = visible(self.query_positions, self.key_positions, self.visibility)
        masks = [] if seen is None else [seen[:, None]]
        if self.bool_mask is not None:
            masks.append(self.bool_mask)
        return reduce(and_, masks) if masks else None

    def check(self) -> None:
        """ValueError or PositionError if the positions do not match a term."""
        for term in (*self.score_terms, *self.values):
            check(term.distance, self)
            if term.num_heads is not None:
                check_heads(term.num_heads, term.scheme, self)

    @property
    def bool_attn_mask(self) -> Tensor | None:
        """``attn_mask`` as bool: a float mask is True where it is not -inf."""
        return self.bool_mask if self.attn_mask is None or self.bool_mask is not None else self.attn_mask != -torch.inf

    @property
    def bool_mask(self) -> Tensor | None:
        """``attn_mask`` if it is bool, else None."""
        return self.attn_mask if self.attn_mask is not None and self.attn_mask.dtype == torch.bool else None

    @property
    def layouts(self) -> tuple[Layout, Layout] | None:
        """The layouts of queries and keys, if the spans of both are known; else None."""
        both = self.query_positions.layout, self.key_positions.layout
        if any(layout.rows is None for layout in both):
            return None
        if self.key_positions.coords.dim() == 3:  # tiles use only order and document
            return both[0].by_order(), both[1].by_order()
        return both

    @property
    def has_few_queries(self) -> bool:
        """Whether this is a decoding step. A dynamic graph must not be specialized by comparing lengths, but dynamo
        always specializes a size of 1."""
        queries = self.query.size(2)
        return queries == 1 or (not torch.compiler.is_compiling() and queries < FEW_QUERIES)

    def block(self) -> Block:
        """The same with queries and keys in the dtype of the scores. The call itself is for code that casts what it
        reads."""
        return replace(self, query=self.query.to(self.dtype), key=self.key.to(self.dtype))

    def part(self, queries: slice, keys: slice) -> Call:
        """The call of some of the queries and keys."""
        mask = self.attn_mask
        if mask is not None:
            mask = mask if mask.size(2) == 1 else mask[:, :, queries]
            mask = mask if mask.size(3) == 1 else mask[..., keys]
        return replace(
            self,
            **self._of_part(queries, keys),
            value=self.value[:, :, keys],
            score_terms=tuple(sliced(term, queries, keys) for term in self.score_terms),
            attn_mask=mask,
            key_norms=None if self.key_norms is None else self.key_norms[:, :, keys],
            bands=tuple(RotatedBand(b.reach, b.query[:, :, queries], b.key[:, :, keys]) for b in self.bands),
            rotation=None if self.rotation is None else self.rotation.part(queries, keys),
        )


def counted(positions: Positions, chunk: int | None) -> Shaped[Tensor, "rows tokens"]:
    """g(p) of every token: its coordinate, or the number of its chunk."""
    coords = positions.scalar("a rotation with bands")
    if chunk is None:
        return coords if coords.dtype == torch.int64 else in_double(coords)
    return coords.div(chunk, rounding_mode="floor").long()


def sliced(term: ScoreTerm, queries: slice, keys: slice) -> ScoreTerm:
    """A term for some of the queries and keys: slices tensors that it has for each of them."""
    part = {"query": queries, "key": keys}
    return term.mapped(lambda side, x: x if x.size(2) == 1 else x[:, :, part[side]])


Question: TypeAlias = Callable[[Call], str | None]
"""Why a backend cannot run a call; None if it can."""


Direct: TypeAlias = Callable[[Tensor, Tensor, Tensor], "tuple[Tensor, Tensor | None] | None"]
"""Output and log-sum-exp for the query, key and value of a call like the one it was made for; None if it cannot."""


class Unless(NamedTuple):
    """A condition on terms of a kind: they are supported unless ``holds(term, call)``, and ``reason`` says why not."""

    reason: str
    holds: Callable[[Any, Call], bool]


def never(reason: str) -> tuple[Unless]:
    """The conditions of a kind that is not supported."""
    return (Unless(reason, _always),)


def _always(term: Term, call: Call) -> bool:
    return True


@dataclass(frozen=True)
class Backend:
    """An implementation of attention.

    ``run(call)`` returns the output (B, H, M, d_v) in the query's dtype and, if ``return_lse``, the log-sum-exp
    (B, H, M) of every row of scores. Queries and keys are already rotated, unless it ``rotates`` them itself.

    ``direct_for(call)``, asked after the call, may return a function that does the same for the query, key and value of
    later calls that are otherwise the same, as long as the values in the call's `store` are.

    ``kinds`` are the kinds of terms that it supports, with their conditions; None: all that have a form. It is asked
    ``first`` before them, and ``last`` what needs terms of these kinds, or takes time.

    A query without any visible key gives zeros in the output and in every gradient, and a log-sum-exp of -inf. The
    log-sum-exp is differentiable like the output.
    """

    name: str
    run: Callable[[Call], tuple[Tensor, Tensor | None]]
    kinds: Mapping[type[Term], tuple[Unless, ...]] | None = None
    first: tuple[Question, ...] = ()
    last: tuple[Question, ...] = ()
    rotates: bool = False
    direct_for: Callable[[Call], Direct | None] = lambda call: None

    def __call__(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Runs the call, after rotating queries and keys unless the backend does."""
        return self.run(call if self.rotates else call.rotated())

    def refuses(self, call: Call) -> str | None:
        """Why it cannot run the call; None if it can. Does not read tensor values."""
        for question in (*self.first, self._refuses_term, *self.last):
            if (reason := question(call)) is not None:
                return reason
        return None

    def supports(self, kind: type[Term]) -> bool:
        """Whether it supports terms of the kind, where their conditions hold."""
        if self.kinds is None:
            return True
        return kind in self.kinds and not any(condition.holds is _always for condition in self.kinds[kind])

    def _refuses_term(self, call: Call) -> str | None:
        if self.kinds is None:
            return None
        for term in (*call.values, *call.score_terms):
            if type(term) not in self.kinds:
                return f"it does not support terms of the kind {type(term).__name__}"
            for reason, holds in self.kinds[type(term)]:
                if holds(term, call):
                    return reason
        return None


# -- tokens that take no part -----------------------------------------------------------------------------------------


Unseen = Bool[Tensor, "..."] | None
"""(rows, heads, tokens). True: the token takes no part. None: all are known to take part, or none is known not to."""


def cleared(call: Call) -> Call:
    """The call with zeros in place of the queries and keys that take no part, and of their values. Their gradients are
    zero too.

    Costs nothing where the layouts show that there are no such tokens. On the CPU they alone are read, and nothing is
    copied where they are finite and not huge, since then they have no effect. Elsewhere it costs a copy of all three.
    """
    if call.is_clear:
        return call
    asking, seen = _unseen(call)
    query = _with_zeros(call.query, asking)
    key, value = (_with_zeros(x, seen) for x in (call.key, call.value))
    if query is not call.query or key is not call.key or value is not call.value:
        call = replace(call, query=query, key=key, value=value).with_store(call.store)
    object.__setattr__(call, "is_clear", True)
    return call


def _with_zeros(x: Tensor, where: Unseen) -> Tensor:
    if where is None or x.numel() == 0:
        return x
    if where.size(1) not in (1, x.size(1)):  # heads of queries share keys
        where = where.unflatten(1, (x.size(1), -1)).all(2)
    if _is_readable(x) and _is_finite(x, where):
        return x
    return x.masked_fill(where[..., None], 0.0)


def _is_readable(x: Tensor) -> bool:
    """Whether x may be read without waiting for a device."""
    is_eager = x.device.type == "cpu" and not (torch.compiler.is_compiling() or compat.is_transformed())
    return is_eager and compat.has_numbers(x)


@torch.no_grad()
def _is_finite(x: Tensor, where: Tensor) -> bool:
    """Whether x is finite there, and so small that no score overflows: an infinite score and a mask of -inf are NaN."""
    is_shared = where.size(1) == 1  # by the heads, so that whole tokens are read
    found = x.transpose(1, 2)[where[:, 0].expand(x.size(0), x.size(2))] if is_shared else x[where.expand(x.shape[:3])]
    return bool(found.to(torch.promote_types(x.dtype, torch.float32)).square().sum().isfinite())


def in_sight(call: Call) -> Call:
    """For a few queries, the call without the keys before and after all that they attend to, such as those of a cache
    that a window has left behind."""
    if not call.has_few_queries or torch.compiler.is_compiling() or call.layouts is None:
        return call
    both, see = (call.query_positions, call.key_positions), call.visibility
    if sees_all(*both, see) or any(term.reads_rows for term in call.score_terms):
        return call
    found = list(tiles(*call.layouts, see, call.query.size(0)))
    first, last = min((t.first for t in found), default=0), max((t.last for t in found), default=0)
    if last - first in (0, call.key.size(2)):
        return call
    return call.part(slice(0, call.query.size(2)), slice(first, last))


@compat.no_grad
def _unseen(call: Call) -> tuple[Unseen, Unseen]:
    """Of the queries, and of the keys."""
    if call.attn_mask is None:
        both = call.query_positions, call.key_positions
        if same_run(*both) or sees_all(*both, call.visibility):
            return None, None
        is_known = call.layouts is not None and not torch.compiler.is_compiling()
        return cached(
            call.store, "unseen", call.query.device, lambda: _by_layouts(call) if is_known else _by_order(call)
        )
    seen = replace(call, attn_mask=call.bool_attn_mask).visible()
    assert seen is not None  # there is a mask
    return if_any(~seen.any(-1)), if_any(~seen.any(-2))


def if_any(unseen: Tensor | None) -> Tensor | None:
    """None if no token is unseen, as far as that may be asked without waiting for a device."""
    if unseen is None or not _is_readable(unseen):
        return unseen
    return unseen if bool(unseen.any()) else None


def _by_layouts(call: Call) -> tuple[Unseen, Unseen]:
    assert call.layouts is not None
    (query, key), see = call.layouts, call.visibility
    rows = max(len(layout.rows or ()) for layout in call.layouts)
    asking: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
    seen: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
    if query == key and (see.furthest or 0) >= 0:  # every token sees itself, except padding
        asking = seen = [[(span.start, span.stop) for span in row] for row in query.rows or ()]
    else:
        for tile in tiles(query, key, see, call.query.size(0)):
            row = 0 if rows == 1 else tile.row.start
            asking[row].append((tile.start, tile.stop))
            seen[row].append((tile.first, tile.last))
    sides = (asking, call.query.size(2)), (seen, call.key.size(2))
    if all(_covers(spans, tokens) for rows_of, tokens in sides for spans in rows_of):
        return None, None
    if call.query.device.type != "cpu":  # it would have to wait for a copy
        return _by_order(call)
    queries, keys = (_outside(spans, tokens) for spans, tokens in sides)
    return if_any(queries), if_any(keys)


def _covers(spans: list[tuple[int, int]], tokens: int) -> bool:
    end = 0
    for start, stop in sorted(spans):
        if start > end:
            return False
        end = max(end, stop)
    return end >= tokens


def _outside(rows: list[list[tuple[int, int]]], tokens: int) -> Tensor:
    unseen = torch.ones(len(rows), 1, tokens, dtype=torch.bool, device="cpu")
    for row, spans in enumerate(rows):
        for start, stop in spans:
            unseen[row, :, start:stop] = False
    return unseen


def _by_order(call: Call) -> tuple[Unseen, Unseen]:
    """From documents and orders, without a mask of pairs: padding, and keys of an order that no query attends to."""
    query, key, see = call.query_positions, call.key_positions, call.visibility
    is_padding, unseen = query.document == PADDING, key.document == PADDING
    ends = torch.iinfo(torch.int64)
    if see.furthest is not None:
        latest = query.order.masked_fill(is_padding, ends.min).amax(1, keepdim=True)
        unseen = unseen | (key.order > latest + see.furthest)
    if see.left is not None:
        first = query.order.masked_fill(is_padding, ends.max).amin(1, keepdim=True)
        unseen = unseen | (key.order < first - see.left)
    return if_any(is_padding[:, None]), if_any(unseen[:, None])
