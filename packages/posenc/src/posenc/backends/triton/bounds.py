"""The kernels that find which blocks count: upper bounds of scores and lower bounds of log-sum-exps, in natural units.

The score of a query's own key is a lower bound of the row's log-sum-exp, and no score exceeds scale |q_i| |k_j| plus
the most that terms add. NaN counts as infinite, so that what is NaN is computed.
"""

import triton
import triton.language as tl

from posenc.backends.triton.arguments import LENGTHS
from posenc.backends.triton.pieces import entry, number, of_head, of_row, rows
from posenc.backends.triton.tasks import SPAN

# No `from __future__ import annotations` here: Triton evaluates annotations to find constexpr arguments.

TOKENS: tl.constexpr = tl.constexpr(SPAN)


@triton.jit
def counted_of(counted, blocks, row, start, stop):
    """The first token of the other side that a block start .. stop of at most SPAN tokens is computed with, and the one
    after the last, of blocks of a row of heads; without ``counted`` any."""
    first, last = 0, 1 << 30
    if counted is not None:
        at, to = counted + (row * blocks + start // TOKENS) * 2, counted + (row * blocks + (stop - 1) // TOKENS) * 2
        first, last = tl.minimum(tl.load(at), tl.load(to)), tl.maximum(tl.load(at + 1), tl.load(to + 1))
    return first, last


@triton.jit
def or_infinite(x):
    """x, and infinity in place of NaN, which `tl.max` would leave out."""
    return tl.where(x == x, x, float("inf"))


@triton.jit
def norms(x):
    """The norms of rows."""
    return tl.sqrt(tl.sum(x * x, 1))


@triton.jit(do_not_specialize=LENGTHS)
def bounds_queries(
    q, k, lse, terms, bias_entries, longest, bounds, heads, queries, keys, own, low,
    W: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """The bounds of a block of queries, where the norm of the longest vector is ``longest``. Without ``lse``, the least
    log-sum-exp is that of the scores with their own keys, j = i + ``own``."""
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    i0 = tl.program_id(0) * SPAN
    i = i0 + tl.arange(0, SPAN)
    mine = i < queries
    row = b * heads.heads + h
    at = row * tl.num_programs(0) + tl.program_id(0)
    q_i = rows(of_row(q, b, h), q.row, i0, mine, W.D, SPAN, W.BLOCK_D)
    lift = tl.zeros((SPAN,), tl.float32)
    if longest is not None:
        length = tl.load(longest + h)
        if terms.meeting is not None:
            x = rows(terms.meeting + row * queries * W.E, W.E, i0, mine, W.E, SPAN, W.BLOCK_E)
            lift = norms(x.to(tl.float32)) * length
        else:
            lift = norms(q_i.to(tl.float32)) * (length * heads.scale)
        tl.store(bounds.vectors + at, tl.max(or_infinite(lift), 0))
    if terms.shift is not None:
        q_i = (q_i + entry(terms.shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i.dtype)
    x = q_i.to(tl.float32)
    tl.store(bounds.norm + at, tl.max(or_infinite(norms(x)), 0) * heads.scale)
    if terms.query_clock is not None:
        reading = tl.load(terms.query_clock + row * queries + i, mask=mine, other=-float("inf"))
        tl.store(bounds.clock + at, tl.max(or_infinite(reading), 0))
    if lse is not None:
        score = tl.load(lse + row * queries + i, mask=mine, other=float("inf"))
        score = tl.where(score == -float("inf"), float("inf"), score)  # a fully masked row has no weights
    else:
        k_i = rows(of_row(k, b, h // heads.groups), k.row, i0 + own, mine, W.D, SPAN, W.BLOCK_D)
        score = tl.sum(x * k_i.to(tl.float32), 1) * heads.scale - lift
        if terms.bias is not None:
            score += number(of_head(terms.bias, h, bias_entries, 1), bias_entries, -low)
        if terms.query_clock is not None:
            apart = reading - tl.load(terms.key_clock + row * keys + i + own, mask=mine, other=0.0)
            score += apart.to(tl.float32)
        score = tl.where(mine, score, float("inf"))
    tl.store(bounds.lse + at, -tl.max(or_infinite(-score), 0))


@triton.jit(do_not_specialize=LENGTHS)
def bounds_keys(k, key_clock, bounds, heads, keys, W: tl.constexpr, SPAN: tl.constexpr):
    """The bounds of a block of keys; the cumulative feature is of every query head of the group."""
    of_keys, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    j0 = tl.program_id(0) * SPAN
    j = j0 + tl.arange(0, SPAN)
    row = b * tl.num_programs(1) + of_keys
    k_j = rows(of_row(k, b, of_keys), k.row, j0, j < keys, W.D, SPAN, W.BLOCK_D)
    at = row * tl.num_programs(0) + tl.program_id(0)
    tl.store(bounds.norm + at, tl.max(or_infinite(norms(k_j.to(tl.float32))), 0))
    if key_clock is not None:
        for g in range(heads.groups):
            head = row * heads.groups + g
            reading = tl.load(key_clock + head * keys + j, mask=j < keys, other=float("inf"))
            lowest = -tl.max(or_infinite(-reading), 0)
            tl.store(bounds.clock + head * tl.num_programs(0) + tl.program_id(0), lowest)


@triton.jit(do_not_specialize=LENGTHS)
def bounds_counted(
    counted, of_queries, of_keys, blocks_q, blocks_k, place_q, place_k, bias, bias_entries, slopes, highest, low, heads,
    threshold, SPAN: tl.constexpr, C: tl.constexpr, OF_KEYS: tl.constexpr,
):  # fmt: skip
    """The first of the keys that a block of queries must be computed with, and the one after the last: of blocks in
    which a score may be above the threshold, relative to a log-sum-exp. OF_KEYS: the first and last queries for a block
    of keys.

    ``highest`` are the maxima of a bias over the 2 SPAN - 1 distances of two contiguous blocks, from those on that are
    all before the table up to those that are all beyond it."""
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    row = b * tl.num_programs(1) + h
    of_q, of_k = row * blocks_q, (b * (tl.num_programs(1) // heads.groups) + h // heads.groups) * blocks_k
    others = blocks_q if OF_KEYS else blocks_k
    window = 2 * SPAN - 1
    first, last = others, 0
    for from_ in range(0, others, C):
        other = from_ + tl.arange(0, C)
        here = other < others
        mine = tl.zeros((C,), tl.int32) + tl.program_id(0)
        q, k = (other, mine) if OF_KEYS else (mine, other)
        bound = tl.load(of_queries.norm + of_q + q, mask=here, other=0.0)
        bound *= tl.load(of_keys.norm + of_k + k, mask=here, other=0.0)
        if of_queries.vectors is not None:
            bound += tl.load(of_queries.vectors + of_q + q, mask=here, other=0.0)
        if of_queries.clock is not None:
            reading = tl.load(of_queries.clock + of_q + q, mask=here, other=0.0)
            bound += (reading - tl.load(of_keys.clock + row * blocks_k + k, mask=here, other=0.0)).to(tl.float32)
        if bias is not None:
            q_place, k_place = of_head(place_q, b, blocks_q, 2) + q * 2, of_head(place_k, b, blocks_k, 2) + k * 2
            least = tl.load(k_place, mask=here, other=0) - tl.load(q_place + 1, mask=here, other=0)
            greatest = tl.load(k_place + 1, mask=here, other=0) - tl.load(q_place, mask=here, other=0)
            n, m = least - low, greatest - low
            at = tl.minimum(tl.maximum(n + window, 0), bias_entries + window)
            added = tl.load(of_head(highest, h, bias_entries + window + 1, 1) + at)
            if slopes is not None:  # a line is highest at either end
                table, line = of_head(bias, h, bias_entries, 1), of_head(slopes, h, 2, 1)
                added = tl.maximum(added, _beyond(table, bias_entries, line, n))
                added = tl.maximum(added, _beyond(table, bias_entries, line, m))
            bound += tl.where(greatest - least >= window, float("inf"), or_infinite(added))
        counts = here & ~(bound < tl.load(of_queries.lse + of_q + q, mask=here, other=0.0) + threshold)
        first = tl.minimum(first, tl.min(tl.where(counts, other, others), 0))
        last = tl.maximum(last, tl.max(tl.where(counts, other + 1, 0), 0))
    at = (row * tl.num_programs(0) + tl.program_id(0)) * 2
    tl.store(counted + at, first * SPAN)
    tl.store(counted + at + 1, last * SPAN)


@triton.jit
def _beyond(bias, entries, slopes, n):
    """A bias at entries n; beyond its ends it goes on along a line."""
    added = number(bias, entries, n)
    added += tl.load(slopes) * tl.maximum(-n, 0).to(tl.float32)
    return added + tl.load(slopes + 1) * tl.maximum(n - entries + 1, 0).to(tl.float32)
