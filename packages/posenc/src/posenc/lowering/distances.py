"""`Block`: queries and keys with their positions, to which terms are bound; their distances, and tables of those."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.arguments import one_or
from posenc.encoding.claims import coordinates
from posenc.encoding.context import NOTHING, Features, missing_feature
from posenc.encoding.terms import Distance
from posenc.positions.layout import Layout, Span, distance_bounds
from posenc.positions.positions import Positions
from posenc.positions.tiles import check_reach


@dataclass(frozen=True, eq=False)
class Block:
    """Queries and keys with their positions: those of a call, or the part that a backend is computing.

    ``query`` (B, H, m, d) and ``key`` (B, H or fewer, n, d) are already rotated. ``scale`` is the softmax scale.
    ``heads`` is the range of the scheme's heads; None: all.
    """

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch kv_heads keys head_dim"]
    query_positions: Positions
    key_positions: Positions
    scale: float
    heads: range | None = None
    query_features: Features = field(default_factory=lambda: NOTHING)
    key_features: Features = field(default_factory=lambda: NOTHING)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of scores: float32, or float64 for float64 inputs."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def part(self, queries: slice, keys: slice) -> Block:
        """A block of some of the queries and keys."""
        return replace(self, **self._of_part(queries, keys))

    def _of_part(self, queries: slice, keys: slice) -> dict[str, Any]:
        return {
            "query": self.query[:, :, queries],
            "key": self.key[:, :, keys],
            "query_positions": self.query_positions[queries],
            "key_positions": self.key_positions[keys],
            "query_features": {name: x[:, :, queries] for name, x in self.query_features.items()},
            "key_features": {name: x[:, :, keys] for name, x in self.key_features.items()},
        }

    def feature(self, name: str, side: str) -> Tensor:
        """A layer's feature of the queries or the keys, (batch, query heads, tokens, ...), in the scores' dtype.

        Raises ValueError if it is missing.
        """
        features, x = (self.query_features, self.query) if side == "query" else (self.key_features, self.key)
        if name not in features:
            raise missing_feature(name, side, features)
        feature = features[name]
        heads = self.query.size(1)
        batch = x.size(0)
        if feature.size(0) != batch or not one_or(feature.size(1), heads) or feature.size(2) != x.size(2):
            raise ValueError(
                f"feature {name!r} of the {side} must be ({batch}, 1 or {heads}, {x.size(2)}, ...), "
                f"got {tuple(feature.shape)}"
            )
        return feature.to(torch.promote_types(feature.dtype, self.dtype))

    def of_heads(self, table: Tensor, scheme: str) -> Tensor:
        """The slice of (heads or 1, ...) for the queries' heads. Raises ValueError for another number of heads."""
        heads = self.query.size(1)
        mine = range(table.size(0)) if self.heads is None else self.heads
        if table.size(0) == 1 and (self.heads is None or len(mine) == heads):
            return table
        if len(mine) != heads or mine.stop > table.size(0):
            raise self.wrong_heads(scheme, table.size(0))
        return table[mine.start : mine.stop]

    def wrong_heads(self, scheme: str, made_for: int) -> ValueError:
        """The error for queries with another number of heads than the scheme was made for."""
        which = "" if self.heads is None else f", of which context.heads selects {len(self.heads)}"
        heads, tokens = self.query.shape[1:3]
        turned = "; or transpose query, key and value to (batch, heads, tokens, head_dim)" if tokens == made_for else ""
        advice = "" if self.heads is not None else f"; make it for {heads} heads{turned}"
        return ValueError(
            f"{scheme} was made for {made_for} heads{which}, got queries of {heads}{advice}; where they are a "
            "shard of all heads, bind the scheme with context=Context(heads=range(first, last))"
        )


# A table has every distance between the lowest and the highest coordinate if these are at most this many per query and
# key; otherwise only the distances that occur, if they can be read.
ENTRIES_PER_TOKEN = 8
FARTHEST = 2**30  # sums of two indices and this are int32

