"""The forward kernels: a block of queries of one head, and all keys that they attend to."""

import triton
import triton.language as tl

from posenc.backends.triton.bounds import counted_of
from posenc.backends.triton.pieces import (
    LN2,
    LOG2E,
    clock_of,
    ends,
    entry,
    far_clock,
    far_column,
    far_row,
    far_scores,
    is_whole,
    near_scores,
    of_vectors,
    part_of,
    product,
    put_rows,
    ranges,
    rows,
    seen_of,
    weigh,
    with_vectors,
)
from posenc.backends.triton.tasks import LENGTHS


@triton.jit(do_not_specialize=LENGTHS)
def forward(
    q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, v, v_batch, v_head, v_row, out, lse,
    bias, bias_head, bias_entries, vectors, vectors_head, vectors_entries,
    values, values_head, values_entries, factor, factor_head, factor_entries, slopes, slopes_head,
    meeting, shift, query_clock, key_clock, tasks, tiles, counted, blocks, heads, groups, queries, keys, scale,
    D: tl.constexpr, V: tl.constexpr, E: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_E: tl.constexpr,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr, HAS_RIGHT: tl.constexpr,
    NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """Far pairs, and near ones too unless they have vectors: those `forward_near` adds."""
    task, h = tasks + tl.program_id(0) * 5, tl.program_id(1).to(tl.int64)
    b = (tl.load(task) + tl.program_id(2)).to(tl.int64)
    i0, stop = tl.load(task + 1), tl.minimum(tl.load(task + 2), tl.load(task + 1) + M)
    i = i0 + tl.arange(0, M)
    mine = i < stop
    row = b * heads + h  # of (batch, heads)
    k, v = k + b * k_batch + h // groups * k_head, v + b * v_batch + h // groups * v_head
    q_i = rows(q + b * q_batch + h * q_head, q_row, i0, mine, D, M, BLOCK_D)
    # Values per row are computed once. Branches on None are resolved at compile time.
    low, high, own, zero = None, None, None, None
    if bias is not None:
        bias += h * bias_head
    if slopes is not None:
        slopes += h * slopes_head
    if factor is not None:
        factor += h * factor_head
    if vectors is not None:
        vectors += h * vectors_head * E
        if meeting is not None:
            x = rows(meeting + row * queries * E, E, i0, mine, E, M, BLOCK_E)
            low, high = ends(x, vectors, vectors_entries, E, BLOCK_E)
            low, high = low * LOG2E, high * LOG2E
        else:
            low, high = ends(q_i, vectors, vectors_entries, E, BLOCK_E)
            low, high = low * (scale * LOG2E), high * (scale * LOG2E)
    if shift is not None:
        q_i = (q_i + entry(shift, h, D, BLOCK_D)[None, :]).to(q_i.dtype)
    if query_clock is not None:
        query_clock, key_clock = query_clock + row * queries, key_clock + row * keys
        zero = tl.load(query_clock + i0)
        own = clock_of(query_clock, i, mine, zero)
    m_i, l_i = tl.full((M,), -float("inf"), tl.float32), tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, BLOCK_V), tl.float32)
    l_low, l_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)  # beyond the ends of the values
    from_i, to_i = counted_of(counted, blocks, row, i0, stop)
    for n in range(tl.load(task + 3), tl.load(task + 4)):
        tile = tiles + n * 10
        first, a, b_, c, d, last = ranges(
            tile, i0, stop, bias, bias_entries, vectors, vectors_entries, values, values_entries, factor,
            factor_entries, from_i, to_i, N, False,
        )  # fmt: skip
        row_low = far_row(low, own, bias, bias_entries, slopes, M, False)
        for j0 in range(a, b_, N):
            acc, m_i, l_i, l_low, l_high = _of_far_keys(
                acc, m_i, l_i, l_low, l_high, q_i, k, k_row, v, v_row, i0, j0, tile, scale, row_low, key_clock, zero,
                bias_entries, slopes, factor, factor_entries, values, D, V, N, BLOCK_D, BLOCK_V, FUNCTION, PRECISION,
                False,
            )  # fmt: skip
        if HAS_RIGHT:
            row_high = far_row(high, own, bias, bias_entries, slopes, M, True)
            for j0 in range(c, d, N):
                acc, m_i, l_i, l_high, l_low = _of_far_keys(
                    acc, m_i, l_i, l_high, l_low, q_i, k, k_row, v, v_row, i0, j0, tile, scale, row_high, key_clock,
                    zero, bias_entries, slopes, factor, factor_entries, values, D, V, N, BLOCK_D, BLOCK_V, FUNCTION,
                    PRECISION, True,
                )  # fmt: skip
        if (vectors is None) and (values is None):
            for part in range(3):
                from_, to = part_of(first, a, b_, c, d, last, part)
                for j0 in tl.range(from_, to, N, num_stages=NEAR_STAGES):
                    here = j0 + tl.arange(0, N) < to
                    k_j, v_j = rows(k, k_row, j0, here, D, N, BLOCK_D), rows(v, v_row, j0, here, V, N, BLOCK_V)
                    s, _, _, _ = near_scores(
                        product(q_i, tl.trans(k_j), PRECISION) * (scale * LOG2E), i0, j0, to, tile, None, own,
                        key_clock, zero, bias, bias_entries, slopes, factor, factor_entries, M, N, FUNCTION, False,
                    )  # fmt: skip
                    s = tl.where(seen_of(i0, j0, to, tile, M, N, False), s, -float("inf"))
                    p, m_i, l_i, fade = weigh(s, 1.0, 0.0, m_i, l_i)
                    acc = acc * fade[:, None] + product(p.to(v_j.dtype), v_j, PRECISION)
    if values is not None:
        acc += l_low[:, None] * entry(values + h * values_head * V, 0, V, BLOCK_V)[None, :]
        acc += l_high[:, None] * entry(values + h * values_head * V, values_entries - 1, V, BLOCK_V)[None, :]
    l_safe = tl.where(l_i == 0, 1.0, l_i)  # fully masked rows give zeros
    put_rows(out + row * queries * V, i0, mine, acc / l_safe[:, None], V, M, BLOCK_V)
    tl.store(lse + row * queries + i, tl.where(l_i == 0, -float("inf"), (m_i + tl.log2(l_safe)) * LN2), mask=mine)


