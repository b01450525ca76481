"""Tokens that take no part in attention: queries that attend to no key, and keys that no query attends to.

Fused kernels multiply a masked value by a weight of zero, and zero times NaN is NaN. So whatever padding, unwritten
slots of a buffer, or keys that a mask hides from all queries hold, backends compute with zeros in their place.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from posenc import compat
from posenc.backends.call import Call
from posenc.backends.kept import kept
from posenc.compat import replace
from posenc.positions.positions import PADDING
from posenc.positions.tiles import tiles
from posenc.positions.visibility import same_run, sees_all

Unseen = Bool[Tensor, "rows heads tokens"] | None
"""True: the token takes no part. None: all are known to take part, or none is known not to."""


def cleared(call: Call) -> Call:
    """The call with zeros in place of the queries and keys that take no part, and of their values. Their gradients are
    zero too. Costs a pass over these tensors where there are such tokens, and nothing where the layouts show that there
    are none."""
    if call.is_clear:
        return call
    asking, seen = _unseen(call)
    if asking is None and seen is None:
        return call
    query = _with_zeros(call.query, asking)
    key, value = (_with_zeros(x, seen) for x in (call.key, call.value))
    return replace(call, query=query, key=key, value=value, is_clear=True).keeping(call.kept)


def _with_zeros(x: Tensor, where: Unseen) -> Tensor:
    if where is None:
        return x
    if where.size(1) not in (1, x.size(1)):  # heads of queries share keys
        where = where.unflatten(1, (x.size(1), -1)).all(2)
    return x.masked_fill(where[..., None], 0.0)


@compat.no_grad
def _unseen(call: Call) -> tuple[Unseen, Unseen]:
    """Of the queries, and of the keys."""
    if call.attn_mask is None:
        both = call.query_positions, call.key_positions
        if same_run(*both) or sees_all(*both, call.visibility):
            return None, None
        is_known = call.layouts is not None and not torch.compiler.is_compiling()
        return kept(call.kept, "unseen", call.query.device, lambda: _by_layouts(call) if is_known else _by_order(call))
    seen = call.visible() if call.bool_mask is not None else _with_float_mask(call)
    if seen is None:
        return None, None
    return if_any(~seen.any(-1)), if_any(~seen.any(-2))


def _with_float_mask(call: Call) -> Tensor:
    """What may be seen where -inf in the mask hides keys."""
    seen, mask = replace(call, attn_mask=None).visible(), call.bool_attn_mask
    assert mask is not None
    return mask if seen is None else mask & seen


def if_any(unseen: Tensor | None) -> Tensor | None:
    """None if no token is unseen, as far as that may be asked without waiting for a device."""
    if unseen is None or unseen.device.type != "cpu" or torch.compiler.is_compiling() or compat.is_transformed():
        return unseen
    if not compat.has_numbers(unseen):
        return unseen
    return unseen if bool(unseen.any()) else None


def _by_layouts(call: Call) -> tuple[Unseen, Unseen]:
    """From the spans of both layouts."""
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
    """Whether every token is in one of the spans."""
    end = 0
    for start, stop in sorted(spans):
        if start > end:
            return False
        end = max(end, stop)
    return end >= tokens


def _outside(rows: list[list[tuple[int, int]]], tokens: int) -> Tensor:
    """The tokens of each row that are in none of its spans."""
    unseen = torch.ones(len(rows), 1, tokens, dtype=torch.bool)
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
