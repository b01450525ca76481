"""Executable forms of terms: dense on a block, as functions of a single score, and folded into query and key."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from posenc import compat
from posenc.encoding.claims import coordinates
from posenc.encoding.terms import (
    AddedVector,
    Bias,
    ChannelDecay,
    CumulativeBias,
    Distance,
    Function,
    RelativeDot,
    Row,
    ScoreTerm,
    Value,
)
from posenc.lowering.distances import Block, Pair, along, apart, check, check_heads, of_pair, table_of
from posenc.positions.tiles import Visibility, tiles, visible
from posenc.rotation.phases import constant, frequencies, phases

ScoreFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, b, h, i, j) -> score, FlexAttention's score_mod: b, h, i, j are indices of batch row, query head, query, key.
It only indexes tensors and does arithmetic."""

DISTANCES_PER_ROTATION = 256  # distances for which a rotated query is used
LANES = 32  # copies of a learned table, for as many keys next to one another
PAIRWISE_QUERIES = 16  # queries of which exponentials are taken pair by pair


# -- dense ------------------------------------------------------------------------------------------------------------


def dense(
    term: ScoreTerm, score: Tensor, block: Block, visibility: Visibility, seen: Bool[Tensor, "..."] | None
) -> Tensor:
    """The scores (batch, heads, queries, keys) of a block after one term. ``seen`` is an attention mask or None."""
    return _form_of(term).dense(term, score, block, visibility, seen)


def added(term: ScoreTerm, block: Block) -> Tensor:
    """The term of an additive term for each pair, (1 or batch, 1 or heads, queries or 1, keys)."""
    return _form_of(term).added(term, block)


def _rotated_products(base: float, meeting: Tensor, r: Tensor) -> Tensor:
    """The products of rows x (batch, heads, rows, 2 pairs) with sinusoids of consecutive distances r, (batch, heads,
    rows, distances). With R(p) = (sin p theta, cos p theta), x . R(-r - f) is R(-f) times x rotated by -r theta, so
    sinusoids of `DISTANCES_PER_ROTATION` distances suffice."""
    width, device = meeting.size(-1), r.device
    angle = phases(-r[::DISTANCES_PER_ROTATION], constant(frequencies, width, base, device=device))
    cos, sin = angle.cos().to(meeting), angle.sin().to(meeting)
    a, b = meeting[..., None, :].chunk(2, -1)
    rotated = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    near = constant(_near_sinusoids, width, base, meeting.dtype, device=device)
    return (rotated @ near.mT).flatten(-2)[..., : r.size(0)]