@triton.jit
def _of_far_keys(
    acc, m_i, l_i, l_here, l_there, q_i, k, k_row, v, v_row, i0, j0, tile, scale, row, key_clock, zero,
    bias_entries, slopes, factor, factor_entries, values,
    D: tl.constexpr, V: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """A block of keys far to one side. ``l_here`` and ``l_there`` are the weights beyond the ends of the values, on
    this side and on the other."""
    k_j, v_j = rows(k, k_row, j0, None, D, N, BLOCK_D), rows(v, v_row, j0, None, V, N, BLOCK_V)
    column = far_column(far_clock(key_clock, j0, zero, N), i0, j0, tile, bias_entries, slopes, N, RIGHT)
    s, by, rest, _, _ = far_scores(
        product(q_i, tl.trans(k_j), PRECISION), scale * LOG2E, row, column, factor, factor_entries, FUNCTION, RIGHT,
        False,
    )  # fmt: skip
    p, m_i, l_i, fade = weigh(s, by, rest, m_i, l_i)
    acc = acc * fade[:, None] + product(p.to(v_j.dtype), v_j, PRECISION)
    if values is not None:
        l_here, l_there = l_here * fade + tl.sum(p, 1), l_there * fade
    return acc, m_i, l_i, l_here, l_there


@triton.jit(do_not_specialize=LENGTHS)
def forward_near(
    q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, v, v_batch, v_head, v_row, far, out, lse,
    bias, bias_head, bias_entries, vectors, vectors_head, vectors_entries,
    values, values_head, values_entries, factor, factor_head, factor_entries, slopes, slopes_head,
    meeting, shift, query_clock, key_clock, tasks, tiles, counted, blocks, heads, groups, queries, keys, scale,
    D: tl.constexpr, V: tl.constexpr, E: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_E: tl.constexpr,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The near pairs of B of the M queries of a block of `forward`, which goes on where that ended: ``far`` and ``lse``
    are its output and log-sum-exp."""
    task, h = tasks + tl.program_id(0) // (M // B) * 5, tl.program_id(1).to(tl.int64)
    b = (tl.load(task) + tl.program_id(2)).to(tl.int64)
    block, end = tl.load(task + 1), tl.minimum(tl.load(task + 2), tl.load(task + 1) + M)  # of all M
    i0 = block + tl.program_id(0) % (M // B) * B
    i = i0 + tl.arange(0, B)
    mine = i < end
    row = b * heads + h
    k, v = k + b * k_batch + h // groups * k_head, v + b * v_batch + h // groups * v_head
    q_i = rows(q + b * q_batch + h * q_head, q_row, i0, mine, D, B, BLOCK_D)
    x, x_scale, own, zero = q_i, scale * LOG2E, None, None
    if bias is not None:
        bias += h * bias_head
    if slopes is not None:
        slopes += h * slopes_head
    if factor is not None:
        factor += h * factor_head
    if values is not None:
        values += h * values_head * V
    if vectors is not None:
        vectors += h * vectors_head * E
        if meeting is not None:
            x, x_scale = rows(meeting + row * queries * E, E, i0, mine, E, B, BLOCK_E), LOG2E
    if shift is not None:
        q_i = (q_i + entry(shift, h, D, BLOCK_D)[None, :]).to(q_i.dtype)
    if query_clock is not None:
        query_clock, key_clock = query_clock + row * queries, key_clock + row * keys
        zero = tl.load(query_clock + block)
        own = clock_of(query_clock, i, mine, zero)
    m_i = tl.load(lse + row * queries + i, mask=mine, other=-float("inf")) * LOG2E
    l_i = tl.where(m_i == -float("inf"), 0.0, 1.0)
    acc = rows(far + row * queries * V, V, i0, mine, V, B, BLOCK_V)
    from_i, to_i = counted_of(counted, blocks, row, block, end)
    for n in range(tl.load(task + 3), tl.load(task + 4)):
        tile = tiles + n * 10
        first, a, b_, c, d, last = ranges(
            tile, block, end, bias, bias_entries, vectors, vectors_entries, values, values_entries, factor,
            factor_entries, from_i, to_i, N, False,
        )  # fmt: skip
        least, most = tl.load(tile + 4), tl.load(tile + 5)
        for part in range(3):
            from_, to = part_of(first, a, b_, c, d, last, part)
            from_, to = tl.maximum(from_, i0 + least), tl.minimum(to, i0 + B + most)
            for j0 in range(from_, to, B):
                here = j0 + tl.arange(0, B) < to
                k_j, v_j = rows(k, k_row, j0, here, D, B, BLOCK_D), rows(v, v_row, j0, here, V, B, BLOCK_V)
                met, at = None, j0 - i0 - (B - 1)
                if vectors is not None:
                    met = with_vectors(
                        x, x_scale, vectors, vectors_entries, at + tl.load(tile + 7),
                        bias, bias_entries, slopes, at + tl.load(tile + 6), E, B, BLOCK_E, PRECISION,
                    )  # fmt: skip
                s, _, _, _ = near_scores(
                    product(q_i, tl.trans(k_j), PRECISION) * (scale * LOG2E), i0, j0, to, tile, met, own,
                    key_clock, zero, bias if vectors is None else None, bias_entries, slopes,
                    factor, factor_entries, B, B, FUNCTION, False,
                )  # fmt: skip
                if not is_whole(i0, j0, to, tile, B, B):
                    s = tl.where(seen_of(i0, j0, to, tile, B, B, False), s, -float("inf"))
                p, m_i, l_i, fade = weigh(s, 1.0, 0.0, m_i, l_i)
                acc = acc * fade[:, None] + product(p.to(v_j.dtype), v_j, PRECISION)
                if values is not None:
                    acc = of_vectors(
                        acc, p, values, values_entries, at + tl.load(tile + 8), v_j.dtype, V, B, BLOCK_V, PRECISION,
                    )  # fmt: skip
    l_safe = tl.where(l_i == 0, 1.0, l_i)
    put_rows(out + row * queries * V, i0, mine, acc / l_safe[:, None], V, B, BLOCK_V)
    tl.store(lse + row * queries + i, tl.where(l_i == 0, -float("inf"), (m_i + tl.log2(l_safe)) * LN2), mask=mine)
