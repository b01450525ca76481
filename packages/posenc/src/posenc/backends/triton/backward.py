"""The backward kernels: of queries, of keys, and of tables. Each writes what no other program writes, so gradients are
the same in every run."""

import triton
import triton.language as tl

from posenc.backends.triton.bounds import counted_of
from posenc.backends.triton.pieces import (
    LN2,
    LOG2E,
    by_distance,
    clock_of,
    ends,
    entry,
    far_clock,
    far_column,
    far_row,
    far_scores,
    last_of,
    lse_of,
    more,
    near_scores,
    of_vectors,
    part_of,
    product,
    put_rows,
    ranges,
    relu,
    rows,
    seen_alone,
    seen_of,
    with_vectors,
)
from posenc.backends.triton.tasks import LENGTHS


@triton.jit
def to_scores(ds, bare, c, FUNCTION: tl.constexpr):
    """The gradients of the sum of terms, of the scaled product of query and key, and of the factor c, given those of
    the scores."""
    terms, product, dc = ds, ds, ds
    if FUNCTION != 0:
        product = tl.where(bare <= 0, 0.0, ds * c)
        dc = ds * relu(bare) * LN2
    if FUNCTION == 2:
        terms = product
    return terms, product, dc


@triton.jit
def past_ends(pairs, n, entries):
    """For each row, the sums of pairs whose entries n are before and after the table, (rows,) each."""
    return tl.sum(tl.where(n < 0, pairs, 0.0), 1), tl.sum(tl.where(n > last_of(entries), pairs, 0.0), 1)


