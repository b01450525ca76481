"""Executable forms of pieces, for backends: dense on a block, and as functions of a single score."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posenc.encoding.pieces import Bias, Clock, Distance, Fold, Function, Meeting, Piece, Row, Value
from posenc.lowering.block import Block
from posenc.positions.positions import Positions
from posenc.positions.tiles import Visibility
from posenc.positions.visibility import check_reach, visible
from posenc.rotation.phases import phases

ScoreFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, b, h, i, j) -> score, FlexAttention's score_mod: b, h, i, j are indices of batch row, query head, query, key.
It only indexes tensors and does arithmetic."""

# A table has every distance between the lowest and the highest coordinate if these are at most this many per query and
# key; otherwise only the distances that occur, if they can be read.
ENTRIES_PER_TOKEN = 8
TURNS = 256  # distances for which a rotated query is used


# -- distances --------------------------------------------------------------------------------------------------------


def coordinates(distance: Distance, positions: Positions) -> Tensor:
    """(rows, tokens) along the term's axis, or (rows, tokens, axes). Raises ValueError for a wrong number of axes."""
    coords, scheme = positions.coords, distance.scheme
    if distance.integral and coords.dtype != torch.int64:
        raise ValueError(f"{scheme} looks distances up in a table and needs int64 coordinates, got {coords.dtype}")
    axes, wanted = 1 if coords.dim() == 2 else coords.size(2), distance.axes
    if distance.axis is None:
        wanted = axes if distance.reach is None else len(distance.reach)
    elif wanted == 1:
        return positions.scalar(scheme)
    if coords.dim() != 3 or axes != wanted:
        raise ValueError(f"{scheme} takes {wanted} coordinates per token, got positions of {axes}")
    return coords if distance.axis is None else coords[..., distance.axis]


@dataclass(frozen=True, eq=False)
class _Table:
    """The distances of a block's pairs, ``entries`` (entries[, axes]), and the index of each pair's distance:
    clamp(p_j - p_i, low, high) - low, or a tensor."""

    entries: Tensor
    low: int | float = 0
    index: Tensor | None = None

    def of_pairs(self, x: Tensor, y: Tensor) -> Tensor:
        """The index of every pair, (rows, queries, keys)."""
        if self.index is not None:
            return self.index
        return self.of_distance(_apart(x, y))

    def of_distance(self, r: Tensor) -> Tensor:
        """The index of distances along one axis."""
        return r.clamp(self.low, self.low + self.entries.size(0) - 1) - self.low


def _table(distance: Distance, block: Block, x: Tensor, y: Tensor) -> _Table | None:
    """The table of distances; None if values would have to be read and cannot be."""
    if distance.tail == "constant" and distance.integral:
        return _line(-distance.past, distance.past, x)
    if distance.axis is None:
        return None
    bounds = block.query_positions.layout.bounds, block.key_positions.layout.bounds
    is_whole = not (x.is_floating_point() or y.is_floating_point())
    if is_whole and bounds[0] is not None and bounds[1] is not None:
        low, high = bounds[1][0] - bounds[0][1], bounds[1][1] - bounds[0][0]  # ints, or symbolic ints in a graph
        if high - low < ENTRIES_PER_TOKEN * (x.size(-1) + y.size(-1)):
            return _line(low, high, x)
    if torch.compiler.is_compiling() or x.device.type != "cpu" or type(x) is not Tensor:
        return None
    entries, index = torch.unique(_apart(x, y), return_inverse=True)
    return _Table(entries, index=index)


def _line(low: int | float, high: int | float, like: Tensor) -> _Table:
    # Not converted with int(), which would specialize a graph to one length.
    return _Table(torch.arange(low, high + 1, device=like.device), low)


def check(distance: Distance | None, block: Block) -> None:
    """ValueError or PositionError if the positions or heads do not match the term."""
    if distance is None:
        return
    check_heads(distance.num_heads, distance.scheme, block)
    for positions in (block.query_positions, block.key_positions):
        coordinates(distance, positions)
    if distance.reach is not None:
        axis = 0 if distance.axis is None else distance.axis
        check_reach(block.query_positions, block.key_positions, distance.reach, distance.scheme, axis)


def check_heads(made_for: int | None, scheme: str, block: Block) -> None:
    """ValueError for another number of query heads than the term was made for. A table of one head would otherwise
    broadcast."""
    if made_for is not None:
        fits = block.query.size(1) == made_for if block.heads is None else block.heads.stop <= made_for
        if not fits:
            raise block.wrong_heads(scheme, made_for)


