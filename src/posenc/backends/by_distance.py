"""Scores by distance, over all distances, without a table of queries x keys: tiles laid along their diagonals.

Where positions are two unbroken runs, what a term gives for pair (i, j) is an entry of a line of distances, read from
place j - i on. Let a block of queries stand in reverse order, t = 0 for the last one: then the entry for its row t and
key j is the line's (j + t)-th. So a bias by distance is a *view* of the line, with stride 1 along both axes and no
memory of its own; and the meeting of queries with one vector per distance, a product (rows, distances), becomes the
bias of its pairs as a view whose rows begin one place further each. The gradients go back the same way.

A line ends at distance 0 where attention is causal; what lies beyond is -inf, which is the causal mask.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.backends import fused
from posenc.backends.call import Call
from posenc.encoding import Block, RowScore, Score

# Queries and keys of a tile, and the scores it may hold, of as many heads as fit: the products are then at their
# fastest, and everything that is done to a tile finds it in the cache (measured: docs/log.md).
ROWS = 128
KEYS = 1024
SCORES = 2**20


def suits(call: Call) -> bool:
    """Whether every term of the call is a function of the distance, and distance is an index."""
    if call.ahead is None or call.attn_mask is not None or call.dropout_p or (call.is_causal and call.ahead < 0):
        return False
    if 0 in (*call.query.shape, *call.value.shape) or call.is_forward_mode or call.wants_gradient_of_lse:
        return False
    scores = call.scores
    if any(isinstance(term, RowScore) or (term.by_distance is None and term.fold is None) for term in scores):
        return False
    # One that multiplies must meet the bare score, and one that is taken into query and key makes it another.
    multiply = [number for number, term in enumerate(scores) if isinstance(term, Score) and not term.additive]
    folds = [term for term in scores if isinstance(term, Score) and term.fold is not None]
    if multiply not in ([], [0]) or len(folds) > 1 or (multiply and folds):
        return False
    return all(door.by_distance is not None for door in call.values)


def run(call: Call) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    assert call.ahead is not None
    ahead, device = call.ahead, call.query.device
    heads, queries, keys = call.query.size(1), call.query.size(2), call.key.size(2)
    query, key, met = call.query, call.key, None
    block = Block(call.query, call.key, call.query_positions, call.key_positions, call.scale)
    lowest = 1 - queries - ahead
    highest = min(0, keys - 1 - ahead) if call.is_causal else keys - 1 - ahead
    distances = torch.arange(lowest, highest + 1, device=device)
    ends = torch.tensor([lowest, keys - 1 - ahead], device=device)  # seen or not, as binding a term looks at them

    lines: dict[str, Tensor] = {}

    def add(name: str, line: Tensor | None) -> None:
        if line is not None:
            lines[name] = lines[name] + line if name in lines else line

    for term in call.scores:
        assert isinstance(term, Score)
        if term.fold is not None:
            query, key = (x.to(call.query.dtype) for x in term.fold(call.block()))
            met = call.query
        if term.by_distance is not None:
            term.by_distance(block, ends)  # raises where a table ends
            given = term.by_distance(block, distances)
            add("factor", given.factor)
            add("bias", given.bias)
            add("vectors", given.vectors)
    for door in call.values:
        assert door.by_distance is not None
        rows = door.table.to(call.dtype)[..., door.by_distance(distances), :]
        add("values", rows if rows.dim() == 3 else rows[None])
    own = {name: line.expand(heads, *line.shape[1:]).contiguous() for name, line in lines.items()}
    groups = heads // key.size(1)
    key, value = (x if groups == 1 else x.repeat_interleave(groups, 1) for x in (key, call.value))
    names = ("factor", "bias", "vectors", "values")
    out, lse, _ = torch.ops.posenc.by_distance(
        query, key, value, met, *(own.get(name) for name in names), ahead, call.is_causal, call.scale
    )
    return out, lse


@dataclass
class _Tile:
    """Some queries of some heads of one batch row, the last query first, against some keys.

    ``places`` of the lines of distances are read, of which the tables have ``known``; the first is that of the first
    key and the last query, and stands in the tables at ``column``.
    """

    batch: int
    heads: slice
    queries: slice
    keys: slice
    column: int
    known: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Heads, queries, keys."""
        heads, rows, keys = (s.stop - s.start for s in (self.heads, self.queries, self.keys))
        return heads, rows, keys

    @property
    def places(self) -> int:
        """Of the lines, that its pairs reach over, and a few more: products like round numbers."""
        return _round(self.shape[1] + self.shape[2] - 1)

    def asking(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Its queries' rows of (batch, heads, queries, ...)."""
        return x[self.batch, self.heads, self.queries].to(dtype).flip(1)

    def known_of(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Its keys' rows of (batch, heads, keys, dim)."""
        return x[self.batch, self.heads, self.keys].to(dtype)

    def line(self, table: Tensor) -> Tensor:
        """What it reads of (heads, distances[, dim])."""
        return table[self.heads, self.column : self.column + self.known]


def _round(places: int) -> int:
    return -(-places // 16) * 16


def _tiles(query: Tensor, key: Tensor, ahead: int, is_causal: bool) -> Iterator[list[_Tile]]:
    """All tiles, those of the same queries together. The first are full: what they are worked on in fits all others."""
    batch, heads, queries, _ = query.shape
    highest = key.size(2) - 1 - ahead
    distances = (min(0, highest) if is_causal else highest) + queries + ahead
    at_once = max(1, SCORES // (ROWS * KEYS))
    for start in reversed(range(0, queries, ROWS)):
        stop = min(start + ROWS, queries)
        seen = min(key.size(2), stop + ahead) if is_causal else key.size(2)
        for b in range(batch):
            for h in range(0, heads, at_once):
                tiles = []
                for first in range(0, seen, KEYS):
                    last = min(first + KEYS, seen)
                    column = queries - stop + first  # the tables begin at the distance of key 0 and the last query
                    own = slice(h, min(h + at_once, heads))
                    known = min(_round(stop - start + last - first - 1), distances - column)
                    tiles.append(_Tile(b, own, slice(start, stop), slice(first, last), column, known))
                yield tiles


class _Work:
    """Memory that is used again for every tile: getting it anew from the system costs as much as filling it."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.empty = like.new_empty(0, dtype=dtype)
        self.named: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape; what the last one of this name held is lost."""
        needed = math.prod(shape)
        if name not in self.named or self.named[name].numel() < needed:
            self.named[name] = self.empty.new_empty(needed)
        return self.named[name][:needed].view(shape)


def _diagonals(laid: Tensor, tile: _Tile) -> Tensor:
    """The entries of (heads, places) or (heads, queries, places) for each pair, a view (heads, queries, keys)."""
    if laid.dim() == 2:
        return laid.as_strided(tile.shape, (laid.stride(0), 1, 1), laid.storage_offset())
    return laid.as_strided(tile.shape, (laid.stride(0), laid.stride(1) + 1, 1), laid.storage_offset())


def _met(tile: _Tile, rows: Tensor, table: Tensor, past: float, laid: Tensor) -> Tensor:
    """rows . table for every place, in ``laid`` (heads, queries, places); ``past`` where the table has none."""
    line = tile.line(table).mT
    if tile.known == tile.places:
        return torch.bmm(rows, line, out=laid)
    laid[..., : tile.known] = rows @ line
    laid[..., tile.known :] = past
    return laid


def _laid(
    tile: _Tile, met: Tensor, bias: Tensor | None, vectors: Tensor | None, is_causal: bool, work: _Work
) -> Tensor | None:
    """What is added to the scores, to be read by `_diagonals`; None: nothing."""
    heads, rows, _ = tile.shape
    if vectors is not None:
        laid = _met(tile, met, vectors, -torch.inf, work("laid", heads, rows, tile.places))
        if bias is not None:
            laid[..., : tile.known] += tile.line(bias)[:, None]
        return laid
    if bias is None and (not is_causal or tile.known == tile.places):
        return None
    laid = work("laid", heads, tile.places)
    laid[:, : tile.known] = 0.0 if bias is None else tile.line(bias)
    laid[:, tile.known :] = -torch.inf
    return laid


def _factors(tile: _Tile, factor: Tensor, work: _Work) -> Tensor:
    laid = work("factors", tile.shape[0], tile.places)
    laid[:, : tile.known] = tile.line(factor)
    laid[:, tile.known :] = 0.0
    return laid


def _spread(weights: Tensor, tile: _Tile, laid: Tensor) -> Tensor:
    """The inverse of `_diagonals`, in ``laid`` (heads, queries, places): zeros at the places of no pair."""
    _diagonals(laid.zero_(), tile).copy_(weights)
    return laid[..., : tile.known]


# custom_op reads annotations as types: no `from __future__ import annotations` here, which makes them strings.
@torch.library.custom_op("posenc::by_distance", mutates_args=())
def _by_distance(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    met: Tensor | None,
    factor: Tensor | None,
    bias: Tensor | None,
    vectors: Tensor | None,
    values: Tensor | None,
    ahead: int,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The last is the output before it was rounded, for the backward pass; empty where it was not."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    out = value.new_empty((*query.shape[:3], value.size(-1)), dtype=dtype)
    lse = query.new_empty(query.shape[:3], dtype=dtype)
    work = _Work(query, dtype)
    for tiles in _tiles(query, key, ahead, is_causal):
        asking = tiles[0].asking(query, dtype) * scale
        meeting = tiles[0].asking(query if met is None else met, dtype)
        one = asking.new_zeros((*asking.shape[:2], value.size(-1)))
        its = asking.new_full(asking.shape[:2], -torch.inf)
        for tile in tiles:
            laid = _laid(tile, meeting, bias, vectors, is_causal, work)
            scores = torch.bmm(asking, tile.known_of(key, dtype).mT, out=work("scores", *tile.shape))
            if factor is not None:
                scores.relu_().mul_(_diagonals(_factors(tile, factor, work), tile))
            if laid is not None:
                scores.add_(_diagonals(laid, tile))
            highest = scores.amax(-1, keepdim=True)
            weights = scores.sub_(highest.masked_fill(highest == -torch.inf, 0.0)).exp_()
            sums = weights.sum(-1, keepdim=True)
            result = weights @ tile.known_of(value, dtype)
            if values is not None:
                result += _spread(weights, tile, work("spread", *tile.shape[:2], tile.places)) @ tile.line(values)
            fused.merge(one, its, result.div_(sums.clamp_(min=1.0)), (highest + sums.log())[..., 0])
        out[tiles[0].batch, tiles[0].heads, tiles[0].queries] = one.flip(1)
        lse[tiles[0].batch, tiles[0].heads, tiles[0].queries] = its.flip(1)
    if query.dtype == dtype:
        return out, lse, out.new_empty(0)
    return out.to(query.dtype), lse, out


@torch.library.custom_op("posenc::by_distance_backward", mutates_args=())
def _by_distance_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    met: Tensor | None,
    factor: Tensor | None,
    bias: Tensor | None,
    vectors: Tensor | None,
    values: Tensor | None,
    out: Tensor,
    lse: Tensor,
    exact: Tensor,
    ahead: int,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype = lse.dtype
    d_query, d_key, d_value = (x.new_zeros(x.shape, dtype=dtype) for x in (query, key, value))
    d_met, d_factor, d_bias, d_vectors, d_values = (
        query.new_zeros(0 if x is None else x.shape, dtype=dtype) for x in (met, factor, bias, vectors, values)
    )
    # What the softmax takes from every pair of a row.
    through = (grad * (exact if exact.numel() else out)).sum(-1, dtype=dtype)
    work = _Work(query, dtype)
    for tiles in _tiles(query, key, ahead, is_causal):
        first = tiles[0]
        asking, coming = first.asking(query, dtype), first.asking(grad, dtype)
        meeting = asking if met is None else first.asking(met, dtype)
        its, taken = first.asking(lse, dtype)[..., None], first.asking(through, dtype)[..., None]
        scaled = asking * scale
        d_asking, d_meeting = torch.zeros_like(asking), torch.zeros_like(meeting)
        for tile in tiles:
            line = slice(tile.column, tile.column + tile.known)
            known, carried = tile.known_of(key, dtype), tile.known_of(value, dtype)
            over = (*tile.shape[:2], tile.places)
            laid = _laid(tile, meeting, bias, vectors, is_causal, work)
            bare = weights = torch.bmm(scaled, known.mT, out=work("weights", *tile.shape))
            if factor is not None:
                factors = _diagonals(_factors(tile, factor, work), tile)
                weights = torch.mul(bare.relu_(), factors, out=work("changed", *tile.shape))
            if laid is not None:
                weights.add_(_diagonals(laid, tile))
            weights.sub_(its).exp_()
            d_scores = torch.bmm(coming, carried.mT, out=work("d_scores", *tile.shape))
            d_value[tile.batch, tile.heads, tile.keys] += weights.mT @ coming
            if values is not None:
                d_scores += _diagonals(_met(tile, coming, values, 0.0, work("spread", *over)), tile)
                d_values[tile.heads, line] += _spread(weights, tile, work("spread", *over)).mT @ coming
            d_scores.sub_(taken).mul_(weights)
            if bias is not None or vectors is not None:
                d_laid = _spread(d_scores, tile, work("spread", *over))
                if bias is not None:
                    d_bias[tile.heads, line] += d_laid.sum(1)
                if vectors is not None:
                    d_meeting += d_laid @ tile.line(vectors)
                    d_vectors[tile.heads, line] += d_laid.mT @ meeting
            if factor is not None:
                # weights have done their duty
                torch.mul(d_scores, bare, out=weights)
                d_factor[tile.heads, line] += _spread(weights, tile, work("spread", *over)).sum(1)
                d_scores.mul_(factors).masked_fill_(bare == 0, 0.0)
            d_asking += d_scores @ known
            d_key[tile.batch, tile.heads, tile.keys] += d_scores.mT @ scaled
        where = (first.batch, first.heads, first.queries)
        d_query[where] = d_asking.mul_(scale).flip(1)
        if met is None:
            d_query[where] += d_meeting.flip(1)
        else:
            d_met[where] = d_meeting.flip(1)
    dtype = query.dtype
    return d_query.to(dtype), d_key.to(dtype), d_value.to(dtype), d_met.to(dtype), d_factor, d_bias, d_vectors, d_values


@_by_distance.register_fake
def _(query, key, value, met, factor, bias, vectors, values, ahead, is_causal, scale):  # type: ignore[no-untyped-def]
    dtype = torch.promote_types(query.dtype, torch.float32)
    out = value.new_empty((*query.shape[:3], value.size(-1)))
    exact = query.new_empty(0 if query.dtype == dtype else out.shape, dtype=dtype)
    return out, query.new_empty(query.shape[:3], dtype=dtype), exact


@_by_distance_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    grad, query, key, value, met, factor, bias, vectors, values, out, lse, exact, ahead, is_causal, scale
):
    three = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))
    d_met = query.new_empty(0 if met is None else met.shape)
    tables = (query.new_empty(0 if x is None else x.shape, dtype=lse.dtype) for x in (factor, bias, vectors, values))
    return *three, d_met, *tables


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:8], *output)
    ctx.rest = inputs[8:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _grads(ctx, grad, *_):  # type: ignore[no-untyped-def]
    if grad is None:
        return (None,) * 11
    grads = torch.ops.posenc.by_distance_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.rest)
    optional = (g if x is not None else None for g, x in zip(grads[3:], ctx.saved_tensors[3:8], strict=True))
    return *grads[:3], *optional, None, None, None


_by_distance.register_autograd(_grads, setup_context=_save)
