"""The kernels that find which blocks count: upper bounds of scores and lower bounds of log-sum-exps, in natural units.

The score of a query's own key is a lower bound of the row's log-sum-exp, and no score exceeds scale |q_i| |k_j| plus
the most that terms add. NaN counts as infinite, so that what is NaN is computed.
"""

import triton
import triton.language as tl

from posenc.backends.triton.pieces import entry, number, rows
from posenc.backends.triton.tasks import LENGTHS, SPAN

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
    q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, lse, most, more, least, clock,
    bias, bias_head, bias_entries, longest, meeting, shift, query_clock, key_clock,
    heads, groups, queries, keys, own, low, scale,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Of a block of queries: ``most``, the norm times the scale; ``more``, what vectors of norm ``longest`` add; the
    greatest ``clock``; and ``least``, the lowest bound of a log-sum-exp: of the scores with their own keys, j = i +
    ``own``, or of ``lse``, if it is known."""
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    i0 = tl.program_id(0) * SPAN
    i = i0 + tl.arange(0, SPAN)
    mine = i < queries
    row = b * heads + h
    at = row * tl.num_programs(0) + tl.program_id(0)
    q_i = rows(q + b * q_batch + h * q_head, q_row, i0, mine, D, SPAN, BLOCK_D)
    lift = tl.zeros((SPAN,), tl.float32)
    if longest is not None:
        length = tl.load(longest + h)
        if meeting is not None:
            x = rows(meeting + row * queries * E, E, i0, mine, E, SPAN, BLOCK_E)
            lift = norms(x.to(tl.float32)) * length
        else:
            lift = norms(q_i.to(tl.float32)) * (length * scale)
        tl.store(more + at, tl.max(or_infinite(lift), 0))
    if shift is not None:
        q_i = (q_i + entry(shift, h, D, BLOCK_D)[None, :]).to(q_i.dtype)
    x = q_i.to(tl.float32)
    tl.store(most + at, tl.max(or_infinite(norms(x)), 0) * scale)
    if query_clock is not None:
        reading = tl.load(query_clock + row * queries + i, mask=mine, other=-float("inf"))
        tl.store(clock + at, tl.max(or_infinite(reading), 0))
    if lse is not None:
        score = tl.load(lse + row * queries + i, mask=mine, other=float("inf"))
        score = tl.where(score == -float("inf"), float("inf"), score)  # a fully masked row has no weights
    else:
        k_i = rows(k + b * k_batch + h // groups * k_head, k_row, i0 + own, mine, D, SPAN, BLOCK_D)
        score = tl.sum(x * k_i.to(tl.float32), 1) * scale - lift
        if bias is not None:
            score += number(bias + h * bias_head, bias_entries, -low)
        if query_clock is not None:
            apart = reading - tl.load(key_clock + row * keys + i + own, mask=mine, other=0.0)
            score += apart.to(tl.float32)
        score = tl.where(mine, score, float("inf"))
    tl.store(least + at, -tl.max(or_infinite(-score), 0))


@triton.jit(do_not_specialize=LENGTHS)
def bounds_keys(
    k, k_batch, k_head, k_row, most, clock, key_clock, groups, keys,
    D: tl.constexpr, BLOCK_D: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Of a block of keys: ``most``, the greatest norm; and for every query head of the group the lowest ``clock``."""
    of_keys, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    j0 = tl.program_id(0) * SPAN
    j = j0 + tl.arange(0, SPAN)
    row = b * tl.num_programs(1) + of_keys
    k_j = rows(k + b * k_batch + of_keys * k_head, k_row, j0, j < keys, D, SPAN, BLOCK_D)
    at = row * tl.num_programs(0) + tl.program_id(0)
    tl.store(most + at, tl.max(or_infinite(norms(k_j.to(tl.float32))), 0))
    if key_clock is not None:
        for g in range(groups):
            head = row * groups + g
            reading = tl.load(key_clock + head * keys + j, mask=j < keys, other=float("inf"))
            lowest = -tl.max(or_infinite(-reading), 0)
            tl.store(clock + head * tl.num_programs(0) + tl.program_id(0), lowest)


@triton.jit(do_not_specialize=LENGTHS)
def bounds_counted(
    counted, most_q, more_q, least_q, clock_q, most_k, clock_k, blocks_q, blocks_k,
    place_q, place_k, place_q_row, place_k_row,
    bias, bias_head, bias_entries, highest, highest_head, slopes, slopes_head, low, groups, threshold,
    SPAN: tl.constexpr, C: tl.constexpr, OF_KEYS: tl.constexpr,
):  # fmt: skip
    """The first of the keys that a block of queries must be computed with, and the one after the last: of blocks in
    which a score may be above the threshold, relative to a log-sum-exp. OF_KEYS: the first and last queries for a block
    of keys.

    ``highest`` are the maxima of a bias over the 2 SPAN - 1 distances of two contiguous blocks, from those on that are
    all before the table up to those that are all beyond it."""
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    row = b * tl.num_programs(1) + h
    of_q, of_k = row * blocks_q, (b * (tl.num_programs(1) // groups) + h // groups) * blocks_k
    others = blocks_q if OF_KEYS else blocks_k
    window = 2 * SPAN - 1
    first, last = others, 0
    for from_ in range(0, others, C):
        other = from_ + tl.arange(0, C)
        here = other < others
        mine = tl.zeros((C,), tl.int32) + tl.program_id(0)
        q, k = (other, mine) if OF_KEYS else (mine, other)
        bound = tl.load(most_q + of_q + q, mask=here, other=0.0) * tl.load(most_k + of_k + k, mask=here, other=0.0)
        if more_q is not None:
            bound += tl.load(more_q + of_q + q, mask=here, other=0.0)
        if clock_q is not None:
            reading = tl.load(clock_q + of_q + q, mask=here, other=0.0)
            bound += (reading - tl.load(clock_k + row * blocks_k + k, mask=here, other=0.0)).to(tl.float32)
        if bias is not None:
            q_place, k_place = place_q + b * place_q_row + q * 2, place_k + b * place_k_row + k * 2
            least = tl.load(k_place, mask=here, other=0) - tl.load(q_place + 1, mask=here, other=0)
            greatest = tl.load(k_place + 1, mask=here, other=0) - tl.load(q_place, mask=here, other=0)
            n, m = least - low, greatest - low
            at = tl.minimum(tl.maximum(n + window, 0), bias_entries + window)
            added = tl.load(highest + h * highest_head + at)
            if slopes is not None:  # a line is highest at either end
                line = slopes + h * slopes_head
                added = tl.maximum(added, _beyond(bias + h * bias_head, bias_entries, line, n))
                added = tl.maximum(added, _beyond(bias + h * bias_head, bias_entries, line, m))
            bound += tl.where(greatest - least >= window, float("inf"), or_infinite(added))
        counts = here & ~(bound < tl.load(least_q + of_q + q, mask=here, other=0.0) + threshold)
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