def _along(distance: Distance, block: Block) -> tuple[Tensor, Tensor]:
    """The coordinates of queries and keys, checked."""
    check(distance, block)
    return coordinates(distance, block.query_positions), coordinates(distance, block.key_positions)


def _apart(x: Tensor, y: Tensor) -> Tensor:
    """p_j - p_i of every pair; for floating coordinates in float64 if the device supports it, since float32 would
    round."""
    if (x.is_floating_point() or y.is_floating_point()) and x.device.type != "mps":
        x, y = x.double(), y.double()
    return y[:, None] - x[:, :, None]


def _within_reach(distance: Distance, r: Tensor) -> Tensor:
    """Distances clamped to those with an entry. ``reach`` was checked before, so only masked pairs are clamped."""
    if distance.reach is None:
        return r
    if distance.axis is not None:
        return r.clamp(1 - distance.reach[0], distance.reach[0] - 1)
    parts = [part.clamp(1 - n, n - 1) for part, n in zip(r.unbind(-1), distance.reach, strict=True)]
    return torch.stack(parts, -1)


# -- dense ------------------------------------------------------------------------------------------------------------


def dense(
    piece: Piece, score: Tensor, block: Block, visibility: Visibility, seen: Bool[Tensor, "..."] | None
) -> Tensor:
    """The scores (batch, heads, queries, keys) of a block after one piece. ``seen`` is an attention mask or None."""
    if isinstance(piece, Row):
        visible_here = visible(block.query_positions, block.key_positions, visibility)
        both = [s for s in (None if visible_here is None else visible_here[:, None], seen) if s is not None]
        mask = reduce(operator.and_, both) if both else None
        return piece.apply(score, mask, block.query, block.key, block.query_positions, block.key_positions)
    if isinstance(piece, Function):
        return piece.apply(score, *(c.to(score.dtype) for c in _coefficients(piece, block)))
    return score + added(piece, block)


def added(piece: Piece, block: Block) -> Tensor:
    """The term of an additive piece for each pair, (1 or batch, 1 or heads, queries or 1, keys)."""
    if isinstance(piece, Bias):
        return _of_pairs(piece.at, piece.distance, block)
    if isinstance(piece, Meeting):
        return _met(piece, block)
    if isinstance(piece, Fold):
        return _folded_by_itself(piece, block)
    if isinstance(piece, Clock):
        here, there = block.feature(piece.feature, "query"), block.feature(piece.feature, "key")
        return (here[..., :, None] - there[..., None, :]).to(block.dtype)  # the sums may be float64
    assert isinstance(piece, Function)
    assert piece.adds
    zero = torch.zeros((), dtype=block.dtype, device=block.query.device)
    return piece.apply(zero, *(c.to(block.dtype) for c in _coefficients(piece, block)))


def _of_pairs(at: Callable[[Tensor], Tensor], distance: Distance, block: Block) -> Tensor:
    """``at`` of the distance of every pair, (1 or batch, 1 or heads, queries, keys), in the scores' dtype."""
    x, y = _along(distance, block)
    table = _table(distance, block, x, y) if distance.integral else None
    if table is not None:
        entries = block.of_heads(at(_within_reach(distance, table.entries)).to(block.dtype), distance.scheme)
        return entries[:, table.of_pairs(x, y)].movedim(0, 1)
    return block.of_heads(at(_within_reach(distance, _apart(x, y))).to(block.dtype), distance.scheme).movedim(0, 1)


def _coefficients(piece: Function, block: Block) -> tuple[Tensor, ...]:
    if piece.distance is not None:
        x, y = _along(piece.distance, block)
        r = _within_reach(piece.distance, _apart(x, y))
        coefficients, scheme = piece.coefficients(r), piece.distance.scheme
    else:
        x, y = block.query_positions.coords, block.key_positions.coords
        scheme = piece.scheme
        check_heads(piece.num_heads, scheme, block)
        coefficients = piece.coefficients(x[:, :, None], y[:, None])
    return tuple(block.of_heads(c, scheme).movedim(0, 1) for c in coefficients)