def _near_sinusoids(width: int, base: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The sinusoids of the distances 0, 1, .. `DISTANCES_PER_ROTATION` - 1."""
    angle = phases(-torch.arange(DISTANCES_PER_ROTATION, device=device), frequencies(width, base, device))
    return torch.cat((angle.sin(), angle.cos()), -1).to(dtype=dtype, device=device)


def meets(term: RelativeDot, block: Block) -> Float[Tensor, "batch heads tokens width"]:
    """The rows to multiply with the vectors, scaled and shifted, one for each query head, in the scores' dtype."""
    if term.feature is not None:
        feature = block.feature(term.feature, "query")
        return feature.expand(-1, block.query.size(1), -1, -1).to(block.dtype)
    x = block.query if term.side == "query" else block.key
    x = x.to(block.dtype) * block.scale
    if x.size(1) != block.query.size(1):
        x = x.repeat_interleave(block.query.size(1) // x.size(1), 1)
    if term.shift is None:
        return x
    return x + block.of_heads(term.shift.to(x.dtype), term.distance.scheme)[:, None] * block.scale


def check_width(vectors: Tensor, meeting: Tensor, scheme: str) -> None:
    """ValueError if vectors and the rows to multiply have different widths."""
    if vectors.size(-1) != meeting.size(-1):
        raise ValueError(
            f"{scheme} was made for head_dim {vectors.size(-1)}, got queries of head_dim {meeting.size(-1)}"
        )


def added_to_query(term: AddedVector, query: Tensor, block: Block) -> Tensor:
    """Of ``query``, the vectors that a term adds to queries, those of the block's heads."""
    u = block.of_heads(query[0], term.scheme)[None] if query.size(0) == 1 else query
    check_width(u, block.key, term.scheme)
    return u


def bucket(term: Value, block: Block) -> tuple[Tensor, Tensor]:
    """The vectors of a value term, (1 or heads, entries, value_dim), and each pair's index, (rows, queries, keys)."""
    x, y = along(term.distance, block)
    table = table_of(term.distance, block, x, y)
    if table is None:
        raise ValueError(
            f"{term.distance.scheme} needs the distances of all pairs, which are only read on the CPU: "
            "use positions.with_layout()"
        )
    entries = term.distance.clamped(table.entries)
    return block.of_heads(term.vectors(entries), term.distance.scheme), table.of_pairs(x, y)


# -- for one score, in a kernel ---------------------------------------------------------------------------------------


def function(term: ScoreTerm, block: Block) -> ScoreFunction | str:
    """The term as a FlexAttention score_mod, or the reason why there is none."""
    return _form_of(term).function(term, block)


@dataclass(frozen=True, eq=False)
class _Line:
    """The distances that queries and keys have, and of each pair the index among them."""

    entries: Tensor
    index: Pair


def _line_of(distance: Distance, block: Block) -> _Line | str:
    """What a score_mod looks a term up by, or the reason why it cannot."""
    if distance.axis is None:
        return "a score term depends on several coordinates at once"
    x, y = along(distance, block)
    table = table_of(distance, block, x, y)
    if table is None or table.index is not None:
        return "a score term depends on distances without a known range: use integer positions with a layout"
    r, index = of_pair(distance, block, x, y), table.of_distance
    return _Line(distance.clamped(table.entries), lambda b, i, j: index(r(b, i, j)))


def _straight(term: Bias, block: Block) -> ScoreFunction:
    """A bias with a linear tail: a table of near distances, and beyond it two slopes per head, which a kernel reads
    once for all pairs of a head."""
    past, masks = term.distance.past, term.masks
    x, y = along(term.distance, block)
    r = of_pair(term.distance, block, x, y)
    line = block.of_heads(term.at(torch.arange(-past - 1, past + 2, device=x.device)), term.distance.scheme)
    line = line.to(block.dtype).expand(block.query.size(1), -1).contiguous()
    left, right = line[:, 1] - line[:, 0], line[:, -1] - line[:, -2]

    def beyond(s: Tensor, h: Tensor, away: Tensor) -> Tensor:
        more = torch.where(away > 0, right[h], left[h]) * away
        return s + (torch.where(away == 0, 0.0, more) if masks else more)  # a slope may be infinite

    if past == 0:  # no table, so coordinates may be fractional
        start = line[:, 1].contiguous()
        return lambda s, b, h, i, j: beyond(s + start[h], h, r(b, i, j).to(s.dtype))

    def bent(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        apart = r(b, i, j)
        near = apart.clamp(-past, past)
        return beyond(s + line[h, near + past + 1], h, (apart - near).to(s.dtype))

    return bent


# -- of each kind -----------------------------------------------------------------------------------------------------


class Form:
    """What backends run of one kind of term. A kind that only adds needs `added`, any other `dense`."""

    def dense(self, term: Any, score: Tensor, block: Block, visibility: Visibility, seen: Tensor | None) -> Tensor:
        """See `forms.dense`."""
        return score + self.added(term, block)

    def added(self, term: Any, block: Block) -> Tensor:
        """See `forms.added`."""
        raise NotImplementedError(f"{type(term).__name__} does not add to the score")

    def function(self, term: Any, block: Block) -> ScoreFunction | str:
        """See `forms.function`."""
        return f"this {type(term).__name__} has no form for a single score"


class _OfBias(Form):
    def added(self, term: Bias, block: Block) -> Tensor:
        distance = term.distance
        x, y = along(distance, block)
        table = table_of(distance, block, x, y) if distance.integral else None
        r = distance.clamped(apart(x, y) if table is None else table.entries)
        bias = block.of_heads(term.at(r).to(block.dtype), distance.scheme)
        return (bias if table is None else bias[:, table.of_pairs(x, y)]).movedim(0, 1)

    def function(self, term: Bias, block: Block) -> ScoreFunction | str:
        distance, heads = term.distance, block.query.size(1)
        if distance.axis is None:
            laid = self.added(term, block).expand(-1, heads, -1, -1).contiguous()
            rows = laid.size(0)
            return lambda s, b, h, i, j: s + laid[b if rows > 1 else 0, h, i, j]
        if distance.tail == "linear":
            return _straight(term, block)
        line = _line_of(distance, block)
        if isinstance(line, str):
            return line
        index = line.index
        bias = block.of_heads(term.at(line.entries).to(block.dtype), distance.scheme).expand(heads, -1).contiguous()
        if bias.requires_grad and distance.tail == "constant":
            # Far pairs share an entry, to which a GPU would add their gradients one after the other.
            copies = bias[..., None].expand(-1, -1, LANES).contiguous()
            return lambda s, b, h, i, j: s + copies[h, index(b, i, j), j & (LANES - 1)]
        return lambda s, b, h, i, j: s + bias[h, index(b, i, j)]


class _OfRelativeDot(Form):
    def added(self, term: RelativeDot, block: Block) -> Tensor:
        distance = term.distance
        x, y = along(distance, block)
        meeting = meets(term, block)
        table = table_of(distance, block, x, y)
        if table is None:
            vectors = block.of_heads(term.at(distance.clamped(apart(x, y))), distance.scheme)
            check_width(vectors, meeting, distance.scheme)
            equation = "bhid,hbijd->bhij" if term.side == "query" else "bhjd,hbijd->bhij"
            vectors = vectors.expand(meeting.size(1), meeting.size(0), *vectors.shape[2:])
            return torch.einsum(equation, meeting, vectors.to(meeting.dtype))
        r = distance.clamped(table.entries)
        if term.through is not None and compat.is_known(meeting.size(2) < meeting.size(3)):
            # As in decoding: W is cheaper on the queries than on the vectors.
            through = block.of_heads(term.through, distance.scheme).to(meeting.dtype)
            check_width(through.mT, meeting, distance.scheme)
            meeting = meeting @ through
            if term.base is not None and table.index is None and distance.reach is None:
                products = _rotated_products(term.base, meeting, r)
                return products.gather(-1, table.of_pairs(x, y)[:, None].expand(*meeting.shape[:2], -1, -1))
            vectors = block.of_heads(term.vectors(r), distance.scheme)
        else:
            vectors = block.of_heads(term.at(r), distance.scheme)
            check_width(vectors, meeting, distance.scheme)
        shared = vectors[0] if vectors.size(0) == 1 else vectors  # a single product for all heads
        products = meeting @ shared.to(meeting.dtype).mT
        index = table.of_pairs(x, y)[:, None].expand(*meeting.shape[:2], -1, -1)
        return products.gather(-1, index) if term.side == "query" else products.gather(-1, index.mT).mT

    def function(self, term: RelativeDot, block: Block) -> ScoreFunction | str:
        line = _line_of(term.distance, block)
        if isinstance(line, str):
            return line
        index, scheme = line.index, term.distance.scheme
        meeting, vectors = meets(term, block), block.of_heads(term.at(line.entries), scheme)
        check_width(vectors, meeting, scheme)
        products = meeting @ vectors.to(meeting.dtype).mT
        if term.side == "key":
            return lambda s, b, h, i, j: s + products[b, h, j, index(b, i, j)]
        return lambda s, b, h, i, j: s + products[b, h, i, index(b, i, j)]


class _OfAddedVector(Form):
    def added(self, term: AddedVector, block: Block) -> Tensor:
        grouped = block.query.size(1) // block.key.size(1)
        product: Tensor | None = None
        if term.of_tokens is not None:
            u = added_to_query(term, term.of_tokens, block).to(block.dtype)
            u = u.expand(-1, block.query.size(1), -1, -1).unflatten(1, (-1, grouped))
            key = block.key.to(block.dtype)
            product = torch.einsum("bguid,bgjd->bguij", u.expand(key.size(0), *u.shape[1:]), key).flatten(1, 2)
        if term.key is not None:
            check_width(term.key, block.query, term.scheme)
            w = term.key.to(block.dtype).expand(block.query.size(0), -1, -1, -1)
            of_key = block.query.to(block.dtype) @ w.expand(-1, block.query.size(1), -1, -1).mT
            product = of_key if product is None else product + of_key
        assert product is not None
        return product * block.scale

    def function(self, term: AddedVector, block: Block) -> ScoreFunction | str:
        product = self.added(term, block).expand(-1, block.query.size(1), block.query.size(2), -1)
        return lambda s, b, h, i, j: s + product[b, h, i, j]


class _OfCumulativeBias(Form):
    def added(self, term: CumulativeBias, block: Block) -> Tensor:
        of_query, of_key = block.feature(term.feature, "query"), block.feature(term.feature, "key")
        return (of_query[..., :, None] - of_key[..., None, :]).to(block.dtype)  # the sums may be float64

    def function(self, term: CumulativeBias, block: Block) -> ScoreFunction | str:
        of_query, of_key = (
            block.feature(term.feature, side).expand(-1, block.query.size(1), -1) for side in ("query", "key")
        )
        return lambda s, b, h, i, j: s + (of_query[b, h, i] - of_key[b, h, j]).to(s.dtype)


class _OfChannelDecay(Form):
    def added(self, term: ChannelDecay, block: Block) -> Tensor:
        heads = block.query.size(1)
        q = block.query.to(block.dtype) * block.scale
        k = block.key.to(block.dtype).repeat_interleave(heads // block.key.size(1), 1)
        of_query, of_key = (block.feature(term.feature, side).expand(-1, heads, -1, -1) for side in ("query", "key"))
        check_width(of_query, q, term.scheme)
        layouts = block.query_positions.layout.by_order(), block.key_positions.layout.by_order()
        if torch.compiler.is_compiling() or any(layout.rows is None for layout in layouts):
            seen = visible(block.query_positions, block.key_positions, Visibility(is_causal=True))
            return _decay_product(q, k, of_query, of_key, None if seen is None else seen[:, None])
        out = q.new_zeros(*q.shape[:3], k.size(2))
        for tile in tiles(*layouts, Visibility(is_causal=True), q.size(0)):
            r, i, j = tile.row, slice(tile.start, tile.stop), slice(tile.first, tile.last)
            high = tile.last if tile.high is None else tile.high + tile.start - tile.first
            out[r, :, i, j] = _decay_tile(q[r, :, i], k[r, :, j], of_query[r, :, i], of_key[r, :, j], high)
        return out


def _decay_tile(q: Tensor, k: Tensor, of_query: Tensor, of_key: Tensor, high: int) -> Tensor:
    """sum_c q_ic k_jc (exp(P_ic - P_jc) - 1) of the pairs with j - i <= high; 0 for the others.

    For keys that the first query sees, P_j >= P_0 >= P_i: both factors of exp(P_i - P_0) exp(P_0 - P_j) are at most 1,
    and where one vanishes their product does. Of the other keys the same holds for the later half of the queries and
    what its first one sees, and so on; in the end few pairs are left, of which exp is taken one by one.
    """
    (m, n), seen = (q.size(-2), k.size(-2)), min(max(high + 1, 0), k.size(-2))
    left = q * (of_query - of_query[..., :1, :]).to(q.dtype).exp()
    right = k[..., :seen, :] * (of_query[..., :1, :] - of_key[..., :seen, :]).to(q.dtype).exp()
    far = left @ right.mT - q @ k[..., :seen, :].mT
    if seen == n:
        return far
    k, of_key, high = k[..., seen:, :], of_key[..., seen:, :], high - seen
    if m <= PAIRWISE_QUERIES:
        queries, keys = (torch.arange(x.size(-2), device=q.device) for x in (q, k))
        near = _decay_product(q, k, of_query, of_key, keys - queries[:, None] <= high)
    else:
        half = m // 2
        some = min(max(half + high, 0), n - seen)  # the keys that the first half sees
        first = _decay_tile(q[..., :half, :], k[..., :some, :], of_query[..., :half, :], of_key[..., :some, :], high)
        second = _decay_tile(q[..., half:, :], k, of_query[..., half:, :], of_key, high + half)
        near = torch.cat((pad(first, (0, n - seen - some)), second), -2)
    return torch.cat((far, near), -1)


def _decay_product(q: Tensor, k: Tensor, of_query: Tensor, of_key: Tensor, seen: Tensor | None) -> Tensor:
    gap = (of_query[..., :, None, :] - of_key[..., None, :, :]).to(q.dtype)
    gap = gap if seen is None else gap.masked_fill(~seen[..., None], 0.0)  # before exp, which could overflow there
    return (q[..., :, None, :] * k[..., None, :, :] * gap.expm1()).sum(-1)


class _OfFunction(Form):
    def dense(self, term: Function, score: Tensor, block: Block, visibility: Visibility, seen: Tensor | None) -> Tensor:
        if term.distance is not None:
            r, scheme = apart(*along(term.distance, block)), term.distance.scheme
            coefficients = term.coefficients(term.distance.clamped(r))
        else:
            x, y, scheme = block.query_positions.coords, block.key_positions.coords, term.scheme
            check_heads(term.num_heads, scheme, block)
            coefficients = term.coefficients(x[:, :, None], y[:, None])
        return term.apply(score, *(block.of_heads(c, scheme).movedim(0, 1).to(score.dtype) for c in coefficients))

    def added(self, term: Function, block: Block) -> Tensor:
        assert term.adds
        return self.dense(
            term, torch.zeros((), dtype=block.dtype, device=block.query.device), block, Visibility(), None
        )

    def function(self, term: Function, block: Block) -> ScoreFunction | str:
        if term.reads_coordinates:
            return super().function(term, block)
        if term.distance is None:
            return lambda s, b, h, i, j: term.apply(s)
        line = _line_of(term.distance, block)
        if isinstance(line, str):
            return line
        index, scheme, heads = line.index, term.distance.scheme, block.query.size(1)
        lines = [
            block.of_heads(c, scheme).to(block.dtype).expand(heads, -1).contiguous()
            for c in term.coefficients(line.entries)
        ]
        return lambda s, b, h, i, j: term.apply(s, *(c[h, index(b, i, j)] for c in lines))


class _OfRow(Form):
    def dense(self, term: Row, score: Tensor, block: Block, visibility: Visibility, seen: Tensor | None) -> Tensor:
        visible_here = visible(block.query_positions, block.key_positions, visibility)
        both = [s for s in (None if visible_here is None else visible_here[:, None], seen) if s is not None]
        mask = reduce(operator.and_, both) if both else None
        return term.apply(score, mask, block.query, block.key, block.query_positions, block.key_positions)


FORMS: dict[type[ScoreTerm], Form] = {
    Bias: _OfBias(),
    RelativeDot: _OfRelativeDot(),
    AddedVector: _OfAddedVector(),
    CumulativeBias: _OfCumulativeBias(),
    ChannelDecay: _OfChannelDecay(),
    Function: _OfFunction(),
    Row: _OfRow(),
}


def _form_of(term: ScoreTerm) -> Form:
    form = FORMS.get(type(term))
    if form is None:
        raise ValueError(f"a term must be of a kind that has a form, got {type(term).__name__}: add it to FORMS")
    return form


# -- folding ----------------------------------------------------------------------------------------------------------


def fold(score_terms: Sequence[ScoreTerm], block: Block) -> tuple[Tensor, Tensor, tuple[ScoreTerm, ...]]:
    """Query and key whose inner product includes as many terms as possible, and the remaining terms.

    All vectors added to the query are folded. Vectors added to the key are folded only if none is added to the query,
    since their product would be an unwanted cross term. A `RelativeDot` along one of several axes gets extra channels,
    one for each position along the axis: one-hot in the key, and in the query its score for a key at that position.
    Nothing is folded if a term does more than add."""
    query, key = block.query, block.key
    if not all(term.adds for term in score_terms):
        return query, key, tuple(score_terms)
    left, channels = [], []
    both = [term for term in score_terms if isinstance(term, AddedVector)]
    on_query = any(term.query is not None for term in both)
    for term in score_terms:
        if isinstance(term, AddedVector) and term.key is None:
            assert term.of_tokens is not None
            query = query + added_to_query(term, term.of_tokens, block).to(query.dtype)
        elif isinstance(term, AddedVector) and not on_query:
            assert term.key is not None
            check_width(term.key, query, term.scheme)
            key = key + term.key.to(key.dtype)
        elif isinstance(term, RelativeDot) and (places := _places(term, block)) is not None:
            channels.append((term, *places))
        else:
            left.append(term)
    for term, low, count in channels:
        more, where = _channels(term, block, low, count)
        query = torch.cat((query, more.to(query.dtype)), -1)
        key = torch.cat((key, where.to(key.dtype).expand(*key.shape[:3], -1)), -1)
    return query, key, tuple(left)


def _places(term: RelativeDot, block: Block) -> tuple[int, int] | None:
    """The first coordinate and their number, if keys have few positions along one of several axes; else None."""
    distance = term.distance
    several = block.key_positions.coords.dim() == 3 and distance.axis is not None and distance.reach is not None
    if term.side == "key" or term.feature is not None or not several or block.query.dtype == torch.float16:
        return None
    if block.scale == 0:  # all channels of the query would be 0
        return None
    assert distance.reach is not None
    bounds, period = block.key_positions.layout.bounds, 2 * distance.reach[0] - 1
    if bounds is not None and bounds[1] - bounds[0] < period:
        return int(bounds[0]), int(bounds[1] - bounds[0] + 1)
    return 0, period  # positions modulo the period, within which distances from a query are distinct


def _channels(term: RelativeDot, block: Block, low: int, count: int) -> tuple[Tensor, Tensor]:
    distance = term.distance
    assert distance.reach is not None
    check(distance, block)
    x, y = (coordinates(distance, p)[:, None] for p in (block.query_positions, block.key_positions))
    reach = distance.reach[0]
    period = 2 * reach - 1
    entries = torch.arange(1 - reach, reach, device=x.device)
    meeting = meets(term, block) / block.scale
    vectors = block.of_heads(term.at(entries), distance.scheme)
    check_width(vectors, meeting, distance.scheme)
    products = meeting @ vectors.to(meeting.dtype).mT
    place = torch.arange(count, device=x.device) + low
    index = (place - x[..., None] + reach - 1).remainder(period)
    more = products.gather(-1, index.expand(*products.shape[:3], count))
    return more, ((y[..., None] - low).remainder(period) == place - low).to(block.dtype)