Pair: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""What is known of a pair, given indices of its batch row, query and key."""


@dataclass(frozen=True, eq=False)
class Table:
    """The distances of a block's pairs, ``entries`` (entries[, axes]), and the index of each pair's distance:
    clamp(p_j - p_i, low, high) - low, or a tensor."""

    entries: Tensor
    low: int | float = 0
    index: Tensor | None = None

    def of_pairs(self, x: Tensor, y: Tensor) -> Tensor:
        """The index of every pair, (rows, queries, keys)."""
        if self.index is not None:
            return self.index
        return self.of_distance(apart(x, y))

    def of_distance(self, r: Tensor) -> Tensor:
        """The index of distances along one axis."""
        return r.clamp(self.low, self.low + self.entries.size(0) - 1) - self.low


def table_of(distance: Distance, block: Block, x: Tensor, y: Tensor) -> Table | None:
    """The table of distances; None if values would have to be read and cannot be."""
    if distance.tail == "constant" and distance.integral:
        return _line(-distance.past, distance.past, x)
    if distance.axis is None:
        return None
    bounds = distance_bounds(block.query_positions.layout, block.key_positions.layout)
    if bounds is not None and not (x.is_floating_point() or y.is_floating_point()):
        low, high = bounds  # ints, or symbolic ints in a graph
        if high - low < ENTRIES_PER_TOKEN * (x.size(-1) + y.size(-1)):
            return _line(low, high, x)
    if torch.compiler.is_compiling() or x.device.type != "cpu" or type(x) is not Tensor:
        return None
    entries, index = torch.unique(apart(x, y), return_inverse=True)
    return Table(entries, index=index)


def _line(low: int | float, high: int | float, like: Tensor) -> Table:
    # Not converted with int(), which would specialize a graph to one length.
    return Table(torch.arange(low, high + 1, device=like.device), low)


def check(distance: Distance | None, block: Block) -> None:
    """ValueError or PositionError if the positions or heads do not match the term."""
    if distance is None:
        return
    check_heads(distance.num_heads, distance.scheme, block)
    for positions in (block.query_positions, block.key_positions):
        coordinates(distance, positions)
    if distance.reach is not None:
        axis = distance.axis if isinstance(distance.axis, int) else 0
        check_reach(block.query_positions, block.key_positions, distance.reach, distance.scheme, axis)


def check_heads(made_for: int | None, scheme: str, block: Block) -> None:
    """ValueError for another number of query heads than the term was made for. A table of one head would otherwise
    broadcast."""
    if made_for is not None:
        fits = block.query.size(1) == made_for if block.heads is None else block.heads.stop <= made_for
        if not fits:
            raise block.wrong_heads(scheme, made_for)


def along(distance: Distance, block: Block) -> tuple[Tensor, Tensor]:
    """The coordinates of queries and keys, checked."""
    check(distance, block)
    return coordinates(distance, block.query_positions), coordinates(distance, block.key_positions)


def apart(x: Tensor, y: Tensor) -> Tensor:
    """p_j - p_i of every pair; for floating coordinates in float64 if the device supports it, since float32 would
    round."""
    if (x.is_floating_point() or y.is_floating_point()) and x.device.type != "mps":
        x, y = x.double(), y.double()
    return y[:, None] - x[:, :, None]


def of_pair(distance: Distance, block: Block, x: Tensor, y: Tensor) -> Pair:
    """p_j - p_i as a function of indices. Where layouts are known it reads nothing for a pair: j - i, shifted by one
    number for all. Of pairs in different documents, which nobody sees, it may be another number then."""
    shift = None
    if distance.axis == 0 and distance.axes == 1:
        shift = shift_of(block.query_positions.layout, block.key_positions.layout, lambda span: span.line)
    if shift is not None and -FARTHEST <= shift <= FARTHEST:
        # A tensor, since code would be compiled anew for each Python number.
        by = torch.full((), shift, dtype=torch.int32, device=x.device)
        return lambda b, i, j: j - i + by
    x, y = (c.expand(block.query.size(0), -1).contiguous() for c in (x, y))
    return lambda b, i, j: y[b, j] - x[b, i]


def shift_of(query: Layout, key: Layout, at: Callable[[Span], int | None]) -> int | None:
    """The d with n_j - n_i = j - i + d for every query i and key j of one document; None: unknown, or there is none.

    ``at`` gives n of a span's first token, and None if n does not increase by one in it.
    """
    if query.rows is None or key.rows is None:
        return None
    shift = None
    for row in range(max(len(query.rows), len(key.rows))):
        ahead: dict[int, int] = {}
        for span in query.of_row(row):
            first = at(span)
            if first is None or ahead.setdefault(span.document, first - span.start) != first - span.start:
                return None
        for span in key.of_row(row):
            first = at(span)
            if first is None:
                return None
            if span.document in ahead:
                found = first - span.start - ahead[span.document]
                if shift is not None and found != shift:
                    return None
                shift = found
    return 0 if shift is None else shift