def _met(piece: Meeting, block: Block) -> Tensor:
    distance = piece.distance
    x, y = _along(distance, block)
    meeting = meets(piece, block)
    table = _table(distance, block, x, y)
    if table is None:
        vectors = block.of_heads(piece.at(_within_reach(distance, _apart(x, y))), distance.scheme)
        check_width(vectors, meeting, distance.scheme)
        term = "bhid,hbijd->bhij" if piece.side == "query" else "bhjd,hbijd->bhij"
        vectors = vectors.expand(meeting.size(1), meeting.size(0), *vectors.shape[2:])
        return torch.einsum(term, meeting, vectors.to(meeting.dtype))
    r = _within_reach(distance, table.entries)
    if piece.through is not None and meeting.size(2) < meeting.size(3):  # as in decoding: then W is cheaper on queries
        through = block.of_heads(piece.through, distance.scheme).to(meeting.dtype)
        check_width(through.mT, meeting, distance.scheme)
        meeting = meeting @ through
        if piece.theta is not None and table.index is None and distance.reach is None:
            products = _turned(piece, piece.theta, meeting, r)
            return products.gather(-1, table.of_pairs(x, y)[:, None].expand(*meeting.shape[:2], -1, -1))
        vectors = block.of_heads(piece.vectors(r), distance.scheme)
    else:
        vectors = block.of_heads(piece.at(r), distance.scheme)
        check_width(vectors, meeting, distance.scheme)
    shared = vectors[0] if vectors.size(0) == 1 else vectors  # a single product for all heads
    products = meeting @ shared.to(meeting.dtype).mT
    index = table.of_pairs(x, y)[:, None].expand(*meeting.shape[:2], -1, -1)
    return products.gather(-1, index) if piece.side == "query" else products.gather(-1, index.mT).mT


def _turned(piece: Meeting, theta: Tensor, meeting: Tensor, r: Tensor) -> Tensor:
    """The products of rows x (batch, heads, rows, 2 pairs) with sinusoids of consecutive distances r, (batch, heads,
    rows, distances). With R(p) = (sin p theta, cos p theta), x . R(-r - f) is R(-f) times x rotated by -r theta, so
    sinusoids of `TURNS` distances suffice."""
    angle = phases(-r[::TURNS], theta)
    cos, sin = angle.cos().to(meeting), angle.sin().to(meeting)
    a, b = meeting[..., None, :].chunk(2, -1)
    turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    near = piece.vectors(torch.arange(TURNS, device=r.device))[0].to(meeting)
    return (turned @ near.mT).flatten(-2)[..., : r.size(0)]


