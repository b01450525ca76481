"""The attention mask of positions, and checks that a scheme's table covers them."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from posenc import compat
from posenc.positions.positions import PADDING, PositionError, Positions
from posenc.positions.tiles import Visibility, distances, tiles


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
    return not visibility.is_causal or key[1] + key_positions.layout.tokens - 1 <= query[1]


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
    return query.start is not None and query.start == key.start and query.tokens == key.tokens


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
