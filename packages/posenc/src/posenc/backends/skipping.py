"""Finds blocks of keys that can be skipped because scores decay with distance, whatever the values.

The score of a query's own key is a lower bound of the row's log-sum-exp, and no score exceeds scale |q_i| |k_j| + b(r).
Keys are skipped if this upper bound is so far below the lower bound that all of them together have less than
``skip_below`` of the weight.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from posenc.backends.call import Call
from posenc.backends.eligible import line_of
from posenc.backends.kept import kept
from posenc.compat import no_grad
from posenc.encoding.horizon import skip_threshold
from posenc.encoding.pieces import Bias, Clock, Fold, Meeting
from posenc.lowering.distances import ENTRIES_PER_TOKEN
from posenc.lowering.forms import added_to_query, meets
from posenc.positions.layout import distance_bounds
from posenc.positions.positions import PADDING
from posenc.positions.tiles import Visibility

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
    near = kept(call.kept, ("near", size), call.query.device, lambda: _near(call, size, reach))
    block, heads = replace(call.raw_block(), query=call.query.to(call.dtype)), call.query.size(1)
    groups = heads // call.key.size(1)
    query = block.query
    for piece in call.pieces:
        if isinstance(piece, Fold) and piece.query is not None:
            query = query + added_to_query(piece, piece.query, block).to(query.dtype)
    mine = block.key[:, :, None, own : own + query.size(2)]
    score = (query.unflatten(1, (-1, groups)) * mine).sum(-1).flatten(1, 2) * call.scale
    longest = torch.linalg.vector_norm(block.key, dim=-1, dtype=call.dtype)
    longest = _blocks(longest, size).repeat_interleave(groups, 1)
    most = _blocks(query.norm(dim=-1) * call.scale, size)[..., None] * longest[..., None, :]
    if near.bias is not None and near.own is not None:
        most, score = most + near.bias, score + near.own
    for piece, vectors in zip(call.pieces, near.vectors, strict=True):
        if isinstance(piece, Meeting):
            at_most = meets(piece, block).norm(dim=-1) * vectors
            if piece.side == "key":
                most, score = most + _blocks(at_most, size)[..., None, :], score - at_most.amax(-1, keepdim=True)
            else:
                most, score = most + _blocks(at_most, size)[..., None], score - at_most
        elif isinstance(piece, Clock):
            here, there = (block.feature(piece.feature, side).expand(-1, heads, -1) for side in ("query", "key"))
            most = most + (_blocks(here, size)[..., None] + _blocks(-there, size)[..., None, :]).to(most.dtype)
            score = score + (here - there[..., own : own + query.size(2)]).to(score.dtype)
    least = -_blocks(-score, size)[..., None]
    return ~(most < least + skip_threshold(call.skip_below, call.key.size(2)))  # NaN is computed


class _Near(NamedTuple):
    """What no query or key is part of: the highest bias of every block (rows, heads, query_blocks, key_blocks) and that
    of a query's own key (heads, 1), or None; and for each `Meeting` the norm of its longest vector (heads or 1, 1)."""

    bias: Tensor | None
    own: Tensor | None
    vectors: tuple[Tensor | None, ...]


def _near(call: Call, size: int, reach: tuple[int, int]) -> _Near:
    block, heads = call.raw_block(), call.query.size(1)
    r = torch.arange(reach[0], reach[1] + 1, device=call.query.device)
    vectors = tuple(
        line_of(p.at, p.distance, block, r).norm(dim=-1).amax(-1)[:, None] if isinstance(p, Meeting) else None
        for p in call.pieces
    )
    lines = [line_of(p.at, p.distance, block, r).expand(heads, -1) for p in call.pieces if isinstance(p, Bias)]
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
    fades = any(piece.fades for piece in call.pieces)
    known = all(
        isinstance(p, Clock)
        or (isinstance(p, (Bias, Meeting)) and not p.hides and not p.is_planar)
        or (isinstance(p, Fold) and p.key is None)
        for p in call.pieces
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
    """The minimum and maximum of every block of (rows, tokens)."""
    return torch.aminmax(torch.cat((x, x[:, -1:].expand(-1, -x.size(1) % size)), 1).unflatten(1, (-1, size)), dim=-1)