def meets(piece: Meeting, block: Block) -> Float[Tensor, "batch heads tokens width"]:
    """The rows to multiply with the vectors, scaled and shifted, one for each query head, in the scores' dtype."""
    if piece.feature is not None:
        feature = block.feature(piece.feature, "query")
        return feature.expand(-1, block.query.size(1), -1, -1).to(block.dtype)
    x = block.query if piece.side == "query" else block.key
    x = x.to(block.dtype) * block.scale
    if x.size(1) != block.query.size(1):
        x = x.repeat_interleave(block.query.size(1) // x.size(1), 1)
    if piece.shift is None:
        return x
    return x + block.of_heads(piece.shift.to(x.dtype), piece.distance.scheme)[:, None] * block.scale


def check_width(vectors: Tensor, meeting: Tensor, scheme: str) -> None:
    """ValueError if vectors and the rows to multiply have different widths."""
    if vectors.size(-1) != meeting.size(-1):
        raise ValueError(
            f"{scheme} was made for head_dim {vectors.size(-1)}, got queries of head_dim {meeting.size(-1)}"
        )


def _folded_by_itself(piece: Fold, block: Block) -> Tensor:
    grouped = block.query.size(1) // block.key.size(1)
    term: Tensor | None = None
    if piece.query is not None:
        u = block.of_heads(piece.query[0], piece.scheme)[None] if piece.query.size(0) == 1 else piece.query
        check_width(u, block.key, piece.scheme)
        u = u.to(block.dtype).expand(-1, block.query.size(1), -1, -1).unflatten(1, (-1, grouped))
        key = block.key.to(block.dtype)
        term = torch.einsum("bguid,bgjd->bguij", u.expand(key.size(0), *u.shape[1:]), key).flatten(1, 2)
    if piece.key is not None:
        check_width(piece.key, block.query, piece.scheme)
        w = piece.key.to(block.dtype).expand(block.query.size(0), -1, -1, -1)
        of_key = block.query.to(block.dtype) @ w.expand(-1, block.query.size(1), -1, -1).mT
        term = of_key if term is None else term + of_key
    assert term is not None
    return term * block.scale


def bucket(term: Value, block: Block) -> tuple[Tensor, Tensor]:
    """The vectors of a value term, (1 or heads, entries, value_dim), and each pair's index, (rows, queries, keys)."""
    x, y = _along(term.distance, block)
    table = _table(term.distance, block, x, y)
    if table is None:
        raise ValueError(
            f"{term.distance.scheme} needs the distances of all pairs, which are only read on the CPU: "
            "use positions.with_layout()"
        )
    entries = _within_reach(term.distance, table.entries)
    return block.of_heads(term.vectors(entries), term.distance.scheme), table.of_pairs(x, y)


# -- for one score, in a kernel ---------------------------------------------------------------------------------------


def function(piece: Piece, block: Block) -> ScoreFunction | str:
    """The piece as a FlexAttention score_mod, or the reason why there is none."""
    if isinstance(piece, Row):
        return "a score term needs whole rows of scores, but FlexAttention processes one score at a time"
    if isinstance(piece, Clock):
        here, there = (
            block.feature(piece.feature, side).expand(-1, block.query.size(1), -1) for side in ("query", "key")
        )
        return lambda s, b, h, i, j: s + (here[b, h, i] - there[b, h, j]).to(s.dtype)
    if isinstance(piece, Fold):
        term = _folded_by_itself(piece, block).expand(-1, block.query.size(1), block.query.size(2), -1)
        return lambda s, b, h, i, j: s + term[b, h, i, j]
    if isinstance(piece, Function) and piece.distance is None:
        if piece.reads_coordinates:
            return "a score term is a function of both coordinates, which FlexAttention does not support"
        return lambda s, b, h, i, j: piece.apply(s)
    distance = piece.distance
    assert distance is not None
    check(distance, block)
    if distance.axis is None:
        x, y = (coordinates(distance, p) for p in (block.query_positions, block.key_positions))
        assert isinstance(piece, Bias)
        laid = _of_pairs(piece.at, distance, block).expand(-1, block.query.size(1), -1, -1).contiguous()
        rows = laid.size(0)
        return lambda s, b, h, i, j: s + laid[b if rows > 1 else 0, h, i, j]
    batch = block.query.size(0)
    x, y = (
        coordinates(distance, p).expand(batch, -1).contiguous() for p in (block.query_positions, block.key_positions)
    )
    table = _table(distance, block, x, y)
    if distance.tail == "linear" and isinstance(piece, Bias):
        return _straight(piece, block, x, y)
    if table is None or table.index is not None:
        return "a score term depends on distances without a known range: use integer positions with a layout"
    entries = _within_reach(distance, table.entries)
    index = table.of_distance
    heads = block.query.size(1)
    if isinstance(piece, Bias):
        bias = block.of_heads(piece.at(entries).to(block.dtype), distance.scheme).expand(heads, -1).contiguous()
        return lambda s, b, h, i, j: s + bias[h, index(y[b, j] - x[b, i])]
    if isinstance(piece, Function):
        lines = [
            block.of_heads(c, distance.scheme).to(block.dtype).expand(heads, -1).contiguous()
            for c in piece.coefficients(entries)
        ]
        return lambda s, b, h, i, j: piece.apply(s, *(c[h, index(y[b, j] - x[b, i])] for c in lines))
    meeting, vectors = meets(piece, block), block.of_heads(piece.at(entries), distance.scheme)
    check_width(vectors, meeting, distance.scheme)
    products = meeting @ vectors.to(meeting.dtype).mT
    if piece.side == "key":
        return lambda s, b, h, i, j: s + products[b, h, j, index(y[b, j] - x[b, i])]
    return lambda s, b, h, i, j: s + products[b, h, i, index(y[b, j] - x[b, i])]


def _straight(piece: Bias, block: Block, x: Tensor, y: Tensor) -> ScoreFunction:
    """A bias with a linear tail: a table of near distances, and beyond it two slopes per head."""
    past = piece.distance.past
    line = block.of_heads(piece.at(torch.arange(-past - 1, past + 2, device=x.device)), piece.distance.scheme)
    line = line.to(block.dtype).expand(block.query.size(1), -1).contiguous()
    slopes = torch.stack((line[:, 0] - line[:, 1], line[:, -1] - line[:, -2]), 1)
    if past == 0:  # no table, so coordinates may be fractional
        start = line[:, 1].contiguous()

        def straight(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            r = y[b, j] - x[b, i]
            away, side = r.abs().to(s.dtype), (r > 0).to(torch.int64)
            steep = slopes[h, side]
            return s + start[h] + torch.where(away == 0, 0.0, steep * away)  # a slope may be -inf

        return straight

    def bent(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        r = y[b, j] - x[b, i]
        near = r.clamp(-past, past)
        return s + line[h, near + past + 1] + slopes[h, (r > 0).to(torch.int64)] * (r - near).abs().to(s.dtype)

    return bent
