"""Tokens that take no part in attention: queries that attend to no key, and keys that no query attends to.

Fused kernels multiply a masked value by a weight of zero, and zero times NaN is NaN. So whatever padding, unwritten
slots of a buffer, or keys that a mask hides from all queries hold, backends compute with zeros in their place.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from posenc import compat
from posenc.backends.call import Call
from posenc.backends.kept import kept
from posenc.positions.positions import PADDING
from posenc.positions.tiles import tiles
from posenc.positions.visibility import same_run, sees_all

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
        call = replace(call, query=query, key=key, value=value).keeping(call.kept)
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
    if sees_all(*both, see) or any(piece.reads_rows for piece in call.pieces):
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
        return kept(call.kept, "unseen", call.query.device, lambda: _by_layouts(call) if is_known else _by_order(call))
    seen = call.visible() if call.bool_mask is not None else _with_float_mask(call)
    assert seen is not None  # there is a mask
    return if_any(~seen.any(-1)), if_any(~seen.any(-2))


def _with_float_mask(call: Call) -> Tensor:
    """What may be seen where -inf in the mask hides keys."""
    seen, mask = replace(call, attn_mask=None).visible(), call.bool_attn_mask
    assert mask is not None
    return mask if seen is None else mask & seen


def if_any(unseen: Tensor | None) -> Tensor | None:
    """None if no token is unseen, as far as that may be asked without waiting for a device."""
    if unseen is None or not _is_readable(unseen):
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
