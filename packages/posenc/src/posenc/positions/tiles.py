"""The tiles of attention, blocks of query-key pairs that are not masked, from two layouts and a visibility; the mask.

A tile is a span of queries and a span of keys with a range of allowed index differences. Backends work on tiles, so the
same code handles packing, padding, gaps, windows, caches and shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from posenc import compat
from posenc.arguments import shown, whole
from posenc.positions.layout import Layout, Span, flat, unflat
from posenc.positions.positions import PADDING, PositionError, Positions

ANY = 2**62  # a limit beyond any difference of two orders


@dataclass(frozen=True)
class Visibility:
    """The orders that a query attends to: none above its own if causal, and none outside a window around it.

    ``left`` and ``right`` are the allowed differences of order before and after the query; None: any.
    """

    is_causal: bool = False
    left: int | None = None
    right: int | None = None

    @property
    def furthest(self) -> int | None:
        """The highest allowed difference of order, key minus query; None: any."""
        if self.is_causal:
            return 0 if self.right is None else min(0, self.right)
        return self.right

    def flat(self) -> list[int]:
        """As ints, for arguments of custom operators."""
        has_left, has_right = self.left is not None, self.right is not None
        return [int(self.is_causal), int(has_left), self.left or 0, int(has_right), self.right or 0]

    @staticmethod
    def unflat(take: Iterator[int]) -> Visibility:
        """The inverse of `flat`, from numbers of which others may follow."""
        is_causal, has_left, left, has_right, right = (next(take) for _ in range(5))
        return Visibility(bool(is_causal), left if has_left else None, right if has_right else None)


@dataclass(frozen=True)
class Chunk:
    """Chunked attention, in place of a window: tokens attend only within their own chunk of ``size`` coordinates of
    their document, floor(p_j / size) = floor(p_i / size). Raises ValueError for a size below 1."""

    size: int

    def __post_init__(self) -> None:
        whole("size", self.size)


Window: TypeAlias = "int | tuple[int | None, int | None] | Chunk | None"


def check_window(window: Any) -> tuple[int | None, int | None]:
    """A window as (left, right): how many keys before and after its own a query attends to; None: any.

    An int n means the last n keys including the query's own: (n - 1, 0). A `Chunk` is not a window.
    """
    if window is None:
        return None, None
    if isinstance(window, Sequence) and not isinstance(window, str) and len(window) == 2:
        if -1 in window:  # FlashAttention's
            ends = tuple(None if end == -1 else end for end in window)
            unlimited = None if ends == (None, None) else ends
            raise ValueError(f"window must have None for no limit, got {shown(window)}: pass window={unlimited}")
        left, right = (None if end is None else whole("window", end, least=0) for end in window)
        return left, right
    if isinstance(window, (bool, str, Sequence)):
        raise ValueError(f"window must be a number of keys, (left, right), a Chunk or None, got {shown(window)}")
    if window == -1:
        raise ValueError("window must be None for no limit, got -1: pass window=None")
    return whole("window", window) - 1, 0


def window_words(window: Window) -> str:
    """A window as text."""
    if window is None:
        return "whole text"
    if isinstance(window, int):
        return f"window of {window} keys"
    if isinstance(window, Chunk):
        return f"chunks of {window.size} tokens"
    back, ahead = ("all" if end is None else str(end) for end in check_window(window))
    return f"window of {back} keys back and {ahead} ahead"


@dataclass(frozen=True)
class Tile:
    """Queries ``start`` to ``stop`` against keys ``first`` to ``last`` of some rows of the batch.

    Query i attends to key j if low <= j - i <= high; None: no limit. The distance of their coordinates, of one axis, is
    j - i + ``distance``; None: unknown.
    """

    row: slice
    start: int
    stop: int
    first: int
    last: int
    low: int | None
    high: int | None
    distance: int | None


def tiles(query: Layout, key: Layout, visibility: Visibility, rows: int) -> Iterator[Tile]:
    """All tiles of a batch of ``rows`` rows, row by row and query span by query span."""
    assert query.rows is not None
    assert key.rows is not None
    if len(query.rows) == 1 and len(key.rows) == 1:
        groups = [(slice(0, rows), query.rows[0], key.rows[0])]
    else:
        groups = [(slice(row, row + 1), query.of_row(row), key.of_row(row)) for row in range(rows)]
    for row, queries, keys in groups:
        for q in queries:
            for k in keys:
                if q.document == k.document:
                    tile = _tile(row, q, k, visibility)
                    if tile is not None:
                        yield tile


@dataclass(frozen=True)
class Tiling:
    """Two layouts and a visibility, as an operator takes them: in a list of whole numbers."""

    query: Layout
    key: Layout
    visibility: Visibility

    def tiles(self, rows: int) -> list[Tile]:
        """The tiles of a batch of ``rows`` rows."""
        return list(tiles(self.query, self.key, self.visibility, rows))

    def flat(self) -> list[int]:
        """As whole numbers."""
        return [*self.visibility.flat(), *flat(self.query), *flat(self.key)]

    @staticmethod
    def unflat(numbers: Sequence[int]) -> Tiling:
        """The inverse of `flat`."""
        take = iter(numbers)
        visibility = Visibility.unflat(take)
        return Tiling(unflat(take), unflat(take), visibility)


def _tile(row: slice, q: Span, k: Span, visibility: Visibility) -> Tile | None:
    least = -ANY if visibility.left is None else -visibility.left  # of the key's order minus the query's
    most = ANY if visibility.furthest is None else visibility.furthest
    start, stop, first, last = q.start, q.stop, k.start, k.stop
    low, high = -ANY, ANY
    if q.order_step == k.order_step == 1:
        level = (q.order - q.start) - (k.order - k.start)  # the j - i at which orders are equal
        low, high = least + level, most + level
    elif q.order_step == 1:  # the keys are of one order: the queries that attend to them
        level = q.start + k.order - q.order
        start, stop = max(start, level - most), min(stop, level - least + 1)
    elif k.order_step == 1:  # the queries are of one order: the keys that they attend to
        level = k.start + q.order - k.order
        first, last = max(first, level + least), min(last, level + most + 1)
    elif not least <= k.order - q.order <= most:
        return None
    start, last = max(start, first - high), min(last, stop + high)
    stop, first = min(stop, last - low), max(first, start + low)
    if start >= stop or first >= last:
        return None
    cuts_low, cuts_high = first - (stop - 1) < low, last - 1 - start > high
    return Tile(row, start, stop, first, last, low if cuts_low else None, high if cuts_high else None, _distance(q, k))


def _distance(q: Span, k: Span) -> int | None:
    """p_j - p_i minus j - i, if it is the same for all pairs."""
    return None if q.line is None or k.line is None else (k.line - k.start) - (q.line - q.start)


def distances(seen: Sequence[Tile]) -> tuple[int, int] | None:
    """The lowest and highest distance of coordinates in any tile; None if one is unknown."""
    ends = []
    for tile in seen:
        if tile.distance is None:
            return None
        least, most = tile.first - (tile.stop - 1), tile.last - 1 - tile.start
        least = least if tile.low is None else max(least, tile.low)
        most = most if tile.high is None else min(most, tile.high)
        ends.append((least + tile.distance, most + tile.distance))
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else (0, 0)


# -- the mask ---------------------------------------------------------------------------------------------------------


def visible(
    query_positions: Positions, key_positions: Positions, visibility: Visibility
) -> Bool[Tensor, "rows queries keys"] | None:
    """The mask of keys that each query may attend to: of its own document, not padding, of an order that ``visibility``
    allows. None if nothing is known to need masking.
    """
    query, key = query_positions, key_positions
    if sees_all(query, key, visibility):
        return None
    same = query.document[:, :, None] == key.document[:, None, :]
    same = same & (key.document != PADDING)[:, None, :]
    if visibility.left is None and visibility.furthest is None:
        return same
    ahead = key.order[:, None, :] - query.order[:, :, None]
    if visibility.furthest is not None:
        same = same & (ahead <= visibility.furthest)
    return same if visibility.left is None else same & (ahead >= -visibility.left)


def sees_all(query_positions: Positions, key_positions: Positions, visibility: Visibility) -> bool:
    """Whether every query is known to attend to every key."""
    query, key = query_positions.layout.start, key_positions.layout.start
    if query is None or key is None or query[0] != key[0]:
        return False
    if visibility.left is not None or visibility.right is not None:
        return False
    return not visibility.is_causal or compat.is_known(key[1] + key_positions.layout.tokens - 1 <= query[1])


def sees_later(query_positions: Positions, key_positions: Positions, furthest: int | None) -> bool:
    """Whether a query has a key of a later order in its document, at most ``furthest`` later. Reads the values."""
    rows, queries = max(query_positions.rows, key_positions.rows), len(query_positions)
    document, order = (
        torch.cat([x.expand(rows, -1) for x in both], 1)
        for both in zip(*((p.document, p.order) for p in (query_positions, key_positions)), strict=True)
    )
    orders, place = order.unique(return_inverse=True)  # numbered, so that no product overflows
    documents, group = document.unique(return_inverse=True)
    group = group + torch.arange(rows)[:, None] * documents.numel()
    place = (group * orders.numel() + place).masked_fill(document == PADDING, -1)
    asking, there = (x[x >= 0] for x in (place[:, :queries], place[:, queries:].flatten().sort().values))
    following = torch.searchsorted(there, asking, right=True)
    asking, following = asking[following < there.numel()], following[following < there.numel()]
    following = there[following]
    apart = orders[following % orders.numel()] - orders[asking % orders.numel()]
    seen = following // orders.numel() == asking // orders.numel()
    return bool((seen if furthest is None else seen & (apart <= furthest)).any())


def same_run(query_positions: Positions, key_positions: Positions) -> bool:
    """Whether queries and keys are known to be the same contiguous tokens of one document."""
    query, key = query_positions.layout, key_positions.layout
    if query.start is None or key.start is None or query.start[0] != key.start[0]:
        return False
    return compat.is_known(query.start[1] == key.start[1]) and compat.is_known(query.tokens == key.tokens)


def table_index(positions: Positions, scheme: str, limit: int) -> Int[Tensor, "rows tokens"]:
    """The coordinate of each token as an index into a table of ``limit`` rows. Padding reads row 0.

    Raises ValueError for fractional coordinates, PositionError for one outside 0..limit-1.
    """
    coords = positions.scalar(scheme)
    if coords.dtype != torch.int64:
        raise ValueError(f"{scheme} looks positions up in a table and needs int64 coordinates, got {coords.dtype}")
    if positions.layout.run is None:
        coords = coords.masked_fill(positions.document == PADDING, 0)
    bounds = positions.layout.bounds
    if bounds is None or bounds[0] < 0 or bounds[1] >= limit:
        check_index(coords, limit, scheme, "positions")
    # Autograd saves the index of a table, and cannot save tensors of inference mode.
    return coords.clone() if not torch.compiler.is_compiling() and coords.is_inference() else coords


def check_index(index: Int[Tensor, "..."], limit: int, scheme: str, what: str) -> None:
    """PositionError unless every entry is within 0..limit-1. Reads the values, which synchronizes a GPU.

    In a compiled graph, which cannot raise it, a RuntimeError with nearly the same message.
    """
    if index.numel() == 0 or not compat.has_numbers(index):
        return
    if torch.compiler.is_compiling():
        inside = ((index >= 0) & (index < limit)).all()
        compat.assert_later(inside, f"{scheme} encodes {what} 0 to {limit - 1}, got one outside")
        return
    lowest, highest = (int(v) for v in torch.aminmax(index))
    if lowest < 0 or highest >= limit:
        raise PositionError(f"{scheme} encodes {what} 0 to {limit - 1}, got {lowest if lowest < 0 else highest}")


def check_reach(
    query_positions: Positions, key_positions: Positions, reach: tuple[int, ...], scheme: str, axis: int = 0
) -> None:
    """PositionError unless any two tokens of a document are less than ``reach`` apart: reach[0] along ``axis``,
    reach[1] along the next one. Masked pairs count too: whether a table is too small must not depend on the mask."""
    query, key = query_positions, key_positions
    ends = [end for p in (query, key) for end in p.layout.bounds or ()]
    if len(ends) == 4 and max(ends) - min(ends) < min(reach):
        return
    if not compat.has_numbers(query.coords) or 0 in (*query.order.shape, *key.order.shape):
        return
    if query.coords.dim() == 2 and query.layout.rows is not None and key.layout.rows is not None:
        apart = distances(list(tiles(query.layout, key.layout, Visibility(), max(query.rows, key.rows))))
        if apart is not None:
            _refuse_beyond(max(-apart[0], apart[1]), reach[0], scheme, "")
            return
    for number, limit in enumerate(reach, axis):
        x, y = (p.coords if p.coords.dim() == 2 else p.coords[..., number] for p in (query, key))
        along = "" if query.coords.dim() == 2 else f" along axis {number}"
        _check_axis(x, y, query, key, limit, scheme, along)


def _check_axis(
    x: Shaped[Tensor, "rows queries"],
    y: Shaped[Tensor, "rows keys"],
    query: Positions,
    key: Positions,
    limit: int,
    scheme: str,
    along: str,
) -> None:
    """Compares the extreme coordinates of every document, without a tensor of pairs."""
    if torch.compiler.is_compiling():
        seen = visible(query, key, Visibility())
        apart = (y[:, None, :] - x[:, :, None]).abs()
        apart = apart if seen is None else apart.masked_fill(~seen, 0)
        message = f"{scheme} encodes distances up to {limit - 1}{along}, got one further"
        compat.assert_later(apart.max() < limit, message)
        return
    rows = max(x.size(0), y.size(0))
    x, y, of_x, of_y = (t.expand(rows, -1) for t in (x, y, query.document, key.document))
    row = torch.arange(rows, device=x.device)[:, None]
    labels = torch.cat((of_x, of_y), 1)
    is_token = labels != PADDING
    labels = labels - labels.min()
    _, group = torch.unique(labels + row * (labels.max() + 1), return_inverse=True)
    beyond = torch.iinfo(torch.int64).max // 4

    def ends(values: Tensor, part: slice) -> list[Tensor]:
        """The lowest and the highest coordinate of each document of each row, of queries or of keys."""
        where, real = group[:, part], is_token[:, part]
        none = values.new_full((int(group.max()) + 1,), beyond)
        found = (("amin", none), ("amax", -none))
        return [start.scatter_reduce(0, where[real], values[real], kind) for kind, start in found]

    (x_low, x_high), (y_low, y_high) = ends(x, slice(x.size(1))), ends(y, slice(x.size(1), None))
    both = (x_low <= x_high) & (y_low <= y_high)
    furthest = torch.maximum(x_high - y_low, y_high - x_low).masked_fill(~both, 0)
    _refuse_beyond(int(furthest.max()), limit, scheme, along)


def _refuse_beyond(furthest: int | float, limit: int, scheme: str, along: str) -> None:
    if furthest >= limit:
        raise PositionError(f"{scheme} encodes distances up to {limit - 1}{along}, got {int(furthest)}")
