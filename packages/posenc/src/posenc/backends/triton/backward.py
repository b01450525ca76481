"""The backward kernels: of queries, of keys, and of tables. Each writes what no other program writes, so gradients are
the same in every run."""

import triton
import triton.language as tl

from posenc.backends.triton.arguments import LENGTHS, Lines
from posenc.backends.triton.bounds import counted_of
from posenc.backends.triton.pieces import (
    LN2,
    LOG2E,
    block_of,
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
    met_with,
    met_with_values,
    more,
    near_scores,
    of_head,
    of_row,
    of_vectors,
    part_of,
    product,
    put_rows,
    ranges,
    relu,
    rows,
    seen_alone,
    seen_of,
    tiles_of,
    zeros,
)


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
    x, pasts, past, ends, heads, queries,
    W: tl.constexpr, BLOCK_W: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Of a block of queries of one head, the sum of rows x, each times its sums over the pairs beyond either end of a
    table, (programs, heads, 2, width)."""
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    i0 = tl.program_id(0) * ROWS
    i, d = i0 + tl.arange(0, ROWS), tl.arange(0, BLOCK_W)
    mine, at = i < queries, pasts + (b * heads + h) * queries + i
    x_i = rows(of_row(x, b, h), x.row, i0, mine, W, ROWS, BLOCK_W).to(tl.float32)
    low, high = tl.load(at, mask=mine, other=0.0), tl.load(at + past, mask=mine, other=0.0)
    to = ends + ((b * tl.num_programs(0) + tl.program_id(0)) * heads + h) * 2 * W + d
    tl.store(to, tl.sum(low[:, None] * x_i, 0), mask=d < W)
    tl.store(to + W, tl.sum(high[:, None] * x_i, 0), mask=d < W)


@triton.jit(do_not_specialize=LENGTHS)
def backward_queries(
    q, k, v, incoming, terms, bias_entries, vectors_entries, values_entries, factor_entries, work, blocks, heads,
    queries, keys, gradients, met_ends, out_ends, pasts, past,
    W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, HAS_RIGHT: tl.constexpr, NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head, as in `forward`: far pairs, and near ones unless they have vectors.

    It also writes each row's products with the ends of the vectors (``met_ends``) and of the values (``out_ends``), and
    its sums over the pairs beyond either end of a table, (2, rows) with a stride of ``past``."""
    b, h, i0, stop = block_of(work, M, M)
    i = i0 + tl.arange(0, M)
    mine = i < stop
    row = b * heads.heads + h
    at = row * queries + i
    k_x, v_x = of_row(k, b, h // heads.groups), of_row(v, b, h // heads.groups)
    q_i = rows(of_row(q, b, h), q.row, i0, mine, W.D, M, W.BLOCK_D)
    do = rows(incoming.dout + row * queries * W.V, W.V, i0, mine, W.V, M, W.BLOCK_V)
    lse_i = lse_of(incoming.lse, at, mine)
    delta_i = tl.load(incoming.delta + at, mask=mine, other=0.0)
    low, high, own, zero, key_clock = None, None, None, None, None
    delta_low, delta_high = delta_i, delta_i
    lines = Lines(
        of_head(terms.bias, h, bias_entries, 1), bias_entries,
        of_head(terms.vectors, h, vectors_entries, W.E), vectors_entries,
        of_head(terms.value_vectors, h, values_entries, W.V), values_entries,
        of_head(terms.factor, h, factor_entries, 1), factor_entries, of_head(terms.slopes, h, 2, 1),
    )  # fmt: skip
    if terms.vectors is not None:
        if terms.meeting is not None:
            x = rows(terms.meeting + row * queries * W.E, W.E, i0, mine, W.E, M, W.BLOCK_E)
            low, high = ends(x, lines.vectors, vectors_entries, W.E, W.BLOCK_E)
            low, high = low * LOG2E, high * LOG2E
        else:
            low, high = ends(q_i, lines.vectors, vectors_entries, W.E, W.BLOCK_E)
            low, high = low * (heads.scale * LOG2E), high * (heads.scale * LOG2E)
        tl.store(met_ends + at, low, mask=mine)
        tl.store(met_ends + past + at, high, mask=mine)
    if terms.value_vectors is not None:
        do_low, do_high = ends(do, lines.value_vectors, values_entries, W.V, W.BLOCK_V)
        tl.store(out_ends + at, do_low, mask=mine)
        tl.store(out_ends + past + at, do_high, mask=mine)
        delta_low, delta_high = delta_i - do_low, delta_i - do_high
    if terms.shift is not None:
        q_i = (q_i + entry(terms.shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i.dtype)
    if terms.query_clock is not None:
        query_clock, key_clock = terms.query_clock + row * queries, terms.key_clock + row * keys
        zero = tl.load(query_clock + i0)
        own = clock_of(query_clock, i, mine, zero)
    acc = zeros(M, W.BLOCK_D)
    # Sums over the pairs of a row beyond either end of a table: of all terms, of a bias, and of the factor.
    s_low, s_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    b_low, b_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    n_low, n_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    p_low, p_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    c_low, c_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    d_clock = tl.zeros((M,), tl.float32)
    from_i, to_i = counted_of(work.counted, blocks, row, i0, stop)
    first_tile, last_tile = tiles_of(work, M, M)
    for n in range(first_tile, last_tile):
        tile = work.tiles + n * 10
        first, a, b_, c, d, last = ranges(tile, i0, stop, lines, from_i, to_i, N, False)
        row_low = far_row(low, own, lines, M, False)
        for j0 in range(a, b_, N):
            acc, s_low, n_low, p_low, c_low = _of_far_keys(
                acc, s_low, n_low, p_low, c_low, q_i, do, lse_i, delta_low, k_x, k.row, v_x, v.row, i0, j0, tile,
                heads.scale, row_low, key_clock, zero, lines, pasts, W, N, False,
            )  # fmt: skip
        if HAS_RIGHT:
            row_high = far_row(high, own, lines, M, True)
            for j0 in range(c, d, N):
                acc, s_high, n_high, p_high, c_high = _of_far_keys(
                    acc, s_high, n_high, p_high, c_high, q_i, do, lse_i, delta_high, k_x, k.row, v_x, v.row, i0, j0,
                    tile, heads.scale, row_high, key_clock, zero, lines, pasts, W, N, True,
                )  # fmt: skip
        if (terms.vectors is None) and (terms.value_vectors is None):
            for part in range(3):
                from_, to = part_of(first, a, b_, c, d, last, part)
                for j0 in tl.range(from_, to, N, num_stages=NEAR_STAGES):
                    here = j0 + tl.arange(0, N) < to
                    k_j = rows(k_x, k.row, j0, here, W.D, N, W.BLOCK_D)
                    v_j = rows(v_x, v.row, j0, here, W.V, N, W.BLOCK_V)
                    s, bare, factor_of, pair = near_scores(
                        product(q_i, tl.trans(k_j), W.PRECISION) * (heads.scale * LOG2E), i0, j0, to, tile, None, own,
                        key_clock, zero, lines, M, N, W.FUNCTION, False,
                    )  # fmt: skip
                    seen = seen_of(i0, j0, to, tile, M, N, False)
                    p = tl.where(seen, tl.exp2(s - lse_i[:, None]), 0.0)
                    dp = product(do, tl.trans(v_j), W.PRECISION) - delta_i[:, None]
                    ds, d_product, dc = to_scores(tl.where(seen, p * dp, 0.0), bare, factor_of, W.FUNCTION)
                    acc += product(d_product.to(k_j.dtype), k_j, W.PRECISION)
                    d_clock += tl.sum(ds, 1)
                    if pasts.bias is not None:
                        low_of, high_of = past_ends(ds, pair + tl.load(tile + 6), bias_entries)
                        b_low, b_high = b_low + low_of, b_high + high_of
                    if pasts.slopes is not None:
                        e = pair + tl.load(tile + 6)
                        n_low += tl.sum(ds * tl.maximum(-e, 0), 1)
                        n_high += tl.sum(ds * tl.maximum(e - last_of(bias_entries), 0), 1)
                    if pasts.factor is not None:
                        low_of, high_of = past_ends(dc, pair + tl.load(tile + 9), factor_entries)
                        c_low, c_high = c_low + low_of, c_high + high_of
    if pasts.slopes is not None:
        n_low += tl.arange(0, M) * s_low
        n_high -= tl.arange(0, M) * s_high
    acc *= heads.scale
    if gradients.shift is not None:
        d_d = tl.arange(0, W.BLOCK_D)
        mine_of = (tl.program_id(0) * tl.num_programs(2) + tl.program_id(2)) * heads.heads + h
        tl.store(gradients.shift + mine_of * W.D + d_d, tl.sum(acc, 0), mask=d_d < W.D)
    if terms.vectors is not None:
        acc_x = s_low[:, None] * entry(lines.vectors, 0, W.E, W.BLOCK_E)[None, :]
        acc_x += s_high[:, None] * entry(lines.vectors, vectors_entries - 1, W.E, W.BLOCK_E)[None, :]
        if terms.meeting is None:
            acc += acc_x * heads.scale  # the same width, since the query itself is multiplied with the vectors
        elif gradients.meeting is not None:
            put_rows(gradients.meeting + row * queries * W.E, i0, mine, acc_x, W.E, M, W.BLOCK_E)
    put_rows(gradients.query + row * queries * W.D, i0, mine, acc, W.D, M, W.BLOCK_D)
    if gradients.query_clock is not None:
        more(gradients.query_clock, d_clock + s_low + s_high, at, mine, False)
    if pasts.bias is not None:
        more(pasts.bias, b_low + s_low, at, mine, False)
        more(pasts.bias + past, b_high + s_high, at, mine, False)
    if pasts.slopes is not None:
        more(pasts.slopes, n_low, at, mine, False)
        more(pasts.slopes + past, n_high, at, mine, False)
    if pasts.vectors is not None:
        more(pasts.vectors, s_low, at, mine, False)
        more(pasts.vectors + past, s_high, at, mine, False)
    if pasts.value_vectors is not None:
        more(pasts.value_vectors, p_low, at, mine, False)
        more(pasts.value_vectors + past, p_high, at, mine, False)
    if pasts.factor is not None:
        more(pasts.factor, c_low, at, mine, False)
        more(pasts.factor + past, c_high, at, mine, False)


@triton.jit
def _of_far_keys(
    acc, s_sum, n_sum, p_sum, c_sum, q_i, do, lse_i, delta_i, k, k_row, v, v_row, i0, j0, tile, scale, row, key_clock,
    zero, lines, pasts, W: tl.constexpr, N: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """What a block of keys far to one side adds to the gradients of queries, and to the sums over pairs beyond this end
    of the tables."""
    k_j, v_j = rows(k, k_row, j0, None, W.D, N, W.BLOCK_D), rows(v, v_row, j0, None, W.V, N, W.BLOCK_V)
    column = far_column(far_clock(key_clock, j0, zero, N), i0, j0, tile, lines, N, RIGHT)
    s, by, rest, bare, factor_of = far_scores(
        product(q_i, tl.trans(k_j), W.PRECISION), scale * LOG2E, row, column, lines, W.FUNCTION, RIGHT, False
    )
    p = tl.exp2(s * by + (rest - lse_i)[:, None])
    dp = product(do, tl.trans(v_j), W.PRECISION) - delta_i[:, None]
    ds, d_product, dc = to_scores(p * dp, bare, factor_of, W.FUNCTION)
    acc += product(d_product.to(k_j.dtype), k_j, W.PRECISION)
    s_sum += tl.sum(ds, 1)
    if pasts.slopes is not None:
        beyond = j0 - i0 + tl.load(tile + 6) - (last_of(lines.bias_entries) if RIGHT else 0) + tl.arange(0, N)
        n_sum += tl.sum(ds * (beyond if RIGHT else -beyond)[None, :], 1)
    if pasts.value_vectors is not None:
        p_sum += tl.sum(p, 1)
    if pasts.factor is not None:
        c_sum += tl.sum(dc, 1)
    return acc, s_sum, n_sum, p_sum, c_sum


@triton.jit(do_not_specialize=LENGTHS)
def backward_keys(
    q, k, v, incoming, terms, bias_entries, vectors_entries, values_entries, factor_entries, work, blocks, heads,
    queries, keys, dk, dv, d_key_clock, met_ends, out_ends, past,
    W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, HAS_RIGHT: tl.constexpr, NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """A block of N keys of one key head, and all queries of its group that attend to them: far pairs, and near ones
    unless they have vectors."""
    b, of_keys, j0, stop = block_of(work, N, N)
    j = j0 + tl.arange(0, N)
    mine = j < stop
    k_j = rows(of_row(k, b, of_keys), k.row, j0, mine, W.D, N, W.BLOCK_D)
    v_j = rows(of_row(v, b, of_keys), v.row, j0, mine, W.V, N, W.BLOCK_V)
    acc_k, acc_v = zeros(N, W.BLOCK_D), zeros(N, W.BLOCK_V)
    for g in range(heads.groups):
        h = of_keys * heads.groups + g
        row = b * heads.heads + h
        d_clock = tl.zeros((N,), tl.float32)
        clock, zero = None, None
        of_query_clock, of_key_clock = None, None
        if terms.query_clock is not None:
            of_query_clock, of_key_clock = terms.query_clock + row * queries, terms.key_clock + row * keys
            zero = tl.load(of_key_clock + j0)
            clock = clock_of(of_key_clock, j, mine, zero)
        lines = Lines(
            of_head(terms.bias, h, bias_entries, 1), bias_entries,
            of_head(terms.vectors, h, vectors_entries, W.E), vectors_entries,
            of_head(terms.value_vectors, h, values_entries, W.V), values_entries,
            of_head(terms.factor, h, factor_entries, 1), factor_entries, of_head(terms.slopes, h, 2, 1),
        )  # fmt: skip
        from_j, to_j = counted_of(work.counted, blocks, row, j0, stop)
        first_tile, last_tile = tiles_of(work, N, N)
        for n in range(first_tile, last_tile):
            tile = work.tiles + n * 10
            first, a, b_, c, d, last = ranges(tile, j0, stop, lines, from_j, to_j, M, True)
            for i0 in range(c, d, M):
                acc_k, acc_v, d_clock = _of_far_queries(
                    acc_k, acc_v, d_clock, of_row(q, b, h), q.row, k_j, v_j, incoming, row * queries, i0, j0, tile,
                    heads.scale, clock, zero, of_query_clock, lines, met_ends, out_ends, past, terms.shift, h,
                    W, M, N, False,
                )  # fmt: skip
            if HAS_RIGHT:
                for i0 in range(a, b_, M):
                    acc_k, acc_v, d_clock = _of_far_queries(
                        acc_k, acc_v, d_clock, of_row(q, b, h), q.row, k_j, v_j, incoming, row * queries, i0, j0, tile,
                        heads.scale, clock, zero, of_query_clock, lines, met_ends, out_ends, past, terms.shift, h,
                        W, M, N, True,
                    )  # fmt: skip
            if (terms.vectors is None) and (terms.value_vectors is None):
                until = tl.minimum(stop, tl.load(tile + 3))  # a tile may end within the block
                for part in range(3):
                    from_, to = part_of(first, a, b_, c, d, last, part)
                    for i0 in tl.range(from_, to, M, num_stages=NEAR_STAGES):
                        i = i0 + tl.arange(0, M)
                        here = i < to
                        q_i = rows(of_row(q, b, h), q.row, i0, here, W.D, M, W.BLOCK_D)
                        do = rows(incoming.dout + row * queries * W.V, W.V, i0, here, W.V, M, W.BLOCK_V)
                        lse_i = lse_of(incoming.lse, row * queries + i, here)
                        delta_i = tl.load(incoming.delta + row * queries + i, mask=here, other=0.0)
                        own = None
                        if terms.query_clock is not None:
                            own = clock_of(of_query_clock, i, here, zero)
                        if terms.shift is not None:
                            q_i = (q_i + entry(terms.shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i.dtype)
                        s, bare, factor_of, _ = near_scores(
                            product(k_j, tl.trans(q_i), W.PRECISION) * (heads.scale * LOG2E), i0, j0, until, tile, None,
                            own, of_key_clock, zero, lines, M, N, W.FUNCTION, True,
                        )  # fmt: skip
                        seen = seen_of(i0, j0, until, tile, M, N, True)
                        p = tl.where(seen, tl.exp2(s - lse_i[None, :]), 0.0)
                        acc_v += product(p.to(do.dtype), do, W.PRECISION)
                        dp = product(v_j, tl.trans(do), W.PRECISION) - delta_i[None, :]
                        ds, d_product, _ = to_scores(tl.where(seen, p * dp, 0.0), bare, factor_of, W.FUNCTION)
                        acc_k += product(d_product.to(q_i.dtype), q_i, W.PRECISION)
                        d_clock += tl.sum(ds, 1)
        if d_key_clock is not None:
            more(d_key_clock, -d_clock, row * keys + j, mine, False)
    of = b * (heads.heads // heads.groups) + of_keys
    put_rows(dk + of * keys * W.D, j0, mine, acc_k * heads.scale, W.D, N, W.BLOCK_D)
    put_rows(dv + of * keys * W.V, j0, mine, acc_v, W.V, N, W.BLOCK_V)


@triton.jit
def _of_far_queries(
    acc_k, acc_v, d_clock, q, q_row, k_j, v_j, incoming, row, i0, j0, tile, scale, clock, zero, query_clock, lines,
    met_ends, out_ends, past, shift, h, W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """What a block of queries far to one side adds to the gradients of keys, values and the cumulative feature."""
    i = i0 + tl.arange(0, M)
    q_i = rows(q, q_row, i0, None, W.D, M, W.BLOCK_D)
    do = rows(incoming.dout + row * W.V, W.V, i0, None, W.V, M, W.BLOCK_V)
    lse_i, delta_i = lse_of(incoming.lse, row + i, None), tl.load(incoming.delta + row + i)
    met, own = None, None
    if lines.vectors is not None:
        met = tl.load(met_ends + (past if RIGHT else 0) + row + i)
    if lines.value_vectors is not None:
        delta_i -= tl.load(out_ends + (past if RIGHT else 0) + row + i)
    if query_clock is not None:
        own = clock_of(query_clock, i, None, zero)
    if shift is not None:
        q_i = (q_i + entry(shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i.dtype)
    s, by, rest, bare, c = far_scores(
        product(k_j, tl.trans(q_i), W.PRECISION), scale * LOG2E, far_row(met, own, lines, M, RIGHT),
        far_column(clock, i0, j0, tile, lines, N, RIGHT), lines, W.FUNCTION, RIGHT, True,
    )  # fmt: skip
    p = tl.exp2(s * by + (rest - lse_i)[None, :])
    acc_v += product(p.to(do.dtype), do, W.PRECISION)
    dp = product(v_j, tl.trans(do), W.PRECISION) - delta_i[None, :]
    ds, d_product, _ = to_scores(p * dp, bare, c, W.FUNCTION)
    acc_k += product(d_product.to(q_i.dtype), q_i, W.PRECISION)
    return acc_k, acc_v, d_clock + tl.sum(ds, 1)


# -- near pairs with vectors by distance, and tables, in squares of B queries and B keys ------------------------------


@triton.jit(do_not_specialize=LENGTHS)
def backward_queries_near(
    q, k, v, incoming, terms, bias_entries, vectors_entries, values_entries, factor_entries, work, blocks, heads,
    queries, keys, far, gradients, pasts, past,
    W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The near pairs of B of the M queries of a block of `backward_queries`, whose gradients of queries are in ``far``;
    to other results it adds."""
    b, h, block, end = block_of(work, M, B)  # of all M
    i0 = block + tl.program_id(0) % (M // B) * B
    i = i0 + tl.arange(0, B)
    mine = i < end
    row = b * heads.heads + h
    at = row * queries + i
    k_x, v_x = of_row(k, b, h // heads.groups), of_row(v, b, h // heads.groups)
    q_i = rows(of_row(q, b, h), q.row, i0, mine, W.D, B, W.BLOCK_D)
    do = rows(incoming.dout + row * queries * W.V, W.V, i0, mine, W.V, B, W.BLOCK_V)
    lse_i = lse_of(incoming.lse, at, mine)
    delta_i = tl.load(incoming.delta + at, mask=mine, other=0.0)
    x, x_scale, own, zero, key_clock = q_i, heads.scale * LOG2E, None, None, None
    lines = Lines(
        of_head(terms.bias, h, bias_entries, 1), bias_entries,
        of_head(terms.vectors, h, vectors_entries, W.E), vectors_entries,
        of_head(terms.value_vectors, h, values_entries, W.V), values_entries,
        of_head(terms.factor, h, factor_entries, 1), factor_entries, of_head(terms.slopes, h, 2, 1),
    )  # fmt: skip
    if terms.meeting is not None:
        x, x_scale = rows(terms.meeting + row * queries * W.E, W.E, i0, mine, W.E, B, W.BLOCK_E), LOG2E
    if terms.shift is not None:
        q_i = (q_i + entry(terms.shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i.dtype)
    if terms.query_clock is not None:
        query_clock, key_clock = terms.query_clock + row * queries, terms.key_clock + row * keys
        zero = tl.load(query_clock + block)
        own = clock_of(query_clock, i, mine, zero)
    acc, acc_x = zeros(B, W.BLOCK_D), zeros(B, W.BLOCK_E)
    d_clock = tl.zeros((B,), tl.float32)
    b_low, b_high = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    n_low, n_high = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    x_low, x_high = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    p_low, p_high = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    c_low, c_high = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    from_i, to_i = counted_of(work.counted, blocks, row, block, end)
    first_tile, last_tile = tiles_of(work, M, B)
    for n in range(first_tile, last_tile):
        tile = work.tiles + n * 10
        first, a, b_, c, d, last = ranges(tile, block, end, lines, from_i, to_i, N, False)
        least, most = tl.load(tile + 4), tl.load(tile + 5)
        for part in range(3):
            from_, to = part_of(first, a, b_, c, d, last, part)
            from_, to = tl.maximum(from_, i0 + least), tl.minimum(to, i0 + B + most)
            for j0 in range(from_, to, B):
                here = j0 + tl.arange(0, B) < to
                k_j = rows(k_x, k.row, j0, here, W.D, B, W.BLOCK_D)
                v_j = rows(v_x, v.row, j0, here, W.V, B, W.BLOCK_V)
                window = j0 - i0 - (B - 1)
                met = met_with(x, x_scale, lines, window, tile, B, W.E, W.BLOCK_E, W.PRECISION)
                s, bare, factor_of, pair = near_scores(
                    product(q_i, tl.trans(k_j), W.PRECISION) * (heads.scale * LOG2E), i0, j0, to, tile, met, own,
                    key_clock, zero, lines, B, B, W.FUNCTION, False,
                )  # fmt: skip
                p = tl.exp2(s - lse_i[:, None])
                dp = product(do, tl.trans(v_j), W.PRECISION) - delta_i[:, None]
                if terms.value_vectors is not None:
                    dp += met_with_values(do, lines, window, tile, B, W.V, W.BLOCK_V, W.PRECISION)
                p, ds = seen_alone(p, p * dp, i0, j0, to, tile, B, B)
                if pasts.value_vectors is not None:
                    low_of, high_of = past_ends(p, pair + tl.load(tile + 8), values_entries)
                    p_low, p_high = p_low + low_of, p_high + high_of
                ds, d_product, dc = to_scores(ds, bare, factor_of, W.FUNCTION)
                acc += product(d_product.to(k_j.dtype), k_j, W.PRECISION)
                d_clock += tl.sum(ds, 1)
                if pasts.bias is not None:
                    low_of, high_of = past_ends(ds, pair + tl.load(tile + 6), bias_entries)
                    b_low, b_high = b_low + low_of, b_high + high_of
                if pasts.slopes is not None:
                    e = pair + tl.load(tile + 6)
                    n_low += tl.sum(ds * tl.maximum(-e, 0), 1)
                    n_high += tl.sum(ds * tl.maximum(e - last_of(bias_entries), 0), 1)
                if pasts.factor is not None:
                    low_of, high_of = past_ends(dc, pair + tl.load(tile + 9), factor_entries)
                    c_low, c_high = c_low + low_of, c_high + high_of
                if pasts.vectors is not None:
                    low_of, high_of = past_ends(ds, pair + tl.load(tile + 7), vectors_entries)
                    x_low, x_high = x_low + low_of, x_high + high_of
                if terms.vectors is not None:
                    acc_x = of_vectors(
                        acc_x, ds, lines.vectors, vectors_entries, window + tl.load(tile + 7), x.dtype, W.E, B,
                        W.BLOCK_E, W.PRECISION,
                    )  # fmt: skip
    acc *= heads.scale
    if gradients.shift is not None:
        d_d = tl.arange(0, W.BLOCK_D)
        mine_of = (tl.program_id(0) * tl.num_programs(2) + tl.program_id(2)) * heads.heads + h
        tl.store(gradients.shift + mine_of * W.D + d_d, tl.sum(acc, 0), mask=d_d < W.D)
    if terms.vectors is not None:
        if terms.meeting is None:
            acc += acc_x * heads.scale
        elif gradients.meeting is not None:
            acc_x += rows(gradients.meeting + row * queries * W.E, W.E, i0, mine, W.E, B, W.BLOCK_E)
            put_rows(gradients.meeting + row * queries * W.E, i0, mine, acc_x, W.E, B, W.BLOCK_E)
    acc += rows(far + row * queries * W.D, W.D, i0, mine, W.D, B, W.BLOCK_D)
    put_rows(gradients.query + row * queries * W.D, i0, mine, acc, W.D, B, W.BLOCK_D)
    if gradients.query_clock is not None:
        more(gradients.query_clock, d_clock, at, mine, True)
    if pasts.bias is not None:
        more(pasts.bias, b_low, at, mine, True)
        more(pasts.bias + past, b_high, at, mine, True)
    if pasts.slopes is not None:
        more(pasts.slopes, n_low, at, mine, True)
        more(pasts.slopes + past, n_high, at, mine, True)
    if pasts.vectors is not None:
        more(pasts.vectors, x_low, at, mine, True)
        more(pasts.vectors + past, x_high, at, mine, True)
    if pasts.value_vectors is not None:
        more(pasts.value_vectors, p_low, at, mine, True)
        more(pasts.value_vectors + past, p_high, at, mine, True)
    if pasts.factor is not None:
        more(pasts.factor, c_low, at, mine, True)
        more(pasts.factor + past, c_high, at, mine, True)


@triton.jit(do_not_specialize=LENGTHS)
def backward_keys_near(
    q, k, v, incoming, terms, bias_entries, vectors_entries, values_entries, factor_entries, work, blocks, heads,
    queries, keys, far_k, far_v, dk, dv, d_key_clock,
    W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The near pairs of B of the N keys of a block of `backward_keys`, which left its gradients in ``far_k`` and
    ``far_v``."""
    b, of_keys, block, end = block_of(work, N, B)
    j0 = block + tl.program_id(0) % (N // B) * B
    j = j0 + tl.arange(0, B)
    mine = j < end
    k_j = rows(of_row(k, b, of_keys), k.row, j0, mine, W.D, B, W.BLOCK_D)
    v_j = rows(of_row(v, b, of_keys), v.row, j0, mine, W.V, B, W.BLOCK_V)
    acc_k, acc_v = zeros(B, W.BLOCK_D), zeros(B, W.BLOCK_V)
    for g in range(heads.groups):
        h = of_keys * heads.groups + g
        row = b * heads.heads + h
        d_clock = tl.zeros((B,), tl.float32)
        zero, of_query_clock, of_key_clock = None, None, None
        if terms.query_clock is not None:
            of_query_clock, of_key_clock = terms.query_clock + row * queries, terms.key_clock + row * keys
            zero = tl.load(of_key_clock + block)
        lines = Lines(
            of_head(terms.bias, h, bias_entries, 1), bias_entries,
            of_head(terms.vectors, h, vectors_entries, W.E), vectors_entries,
            of_head(terms.value_vectors, h, values_entries, W.V), values_entries,
            of_head(terms.factor, h, factor_entries, 1), factor_entries, of_head(terms.slopes, h, 2, 1),
        )  # fmt: skip
        from_j, to_j = counted_of(work.counted, blocks, row, block, end)
        first_tile, last_tile = tiles_of(work, N, B)
        for n in range(first_tile, last_tile):
            tile = work.tiles + n * 10
            first, a, b_, c, d, last = ranges(tile, block, end, lines, from_j, to_j, M, True)
            least, most = tl.load(tile + 4), tl.load(tile + 5)
            until = tl.minimum(end, tl.load(tile + 3))  # a tile may end within the block
            for part in range(3):
                from_, to = part_of(first, a, b_, c, d, last, part)
                from_, to = tl.maximum(from_, j0 - most), tl.minimum(to, j0 + B - least)
                for i0 in range(from_, to, B):
                    i = i0 + tl.arange(0, B)
                    here = i < to
                    q_i = rows(of_row(q, b, h), q.row, i0, here, W.D, B, W.BLOCK_D)
                    do = rows(incoming.dout + row * queries * W.V, W.V, i0, here, W.V, B, W.BLOCK_V)
                    lse_i = lse_of(incoming.lse, row * queries + i, here)
                    delta_i = tl.load(incoming.delta + row * queries + i, mask=here, other=0.0)
                    own, window = None, j0 - i0 - (B - 1)
                    x, x_scale = q_i, heads.scale * LOG2E
                    if terms.meeting is not None:
                        x = rows(terms.meeting + row * queries * W.E, W.E, i0, here, W.E, B, W.BLOCK_E)
                        x_scale = LOG2E
                    met = met_with(x, x_scale, lines, window, tile, B, W.E, W.BLOCK_E, W.PRECISION)
                    if terms.query_clock is not None:
                        own = clock_of(of_query_clock, i, here, zero)
                    if terms.shift is not None:
                        q_i = (q_i + entry(terms.shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i.dtype)
                    s, bare, factor_of, _ = near_scores(
                        product(q_i, tl.trans(k_j), W.PRECISION) * (heads.scale * LOG2E), i0, j0, until, tile, met, own,
                        of_key_clock, zero, lines, B, B, W.FUNCTION, False,
                    )  # fmt: skip
                    p = tl.exp2(s - lse_i[:, None])
                    dp = product(do, tl.trans(v_j), W.PRECISION) - delta_i[:, None]
                    if terms.value_vectors is not None:
                        dp += met_with_values(do, lines, window, tile, B, W.V, W.BLOCK_V, W.PRECISION)
                    p, ds = seen_alone(p, p * dp, i0, j0, until, tile, B, B)
                    acc_v += product(tl.trans(p.to(do.dtype)), do, W.PRECISION)
                    ds, d_product, _ = to_scores(ds, bare, factor_of, W.FUNCTION)
                    acc_k += product(tl.trans(d_product.to(q_i.dtype)), q_i, W.PRECISION)
                    d_clock += tl.sum(ds, 0)
        if d_key_clock is not None:
            more(d_key_clock, -d_clock, row * keys + j, mine, True)
    of = b * (heads.heads // heads.groups) + of_keys
    acc_k = acc_k * heads.scale + rows(far_k + of * keys * W.D, W.D, j0, mine, W.D, B, W.BLOCK_D)
    acc_v += rows(far_v + of * keys * W.V, W.V, j0, mine, W.V, B, W.BLOCK_V)
    put_rows(dk + of * keys * W.D, j0, mine, acc_k, W.D, B, W.BLOCK_D)
    put_rows(dv + of * keys * W.V, j0, mine, acc_v, W.V, B, W.BLOCK_V)


@triton.jit(do_not_specialize=LENGTHS)
def backward_tables(
    q, k, v, incoming, terms, bias_entries, vectors_entries, values_entries, factor_entries, work, blocks, heads,
    queries, keys, d_bias, d_vectors, d_values, d_factor, least_r, low, lead, count, batch,
    W: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The sums over pairs by distance, of one window of 2 B - 1 distances of one head, over every so many blocks.

    Window w is of the blocks whose first query and last key are at the distance least_r + (w + 1) B - 1: both halves
    of it are in row 2 w of what it writes and in the next, (programs, heads, 2 windows, B[, width]). ``low`` is the
    distance of the first entry of the table number ``lead``, from which distances are known."""
    # Windows of the greatest distances first: of text that is causal, these have the most pairs.
    w, h = tl.num_programs(1) - 1 - tl.program_id(1), tl.program_id(0).to(tl.int64)
    of_window = (tl.program_id(2) * heads.heads + h) * tl.num_programs(1) + w
    d_low = least_r + w * B  # the distance of the window's first column
    lines = Lines(
        of_head(terms.bias, h, bias_entries, 1), bias_entries,
        of_head(terms.vectors, h, vectors_entries, W.E), vectors_entries,
        of_head(terms.value_vectors, h, values_entries, W.V), values_entries,
        of_head(terms.factor, h, factor_entries, 1), factor_entries, of_head(terms.slopes, h, 2, 1),
    )  # fmt: skip
    if d_bias is not None:
        bias_left, bias_right = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    if d_factor is not None:
        factor_left, factor_right = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    if d_vectors is not None:
        x_left, x_right = zeros(B, W.BLOCK_E), zeros(B, W.BLOCK_E)
    if d_values is not None:
        v_left, v_right = zeros(B, W.BLOCK_V), zeros(B, W.BLOCK_V)
    for t in range(tl.program_id(2), count * batch, tl.num_programs(2)):
        task = work.tasks + t // batch * 5
        b = (tl.load(task) + t % batch).to(tl.int64)
        i0, end = tl.load(task + 1), tl.load(task + 2)
        i = i0 + tl.arange(0, B)
        mine = i < end
        row = b * heads.heads + h
        q_i = rows(of_row(q, b, h), q.row, i0, mine, W.D, B, W.BLOCK_D)
        do = rows(incoming.dout + row * queries * W.V, W.V, i0, mine, W.V, B, W.BLOCK_V)
        lse_i = lse_of(incoming.lse, row * queries + i, mine)
        delta_i = tl.load(incoming.delta + row * queries + i, mask=mine, other=0.0)
        x, x_scale, own, zero, of_key_clock = q_i, heads.scale * LOG2E, None, None, None
        if terms.meeting is not None:
            x, x_scale = rows(terms.meeting + row * queries * W.E, W.E, i0, mine, W.E, B, W.BLOCK_E), LOG2E
        if terms.shift is not None:
            q_i = (q_i + entry(terms.shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i.dtype)
        if terms.query_clock is not None:
            of_key_clock = terms.key_clock + row * keys
            zero = tl.load(terms.query_clock + row * queries + i0)
            own = clock_of(terms.query_clock + row * queries, i, mine, zero)
        from_i, to_i = counted_of(work.counted, blocks, row, i0, end)
        for n in range(tl.load(task + 3), tl.load(task + 4)):
            tile = work.tiles + n * 10
            j0 = i0 + (B - 1) + d_low - low - tl.load(tile + lead)
            first, last = tl.load(tile + 2), tl.load(tile + 3)
            low_i, high_i = tl.maximum(i0, tl.load(tile)), tl.minimum(end, tl.load(tile + 1)) - 1
            first, last = (
                tl.maximum(first, low_i + tl.load(tile + 4)), tl.minimum(last, high_i + tl.load(tile + 5) + 1)
            )  # fmt: skip
            if (j0 < tl.minimum(last, to_i)) & (j0 + B > tl.maximum(first, from_i)):
                j = j0 + tl.arange(0, B)
                here = (j >= first) & (j < last)
                k_j = rows(of_row(k, b, h // heads.groups), k.row, j0, here, W.D, B, W.BLOCK_D)
                v_j = rows(of_row(v, b, h // heads.groups), v.row, j0, here, W.V, B, W.BLOCK_V)
                window = j0 - i0 - (B - 1)
                met = met_with(x, x_scale, lines, window, tile, B, W.E, W.BLOCK_E, W.PRECISION)
                s, bare, factor_of, _ = near_scores(
                    product(q_i, tl.trans(k_j), W.PRECISION) * (heads.scale * LOG2E), i0, j0, last, tile, met, own,
                    of_key_clock, zero, lines, B, B, W.FUNCTION, False,
                )  # fmt: skip
                p = tl.exp2(s - lse_i[:, None])
                dp = product(do, tl.trans(v_j), W.PRECISION) - delta_i[:, None]
                if terms.value_vectors is not None:
                    dp += met_with_values(do, lines, window, tile, B, W.V, W.BLOCK_V, W.PRECISION)
                p, ds = seen_alone(p, p * dp, i0, j0, last, tile, B, B)
                ds, _, dc = to_scores(ds, bare, factor_of, W.FUNCTION)
                if (d_bias is not None) or (d_vectors is not None):
                    of_left, of_right = by_distance(ds, B)
                    if d_bias is not None:
                        bias_left += tl.sum(of_left, 0)
                        bias_right += tl.sum(of_right, 0)
                    if d_vectors is not None:
                        x_left += product(tl.trans(of_left).to(x.dtype), x, W.PRECISION)
                        x_right += product(tl.trans(of_right).to(x.dtype), x, W.PRECISION)
                if d_factor is not None:
                    of_left, of_right = by_distance(dc, B)
                    factor_left += tl.sum(of_left, 0)
                    factor_right += tl.sum(of_right, 0)
                if d_values is not None:
                    of_left, of_right = by_distance(p, B)
                    v_left += product(tl.trans(of_left).to(do.dtype), do, W.PRECISION)
                    v_right += product(tl.trans(of_right).to(do.dtype), do, W.PRECISION)
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
        if terms.meeting is None:
            x_scale = heads.scale
        put_rows(d_vectors + at * W.E, 0, e < B, x_left * x_scale, W.E, B, W.BLOCK_E)
        put_rows(d_vectors + (at + B) * W.E, 0, e < B, x_right * x_scale, W.E, B, W.BLOCK_E)
    if d_values is not None:
        put_rows(d_values + at * W.V, 0, e < B, v_left, W.V, B, W.BLOCK_V)
        put_rows(d_values + (at + B) * W.V, 0, e < B, v_right, W.V, B, W.BLOCK_V)