@triton.jit(do_not_specialize=LENGTHS)
def backward_deltas(
    out, dout, lse, dlse, delta, count, V: tl.constexpr, BLOCK_V: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """For each row, the product of the output and its gradient, less the gradient of the log-sum-exp."""
    i0 = tl.program_id(0) * ROWS
    i = i0 + tl.arange(0, ROWS)
    mine = i < count
    o = rows(out, V, i0, mine, V, ROWS, BLOCK_V).to(tl.float32)
    delta_i = tl.sum(o * rows(dout, V, i0, mine, V, ROWS, BLOCK_V).to(tl.float32), 1)
    if dlse is not None:
        seen = tl.load(lse + i, mask=mine, other=0.0) != -float("inf")
        delta_i -= tl.load(dlse + i, mask=mine & seen, other=0.0)
    tl.store(delta + i, delta_i, mask=mine)


@triton.jit(do_not_specialize=LENGTHS)
def backward_ends(
    x, x_batch, x_head, x_row, pasts, past, ends, heads, queries,
    W: tl.constexpr, BLOCK_W: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Of a block of queries of one head, the sum of rows x, each times its sums over the pairs beyond either end of a
    table, (programs, heads, 2, width)."""
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    i0 = tl.program_id(0) * ROWS
    i, d = i0 + tl.arange(0, ROWS), tl.arange(0, BLOCK_W)
    mine, at = i < queries, pasts + (b * heads + h) * queries + i
    x_i = rows(x + b * x_batch + h * x_head, x_row, i0, mine, W, ROWS, BLOCK_W).to(tl.float32)
    low, high = tl.load(at, mask=mine, other=0.0), tl.load(at + past, mask=mine, other=0.0)
    to = ends + ((b * tl.num_programs(0) + tl.program_id(0)) * heads + h) * 2 * W + d
    tl.store(to, tl.sum(low[:, None] * x_i, 0), mask=d < W)
    tl.store(to + W, tl.sum(high[:, None] * x_i, 0), mask=d < W)


@triton.jit(do_not_specialize=LENGTHS)
def backward_queries(
    q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, v, v_batch, v_head, v_row, dout, lse, delta,
    bias, bias_head, bias_entries, vectors, vectors_head, vectors_entries,
    values, values_head, values_entries, factor, factor_head, factor_entries, slopes, slopes_head,
    meeting, shift, query_clock, key_clock, tasks, tiles, counted, blocks, heads, groups, queries, keys, scale,
    dq, d_meeting, d_shift, d_query_clock, met_ends, out_ends,
    bias_past, slopes_past, vectors_past, values_past, factor_past, past,
    D: tl.constexpr, V: tl.constexpr, E: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_E: tl.constexpr,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr, HAS_RIGHT: tl.constexpr,
    NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head, as in `forward`: far pairs, and near ones unless they have vectors.

    It also writes each row's products with the ends of the vectors (``met_ends``) and of the values (``out_ends``), and
    its sums over the pairs beyond either end of a table, (2, rows) with a stride of ``past``."""
    task, h = tasks + tl.program_id(0) * 5, tl.program_id(1).to(tl.int64)
    b = (tl.load(task) + tl.program_id(2)).to(tl.int64)
    i0, stop = tl.load(task + 1), tl.minimum(tl.load(task + 2), tl.load(task + 1) + M)
    i = i0 + tl.arange(0, M)
    mine = i < stop
    row = b * heads + h
    at = row * queries + i
    k, v = k + b * k_batch + h // groups * k_head, v + b * v_batch + h // groups * v_head
    q_i = rows(q + b * q_batch + h * q_head, q_row, i0, mine, D, M, BLOCK_D)
    do = rows(dout + row * queries * V, V, i0, mine, V, M, BLOCK_V)
    lse_i = lse_of(lse, at, mine)
    delta_i = tl.load(delta + at, mask=mine, other=0.0)
    low, high, own, zero = None, None, None, None
    delta_low, delta_high = delta_i, delta_i
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
        tl.store(met_ends + at, low, mask=mine)
        tl.store(met_ends + past + at, high, mask=mine)
    if values is not None:
        values += h * values_head * V
        do_low, do_high = ends(do, values, values_entries, V, BLOCK_V)
        tl.store(out_ends + at, do_low, mask=mine)
        tl.store(out_ends + past + at, do_high, mask=mine)
        delta_low, delta_high = delta_i - do_low, delta_i - do_high
    if shift is not None:
        q_i = (q_i + entry(shift, h, D, BLOCK_D)[None, :]).to(q_i.dtype)
    if query_clock is not None:
        query_clock, key_clock = query_clock + row * queries, key_clock + row * keys
        zero = tl.load(query_clock + i0)
        own = clock_of(query_clock, i, mine, zero)
    acc = tl.zeros((M, BLOCK_D), tl.float32)
    # Sums over the pairs of a row beyond either end of a table: of all terms, of a bias, and of the factor.
    s_low, s_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    b_low, b_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    n_low, n_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    p_low, p_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    c_low, c_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    d_clock = tl.zeros((M,), tl.float32)
    from_i, to_i = counted_of(counted, blocks, row, i0, stop)
    for n in range(tl.load(task + 3), tl.load(task + 4)):
        tile = tiles + n * 10
        first, a, b_, c, d, last = ranges(
            tile, i0, stop, bias, bias_entries, vectors, vectors_entries, values, values_entries, factor,
            factor_entries, from_i, to_i, N, False,
        )  # fmt: skip
        row_low = far_row(low, own, bias, bias_entries, slopes, M, False)
        for j0 in range(a, b_, N):
            acc, s_low, n_low, p_low, c_low = _of_far_keys(
                acc, s_low, n_low, p_low, c_low, q_i, do, lse_i, delta_low, k, k_row, v, v_row, i0, j0, tile, scale,
                row_low, key_clock, zero, bias_entries, slopes, factor, factor_entries, slopes_past, values_past,
                factor_past, D, V, N, BLOCK_D, BLOCK_V, FUNCTION, PRECISION, False,
            )  # fmt: skip
        if HAS_RIGHT:
            row_high = far_row(high, own, bias, bias_entries, slopes, M, True)
            for j0 in range(c, d, N):
                acc, s_high, n_high, p_high, c_high = _of_far_keys(
                    acc, s_high, n_high, p_high, c_high, q_i, do, lse_i, delta_high, k, k_row, v, v_row, i0, j0, tile,
                    scale, row_high, key_clock, zero, bias_entries, slopes, factor, factor_entries, slopes_past,
                    values_past, factor_past, D, V, N, BLOCK_D, BLOCK_V, FUNCTION, PRECISION, True,
                )  # fmt: skip
        if (vectors is None) and (values is None):
            for part in range(3):
                from_, to = part_of(first, a, b_, c, d, last, part)
                for j0 in tl.range(from_, to, N, num_stages=NEAR_STAGES):
                    here = j0 + tl.arange(0, N) < to
                    k_j, v_j = rows(k, k_row, j0, here, D, N, BLOCK_D), rows(v, v_row, j0, here, V, N, BLOCK_V)
                    s, bare, factor_of, pair = near_scores(
                        product(q_i, tl.trans(k_j), PRECISION) * (scale * LOG2E), i0, j0, to, tile, None, own,
                        key_clock, zero, bias, bias_entries, slopes, factor, factor_entries, M, N, FUNCTION, False,
                    )  # fmt: skip
                    seen = seen_of(i0, j0, to, tile, M, N, False)
                    p = tl.where(seen, tl.exp2(s - lse_i[:, None]), 0.0)
                    dp = product(do, tl.trans(v_j), PRECISION) - delta_i[:, None]
                    ds, d_product, dc = to_scores(tl.where(seen, p * dp, 0.0), bare, factor_of, FUNCTION)
                    acc += product(d_product.to(k_j.dtype), k_j, PRECISION)
                    d_clock += tl.sum(ds, 1)
                    if bias_past is not None:
                        low_of, high_of = past_ends(ds, pair + tl.load(tile + 6), bias_entries)
                        b_low, b_high = b_low + low_of, b_high + high_of
                    if slopes_past is not None:
                        e = pair + tl.load(tile + 6)
                        n_low += tl.sum(ds * tl.maximum(-e, 0), 1)
                        n_high += tl.sum(ds * tl.maximum(e - last_of(bias_entries), 0), 1)
                    if factor_past is not None:
                        low_of, high_of = past_ends(dc, pair + tl.load(tile + 9), factor_entries)
                        c_low, c_high = c_low + low_of, c_high + high_of
    if slopes_past is not None:
        n_low += tl.arange(0, M) * s_low
        n_high -= tl.arange(0, M) * s_high
    acc *= scale
    if d_shift is not None:
        d_d = tl.arange(0, BLOCK_D)
        mine_of = (tl.program_id(0) * tl.num_programs(2) + tl.program_id(2)) * heads + h
        tl.store(d_shift + mine_of * D + d_d, tl.sum(acc, 0), mask=d_d < D)
    if vectors is not None:
        acc_x = s_low[:, None] * entry(vectors, 0, E, BLOCK_E)[None, :]
        acc_x += s_high[:, None] * entry(vectors, vectors_entries - 1, E, BLOCK_E)[None, :]
        if meeting is None:
            acc += acc_x * scale  # the same width, since the query itself is multiplied with the vectors
        elif d_meeting is not None:
            put_rows(d_meeting + row * queries * E, i0, mine, acc_x, E, M, BLOCK_E)
    put_rows(dq + row * queries * D, i0, mine, acc, D, M, BLOCK_D)
    if d_query_clock is not None:
        more(d_query_clock, d_clock + s_low + s_high, at, mine, False)
    if bias_past is not None:
        more(bias_past, b_low + s_low, at, mine, False)
        more(bias_past + past, b_high + s_high, at, mine, False)
    if slopes_past is not None:
        more(slopes_past, n_low, at, mine, False)
        more(slopes_past + past, n_high, at, mine, False)
    if vectors_past is not None:
        more(vectors_past, s_low, at, mine, False)
        more(vectors_past + past, s_high, at, mine, False)
    if values_past is not None:
        more(values_past, p_low, at, mine, False)
        more(values_past + past, p_high, at, mine, False)
    if factor_past is not None:
        more(factor_past, c_low, at, mine, False)
        more(factor_past + past, c_high, at, mine, False)


@triton.jit
def _of_far_keys(
    acc, s_sum, n_sum, p_sum, c_sum, q_i, do, lse_i, delta_i, k, k_row, v, v_row, i0, j0, tile, scale,
    row, key_clock, zero, bias_entries, slopes, factor, factor_entries, slopes_past, values_past, factor_past,
    D: tl.constexpr, V: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """What a block of keys far to one side adds to the gradients of queries, and to the sums over pairs beyond this end
    of the tables."""
    k_j, v_j = rows(k, k_row, j0, None, D, N, BLOCK_D), rows(v, v_row, j0, None, V, N, BLOCK_V)
    column = far_column(far_clock(key_clock, j0, zero, N), i0, j0, tile, bias_entries, slopes, N, RIGHT)
    s, by, rest, bare, factor_of = far_scores(
        product(q_i, tl.trans(k_j), PRECISION), scale * LOG2E, row, column, factor, factor_entries, FUNCTION, RIGHT,
        False,
    )  # fmt: skip
    p = tl.exp2(s * by + (rest - lse_i)[:, None])
    dp = product(do, tl.trans(v_j), PRECISION) - delta_i[:, None]
    ds, d_product, dc = to_scores(p * dp, bare, factor_of, FUNCTION)
    acc += product(d_product.to(k_j.dtype), k_j, PRECISION)
    s_sum += tl.sum(ds, 1)
    if slopes_past is not None:
        beyond = j0 - i0 + tl.load(tile + 6) - (last_of(bias_entries) if RIGHT else 0) + tl.arange(0, N)
        n_sum += tl.sum(ds * (beyond if RIGHT else -beyond)[None, :], 1)
    if values_past is not None:
        p_sum += tl.sum(p, 1)
    if factor_past is not None:
        c_sum += tl.sum(dc, 1)
    return acc, s_sum, n_sum, p_sum, c_sum


@triton.jit(do_not_specialize=LENGTHS)
def backward_keys(
    q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, v, v_batch, v_head, v_row, dout, lse, delta,
    bias, bias_head, bias_entries, vectors, vectors_head, vectors_entries,
    values, values_head, values_entries, factor, factor_head, factor_entries, slopes, slopes_head,
    meeting, shift, query_clock, key_clock, tasks, tiles, counted, blocks, heads, groups, queries, keys, scale,
    dk, dv, d_key_clock, met_ends, out_ends, past,
    D: tl.constexpr, V: tl.constexpr, E: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_E: tl.constexpr,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr, HAS_RIGHT: tl.constexpr,
    NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """A block of N keys of one key head, and all queries of its group that attend to them: far pairs, and near ones
    unless they have vectors."""
    task, of_keys = tasks + tl.program_id(0) * 5, tl.program_id(1).to(tl.int64)
    b = (tl.load(task) + tl.program_id(2)).to(tl.int64)
    j0, stop = tl.load(task + 1), tl.minimum(tl.load(task + 2), tl.load(task + 1) + N)
    j = j0 + tl.arange(0, N)
    mine = j < stop
    k_j = rows(k + b * k_batch + of_keys * k_head, k_row, j0, mine, D, N, BLOCK_D)
    v_j = rows(v + b * v_batch + of_keys * v_head, v_row, j0, mine, V, N, BLOCK_V)
    acc_k, acc_v = tl.zeros((N, BLOCK_D), tl.float32), tl.zeros((N, BLOCK_V), tl.float32)
    for g in range(groups):
        h = of_keys * groups + g
        row = b * heads + h
        d_clock = tl.zeros((N,), tl.float32)
        clock, zero = None, None
        of_query_clock, of_key_clock = None, None
        if query_clock is not None:
            of_query_clock, of_key_clock = query_clock + row * queries, key_clock + row * keys
            zero = tl.load(of_key_clock + j0)
            clock = clock_of(of_key_clock, j, mine, zero)
        of_bias, of_factor, of_slopes = None, None, None
        if bias is not None:
            of_bias = bias + h * bias_head
        if slopes is not None:
            of_slopes = slopes + h * slopes_head
        if factor is not None:
            of_factor = factor + h * factor_head
        from_j, to_j = counted_of(counted, blocks, row, j0, stop)
        for n in range(tl.load(task + 3), tl.load(task + 4)):
            tile = tiles + n * 10
            first, a, b_, c, d, last = ranges(
                tile, j0, stop, bias, bias_entries, vectors, vectors_entries, values, values_entries, factor,
                factor_entries, from_j, to_j, M, True,
            )  # fmt: skip
            for i0 in range(c, d, M):
                acc_k, acc_v, d_clock = _of_far_queries(
                    acc_k, acc_v, d_clock, q + b * q_batch + h * q_head, q_row, k_j, v_j, dout, lse, delta,
                    row * queries, i0, j0, tile, scale, clock, zero, of_query_clock, of_bias, bias_entries, of_slopes,
                    of_factor, factor_entries, vectors, met_ends, values, out_ends, past, shift, h,
                    D, V, M, N, BLOCK_D, BLOCK_V, FUNCTION, PRECISION, False,
                )  # fmt: skip
            if HAS_RIGHT:
                for i0 in range(a, b_, M):
                    acc_k, acc_v, d_clock = _of_far_queries(
                        acc_k, acc_v, d_clock, q + b * q_batch + h * q_head, q_row, k_j, v_j, dout, lse, delta,
                        row * queries, i0, j0, tile, scale, clock, zero, of_query_clock, of_bias, bias_entries,
                        of_slopes, of_factor, factor_entries, vectors, met_ends, values, out_ends, past, shift, h,
                        D, V, M, N, BLOCK_D, BLOCK_V, FUNCTION, PRECISION, True,
                    )  # fmt: skip
            if (vectors is None) and (values is None):
                until = tl.minimum(stop, tl.load(tile + 3))  # a tile may end within the block
                for part in range(3):
                    from_, to = part_of(first, a, b_, c, d, last, part)
                    for i0 in tl.range(from_, to, M, num_stages=NEAR_STAGES):
                        i = i0 + tl.arange(0, M)
                        here = i < to
                        q_i = rows(q + b * q_batch + h * q_head, q_row, i0, here, D, M, BLOCK_D)
                        do = rows(dout + row * queries * V, V, i0, here, V, M, BLOCK_V)
                        lse_i = lse_of(lse, row * queries + i, here)
                        delta_i = tl.load(delta + row * queries + i, mask=here, other=0.0)
                        own = None
                        if query_clock is not None:
                            own = clock_of(of_query_clock, i, here, zero)
                        if shift is not None:
                            q_i = (q_i + entry(shift, h, D, BLOCK_D)[None, :]).to(q_i.dtype)
                        s, bare, factor_of, _ = near_scores(
                            product(k_j, tl.trans(q_i), PRECISION) * (scale * LOG2E), i0, j0, until, tile, None, own,
                            of_key_clock, zero, of_bias, bias_entries, of_slopes, of_factor, factor_entries,
                            M, N, FUNCTION, True,
                        )  # fmt: skip
                        seen = seen_of(i0, j0, until, tile, M, N, True)
                        p = tl.where(seen, tl.exp2(s - lse_i[None, :]), 0.0)
                        acc_v += product(p.to(do.dtype), do, PRECISION)
                        dp = product(v_j, tl.trans(do), PRECISION) - delta_i[None, :]
                        ds, d_product, _ = to_scores(tl.where(seen, p * dp, 0.0), bare, factor_of, FUNCTION)
                        acc_k += product(d_product.to(q_i.dtype), q_i, PRECISION)
                        d_clock += tl.sum(ds, 1)
        if d_key_clock is not None:
            more(d_key_clock, -d_clock, row * keys + j, mine, False)
    put_rows(dk + (b * (heads // groups) + of_keys) * keys * D, j0, mine, acc_k * scale, D, N, BLOCK_D)
    put_rows(dv + (b * (heads // groups) + of_keys) * keys * V, j0, mine, acc_v, V, N, BLOCK_V)


@triton.jit
def _of_far_queries(
    acc_k, acc_v, d_clock, q, q_row, k_j, v_j, dout, lse, delta, row, i0, j0, tile, scale, clock, zero, query_clock,
    bias, bias_entries, slopes, factor, factor_entries, vectors, met_ends, values, out_ends, past, shift, h,
    D: tl.constexpr, V: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """What a block of queries far to one side adds to the gradients of keys, values and the cumulative feature."""
    i = i0 + tl.arange(0, M)
    q_i, do = rows(q, q_row, i0, None, D, M, BLOCK_D), rows(dout + row * V, V, i0, None, V, M, BLOCK_V)
    lse_i, delta_i = lse_of(lse, row + i, None), tl.load(delta + row + i)
    met, own = None, None
    if vectors is not None:
        met = tl.load(met_ends + (past if RIGHT else 0) + row + i)
    if values is not None:
        delta_i -= tl.load(out_ends + (past if RIGHT else 0) + row + i)
    if query_clock is not None:
        own = clock_of(query_clock, i, None, zero)
    if shift is not None:
        q_i = (q_i + entry(shift, h, D, BLOCK_D)[None, :]).to(q_i.dtype)
    s, by, rest, bare, c = far_scores(
        product(k_j, tl.trans(q_i), PRECISION), scale * LOG2E, far_row(met, own, bias, bias_entries, slopes, M, RIGHT),
        far_column(clock, i0, j0, tile, bias_entries, slopes, N, RIGHT), factor, factor_entries, FUNCTION, RIGHT, True,
    )  # fmt: skip
    p = tl.exp2(s * by + (rest - lse_i)[None, :])
    acc_v += product(p.to(do.dtype), do, PRECISION)
    dp = product(v_j, tl.trans(do), PRECISION) - delta_i[None, :]
    ds, d_product, _ = to_scores(p * dp, bare, c, FUNCTION)
    acc_k += product(d_product.to(q_i.dtype), q_i, PRECISION)
    return acc_k, acc_v, d_clock + tl.sum(ds, 1)


# -- near pairs with vectors by distance, and tables, in squares of B queries and B keys ------------------------------


@triton.jit(do_not_specialize=LENGTHS)
def backward_queries_near(
    q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, v, v_batch, v_head, v_row, dout, lse, delta,
    bias, bias_head, bias_entries, vectors, vectors_head, vectors_entries,
    values, values_head, values_entries, factor, factor_head, factor_entries, slopes, slopes_head,
    meeting, shift, query_clock, key_clock, tasks, tiles, counted, blocks, heads, groups, queries, keys, scale,
    far, dq, d_meeting, d_shift, d_query_clock,
    bias_past, slopes_past, vectors_past, values_past, factor_past, past,
    D: tl.constexpr, V: tl.constexpr, E: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_E: tl.constexpr,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The near pairs of B of the M queries of a block of `backward_queries`, whose gradients of queries are in ``far``;
    to other results it adds."""
    task, h = tasks + tl.program_id(0) // (M // B) * 5, tl.program_id(1).to(tl.int64)
    b = (tl.load(task) + tl.program_id(2)).to(tl.int64)
    block, end = tl.load(task + 1), tl.minimum(tl.load(task + 2), tl.load(task + 1) + M)  # of all M
    i0 = block + tl.program_id(0) % (M // B) * B
    i = i0 + tl.arange(0, B)
    mine = i < end
    row = b * heads + h
    at = row * queries + i
    k, v = k + b * k_batch + h // groups * k_head, v + b * v_batch + h // groups * v_head
    q_i = rows(q + b * q_batch + h * q_head, q_row, i0, mine, D, B, BLOCK_D)
    do = rows(dout + row * queries * V, V, i0, mine, V, B, BLOCK_V)
    lse_i = lse_of(lse, at, mine)
    delta_i = tl.load(delta + at, mask=mine, other=0.0)
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
    acc, acc_x = tl.zeros((B, BLOCK_D), tl.float32), tl.zeros((B, BLOCK_E), tl.float32)
    d_clock = tl.zeros((B,), tl.float32)
    b_low, b_high = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    n_low, n_high = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    x_low, x_high = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    p_low, p_high = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    c_low, c_high = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
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
                met, window = None, j0 - i0 - (B - 1)
                if vectors is not None:
                    met = with_vectors(
                        x, x_scale, vectors, vectors_entries, window + tl.load(tile + 7),
                        bias, bias_entries, slopes, window + tl.load(tile + 6), E, B, BLOCK_E, PRECISION,
                    )  # fmt: skip
                s, bare, factor_of, pair = near_scores(
                    product(q_i, tl.trans(k_j), PRECISION) * (scale * LOG2E), i0, j0, to, tile, met, own,
                    key_clock, zero, bias if vectors is None else None, bias_entries, slopes,
                    factor, factor_entries, B, B, FUNCTION, False,
                )  # fmt: skip
                p = tl.exp2(s - lse_i[:, None])
                dp = product(do, tl.trans(v_j), PRECISION) - delta_i[:, None]
                if values is not None:
                    dp += with_vectors(
                        do, 1.0, values, values_entries, window + tl.load(tile + 8),
                        None, 0, None, 0, V, B, BLOCK_V, PRECISION,
                    )  # fmt: skip
                p, ds = seen_alone(p, p * dp, i0, j0, to, tile, B, B)
                if values_past is not None:
                    low_of, high_of = past_ends(p, pair + tl.load(tile + 8), values_entries)
                    p_low, p_high = p_low + low_of, p_high + high_of
                ds, d_product, dc = to_scores(ds, bare, factor_of, FUNCTION)
                acc += product(d_product.to(k_j.dtype), k_j, PRECISION)
                d_clock += tl.sum(ds, 1)
                if bias_past is not None:
                    low_of, high_of = past_ends(ds, pair + tl.load(tile + 6), bias_entries)
                    b_low, b_high = b_low + low_of, b_high + high_of
                if slopes_past is not None:
                    e = pair + tl.load(tile + 6)
                    n_low += tl.sum(ds * tl.maximum(-e, 0), 1)
                    n_high += tl.sum(ds * tl.maximum(e - last_of(bias_entries), 0), 1)
                if factor_past is not None:
                    low_of, high_of = past_ends(dc, pair + tl.load(tile + 9), factor_entries)
                    c_low, c_high = c_low + low_of, c_high + high_of
                if vectors_past is not None:
                    low_of, high_of = past_ends(ds, pair + tl.load(tile + 7), vectors_entries)
                    x_low, x_high = x_low + low_of, x_high + high_of
                if vectors is not None:
                    acc_x = of_vectors(
                        acc_x, ds, vectors, vectors_entries, window + tl.load(tile + 7), x.dtype, E, B, BLOCK_E,
                        PRECISION,
                    )  # fmt: skip
    acc *= scale
    if d_shift is not None:
        d_d = tl.arange(0, BLOCK_D)
        mine_of = (tl.program_id(0) * tl.num_programs(2) + tl.program_id(2)) * heads + h
        tl.store(d_shift + mine_of * D + d_d, tl.sum(acc, 0), mask=d_d < D)
    if vectors is not None:
        if meeting is None:
            acc += acc_x * scale
        elif d_meeting is not None:
            acc_x += rows(d_meeting + row * queries * E, E, i0, mine, E, B, BLOCK_E)
            put_rows(d_meeting + row * queries * E, i0, mine, acc_x, E, B, BLOCK_E)
    acc += rows(far + row * queries * D, D, i0, mine, D, B, BLOCK_D)
    put_rows(dq + row * queries * D, i0, mine, acc, D, B, BLOCK_D)
    if d_query_clock is not None:
        more(d_query_clock, d_clock, at, mine, True)
    if bias_past is not None:
        more(bias_past, b_low, at, mine, True)
        more(bias_past + past, b_high, at, mine, True)
    if slopes_past is not None:
        more(slopes_past, n_low, at, mine, True)
        more(slopes_past + past, n_high, at, mine, True)
    if vectors_past is not None:
        more(vectors_past, x_low, at, mine, True)
        more(vectors_past + past, x_high, at, mine, True)
    if values_past is not None:
        more(values_past, p_low, at, mine, True)
        more(values_past + past, p_high, at, mine, True)
    if factor_past is not None:
        more(factor_past, c_low, at, mine, True)
        more(factor_past + past, c_high, at, mine, True)


@triton.jit(do_not_specialize=LENGTHS)
def backward_keys_near(
    q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, v, v_batch, v_head, v_row, dout, lse, delta,
    bias, bias_head, bias_entries, vectors, vectors_head, vectors_entries,
    values, values_head, values_entries, factor, factor_head, factor_entries, slopes, slopes_head,
    meeting, shift, query_clock, key_clock, tasks, tiles, counted, blocks, heads, groups, queries, keys, scale,
    far_k, far_v, dk, dv, d_key_clock,
    D: tl.constexpr, V: tl.constexpr, E: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_E: tl.constexpr,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The near pairs of B of the N keys of a block of `backward_keys`, which left its gradients in ``far_k`` and
    ``far_v``."""
    task, of_keys = tasks + tl.program_id(0) // (N // B) * 5, tl.program_id(1).to(tl.int64)
    b = (tl.load(task) + tl.program_id(2)).to(tl.int64)
    block, end = tl.load(task + 1), tl.minimum(tl.load(task + 2), tl.load(task + 1) + N)
    j0 = block + tl.program_id(0) % (N // B) * B
    j = j0 + tl.arange(0, B)
    mine = j < end
    k_j = rows(k + b * k_batch + of_keys * k_head, k_row, j0, mine, D, B, BLOCK_D)
    v_j = rows(v + b * v_batch + of_keys * v_head, v_row, j0, mine, V, B, BLOCK_V)
    acc_k, acc_v = tl.zeros((B, BLOCK_D), tl.float32), tl.zeros((B, BLOCK_V), tl.float32)
    for g in range(groups):
        h = of_keys * groups + g
        row = b * heads + h
        d_clock = tl.zeros((B,), tl.float32)
        zero, of_query_clock, of_key_clock = None, None, None
        if query_clock is not None:
            of_query_clock, of_key_clock = query_clock + row * queries, key_clock + row * keys
            zero = tl.load(of_key_clock + block)
        of_bias, of_factor, of_slopes = None, None, None
        if bias is not None:
            of_bias = bias + h * bias_head
        if slopes is not None:
            of_slopes = slopes + h * slopes_head
        if factor is not None:
            of_factor = factor + h * factor_head
        from_j, to_j = counted_of(counted, blocks, row, block, end)
        for n in range(tl.load(task + 3), tl.load(task + 4)):
            tile = tiles + n * 10
            first, a, b_, c, d, last = ranges(
                tile, block, end, bias, bias_entries, vectors, vectors_entries, values, values_entries, factor,
                factor_entries, from_j, to_j, M, True,
            )  # fmt: skip
            least, most = tl.load(tile + 4), tl.load(tile + 5)
            until = tl.minimum(end, tl.load(tile + 3))  # a tile may end within the block
            for part in range(3):
                from_, to = part_of(first, a, b_, c, d, last, part)
                from_, to = tl.maximum(from_, j0 - most), tl.minimum(to, j0 + B - least)
                for i0 in range(from_, to, B):
                    i = i0 + tl.arange(0, B)
                    here = i < to
                    q_i = rows(q + b * q_batch + h * q_head, q_row, i0, here, D, B, BLOCK_D)
                    do = rows(dout + row * queries * V, V, i0, here, V, B, BLOCK_V)
                    lse_i = lse_of(lse, row * queries + i, here)
                    delta_i = tl.load(delta + row * queries + i, mask=here, other=0.0)
                    met, own, window = None, None, j0 - i0 - (B - 1)
                    if vectors is not None:
                        x, x_scale = q_i, scale * LOG2E
                        if meeting is not None:
                            x, x_scale = rows(meeting + row * queries * E, E, i0, here, E, B, BLOCK_E), LOG2E
                        met = with_vectors(
                            x, x_scale, vectors + h * vectors_head * E, vectors_entries, window + tl.load(tile + 7),
                            of_bias, bias_entries, of_slopes, window + tl.load(tile + 6), E, B, BLOCK_E, PRECISION,
                        )  # fmt: skip
                    if query_clock is not None:
                        own = clock_of(of_query_clock, i, here, zero)
                    if shift is not None:
                        q_i = (q_i + entry(shift, h, D, BLOCK_D)[None, :]).to(q_i.dtype)
                    s, bare, factor_of, _ = near_scores(
                        product(q_i, tl.trans(k_j), PRECISION) * (scale * LOG2E), i0, j0, until, tile, met, own,
                        of_key_clock, zero, of_bias if vectors is None else None, bias_entries, of_slopes,
                        of_factor, factor_entries, B, B, FUNCTION, False,
                    )  # fmt: skip
                    p = tl.exp2(s - lse_i[:, None])
                    dp = product(do, tl.trans(v_j), PRECISION) - delta_i[:, None]
                    if values is not None:
                        dp += with_vectors(
                            do, 1.0, values + h * values_head * V, values_entries, window + tl.load(tile + 8),
                            None, 0, None, 0, V, B, BLOCK_V, PRECISION,
                        )  # fmt: skip
                    p, ds = seen_alone(p, p * dp, i0, j0, until, tile, B, B)
                    acc_v += product(tl.trans(p.to(do.dtype)), do, PRECISION)
                    ds, d_product, _ = to_scores(ds, bare, factor_of, FUNCTION)
                    acc_k += product(tl.trans(d_product.to(q_i.dtype)), q_i, PRECISION)
                    d_clock += tl.sum(ds, 0)
        if d_key_clock is not None:
            more(d_key_clock, -d_clock, row * keys + j, mine, True)
    of = b * (heads // groups) + of_keys
    acc_k = acc_k * scale + rows(far_k + of * keys * D, D, j0, mine, D, B, BLOCK_D)
    acc_v += rows(far_v + of * keys * V, V, j0, mine, V, B, BLOCK_V)
    put_rows(dk + of * keys * D, j0, mine, acc_k, D, B, BLOCK_D)
    put_rows(dv + of * keys * V, j0, mine, acc_v, V, B, BLOCK_V)


@triton.jit(do_not_specialize=LENGTHS)
def backward_tables(
    q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, v, v_batch, v_head, v_row, dout, lse, delta,
    bias, bias_head, bias_entries, vectors, vectors_head, vectors_entries,
    values, values_head, values_entries, factor, factor_head, factor_entries, slopes, slopes_head,
    meeting, shift, query_clock, key_clock, tasks, tiles, counted, blocks, heads, groups, queries, keys, scale,
    d_bias, d_vectors, d_values, d_factor, least_r, low, lead, count, batch,
    D: tl.constexpr, V: tl.constexpr, E: tl.constexpr, B: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_E: tl.constexpr,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The sums over pairs by distance, of one window of 2 B - 1 distances of one head, over every so many blocks.

    Window w is of the blocks whose first query and last key are at the distance least_r + (w + 1) B - 1: both halves
    of it are in row 2 w of what it writes and in the next, (programs, heads, 2 windows, B[, width]). ``low`` is the
    distance of the first entry of the table number ``lead``, from which distances are known."""
    # Windows of the greatest distances first: of text that is causal, these have the most pairs.
    w, h = tl.num_programs(1) - 1 - tl.program_id(1), tl.program_id(0).to(tl.int64)
    of_window = (tl.program_id(2) * heads + h) * tl.num_programs(1) + w
    d_low = least_r + w * B  # the distance of the window's first column
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
    if d_bias is not None:
        bias_left, bias_right = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    if d_factor is not None:
        factor_left, factor_right = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    if d_vectors is not None:
        x_left, x_right = tl.zeros((B, BLOCK_E), tl.float32), tl.zeros((B, BLOCK_E), tl.float32)
    if d_values is not None:
        v_left, v_right = tl.zeros((B, BLOCK_V), tl.float32), tl.zeros((B, BLOCK_V), tl.float32)
    for t in range(tl.program_id(2), count * batch, tl.num_programs(2)):
        task = tasks + t // batch * 5
        b = (tl.load(task) + t % batch).to(tl.int64)
        i0, end = tl.load(task + 1), tl.load(task + 2)
        i = i0 + tl.arange(0, B)
        mine = i < end
        row = b * heads + h
        q_i = rows(q + b * q_batch + h * q_head, q_row, i0, mine, D, B, BLOCK_D)
        do = rows(dout + row * queries * V, V, i0, mine, V, B, BLOCK_V)
        lse_i = lse_of(lse, row * queries + i, mine)
        delta_i = tl.load(delta + row * queries + i, mask=mine, other=0.0)
        x, x_scale, own, zero, of_key_clock = q_i, scale * LOG2E, None, None, None
        if meeting is not None:
            x, x_scale = rows(meeting + row * queries * E, E, i0, mine, E, B, BLOCK_E), LOG2E
        if shift is not None:
            q_i = (q_i + entry(shift, h, D, BLOCK_D)[None, :]).to(q_i.dtype)
        if query_clock is not None:
            of_key_clock = key_clock + row * keys
            zero = tl.load(query_clock + row * queries + i0)
            own = clock_of(query_clock + row * queries, i, mine, zero)
        from_i, to_i = counted_of(counted, blocks, row, i0, end)
        for n in range(tl.load(task + 3), tl.load(task + 4)):
            tile = tiles + n * 10
            j0 = i0 + (B - 1) + d_low - low - tl.load(tile + lead)
            first, last = tl.load(tile + 2), tl.load(tile + 3)
            low_i, high_i = tl.maximum(i0, tl.load(tile)), tl.minimum(end, tl.load(tile + 1)) - 1
            first, last = (
                tl.maximum(first, low_i + tl.load(tile + 4)), tl.minimum(last, high_i + tl.load(tile + 5) + 1)
            )  # fmt: skip
            if (j0 < tl.minimum(last, to_i)) & (j0 + B > tl.maximum(first, from_i)):
                j = j0 + tl.arange(0, B)
                here = (j >= first) & (j < last)
                k_j = rows(k + b * k_batch + h // groups * k_head, k_row, j0, here, D, B, BLOCK_D)
                v_j = rows(v + b * v_batch + h // groups * v_head, v_row, j0, here, V, B, BLOCK_V)
                met, window = None, j0 - i0 - (B - 1)
                if vectors is not None:
                    met = with_vectors(
                        x, x_scale, vectors, vectors_entries, window + tl.load(tile + 7),
                        bias, bias_entries, slopes, window + tl.load(tile + 6), E, B, BLOCK_E, PRECISION,
                    )  # fmt: skip
                s, bare, factor_of, _ = near_scores(
                    product(q_i, tl.trans(k_j), PRECISION) * (scale * LOG2E), i0, j0, last, tile, met, own,
                    of_key_clock, zero, bias if vectors is None else None, bias_entries, slopes,
                    factor, factor_entries, B, B, FUNCTION, False,
                )  # fmt: skip
                p = tl.exp2(s - lse_i[:, None])
                dp = product(do, tl.trans(v_j), PRECISION) - delta_i[:, None]
                if values is not None:
                    dp += with_vectors(
                        do, 1.0, values, values_entries, window + tl.load(tile + 8),
                        None, 0, None, 0, V, B, BLOCK_V, PRECISION,
                    )  # fmt: skip
                p, ds = seen_alone(p, p * dp, i0, j0, last, tile, B, B)
                ds, _, dc = to_scores(ds, bare, factor_of, FUNCTION)
                if (d_bias is not None) or (d_vectors is not None):
                    of_left, of_right = by_distance(ds, B)
                    if d_bias is not None:
                        bias_left += tl.sum(of_left, 0)
                        bias_right += tl.sum(of_right, 0)
                    if d_vectors is not None:
                        x_left += product(tl.trans(of_left).to(x.dtype), x, PRECISION)
                        x_right += product(tl.trans(of_right).to(x.dtype), x, PRECISION)
                if d_factor is not None:
                    of_left, of_right = by_distance(dc, B)
                    factor_left += tl.sum(of_left, 0)
                    factor_right += tl.sum(of_right, 0)
                if d_values is not None:
                    of_left, of_right = by_distance(p, B)
                    v_left += product(tl.trans(of_left).to(do.dtype), do, PRECISION)
                    v_right += product(tl.trans(of_right).to(do.dtype), do, PRECISION)
    e = tl.arange(0, B)
    at = of_window * 2 * B
    if d_bias is not None:
        tl.store(d_bias + at + e, bias_left)
        tl.store(d_bias + at + B + e, bias_right)
    if d_factor is not None:
        tl.store(d_factor + at + e, factor_left)
        tl.store(d_factor + at + B + e, factor_right)
    if d_vectors is not None:
        x_scale = 1.0
        if meeting is None:
            x_scale = scale
        put_rows(d_vectors + at * E, 0, e < B, x_left * x_scale, E, B, BLOCK_E)
        put_rows(d_vectors + (at + B) * E, 0, e < B, x_right * x_scale, E, B, BLOCK_E)
    if d_values is not None:
        put_rows(d_values + at * V, 0, e < B, v_left, V, B, BLOCK_V)
        put_rows(d_values + (at + B) * V, 0, e < B, v_right, V, B, BLOCK_V)
