"""The backward kernels: over blocks of queries, for the gradients of queries and tables, and over blocks of keys."""

import triton
import triton.language as tl

from posenc.backends.triton.primitives import (
    by_distance,
    by_vectors,
    ends,
    entry,
    give_ends,
    give_line,
    give_window,
    past_ends,
    product,
    put_rows,
    reaches,
    rows,
    scores,
    to_scores,
    window,
)


@triton.jit
def backward_queries(
    q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, v, v_batch, v_head, v_row, dout, lse, delta,
    bias, bias_head, bias_entries, vectors, vectors_head, vectors_entries,
    values, values_head, values_entries, factor, factor_head, factor_entries,
    meeting, shift, query_clock, key_clock, tasks, tiles, heads, groups, queries, keys, scale,
    dq, d_bias, d_vectors, d_values, d_factor, d_meeting, d_shift, d_query_clock,
    D: tl.constexpr, V: tl.constexpr, E: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_E: tl.constexpr,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head, as in the forward kernel. Gradients of tables are accumulated atomically."""
    task, h = tasks + tl.program_id(0) * 5, tl.program_id(1).to(tl.int64)
    b = (tl.load(task) + tl.program_id(2)).to(tl.int64)
    i0, stop = tl.load(task + 1), tl.load(task + 2)
    i = i0 + tl.arange(0, BLOCK)
    mine = i < stop
    row = b * heads + h
    k, v = k + b * k_batch + h // groups * k_head, v + b * v_batch + h // groups * v_head
    q_i = rows(q + b * q_batch + h * q_head, q_row, i0, mine, D, BLOCK, BLOCK_D)
    do = rows(dout + row * queries * V, V, i0, mine, V, BLOCK, BLOCK_V)
    lse_i = tl.load(lse + row * queries + i, mask=mine, other=float("inf"))
    lse_i = tl.where(lse_i == -float("inf"), float("inf"), lse_i)  # fully masked rows have no weights
    delta_i = tl.load(delta + row * queries + i, mask=mine, other=0.0)
    x, x_scale, low, high, zero = q_i, scale, None, None, None
    do_low, do_high = None, None
    if bias is not None:
        bias += h * bias_head
    if factor is not None:
        factor += h * factor_head
    if vectors is not None:
        vectors += h * vectors_head
        if meeting is not None:
            x, x_scale = rows(meeting + row * queries * E, E, i0, mine, E, BLOCK, BLOCK_E), 1.0
        low, high = ends(x, vectors, vectors_entries, E, BLOCK_E)
    if values is not None:
        values += h * values_head
        do_low, do_high = ends(do, values, values_entries, V, BLOCK_V)
    if shift is not None:
        q_i = (q_i + entry(shift, h, D, BLOCK_D)[None, :]).to(q_i.dtype)
    if query_clock is not None:
        query_clock, key_clock = query_clock + row * queries, key_clock + row * keys
        zero = tl.load(query_clock + i0)
    acc = tl.zeros((BLOCK, BLOCK_D), tl.float32)  # of the product with keys
    acc_x = tl.zeros((BLOCK, BLOCK_E), tl.float32)  # of the product with vectors
    # Sums over the pairs of a row beyond either end of a table.
    b_low, b_high = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    x_low, x_high = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    p_low, p_high = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    c_low, c_high = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    d_clock = tl.zeros((BLOCK,), tl.float32)
    for n in range(tl.load(task + 3), tl.load(task + 4)):
        tile = tiles + n * 10
        first = tl.maximum(tl.load(tile + 2), tl.maximum(i0, tl.load(tile)) + tl.load(tile + 4))
        last = tl.minimum(tl.load(tile + 3), tl.minimum(stop, tl.load(tile + 1)) + tl.load(tile + 5))
        for j0 in range(first, last, BLOCK):
            j = j0 + tl.arange(0, BLOCK)
            k_j, v_j = rows(k, k_row, j0, j < last, D, BLOCK, BLOCK_D), rows(v, v_row, j0, j < last, V, BLOCK, BLOCK_V)
            s, bare, c, pair = scores(
                q_i, k_j, x, low, high, i0, j0, tile, scale, x_scale, query_clock, key_clock, zero,
                bias, bias_entries, vectors, vectors_entries, factor, factor_entries,
                E, BLOCK, BLOCK_E, FUNCTION, PRECISION,
            )  # fmt: skip
            p = tl.exp(s - lse_i[:, None])
            dp = product(do, tl.trans(v_j), PRECISION)
            from_ = j0 - i0 - (BLOCK - 1)  # the j - i of the window's first column
            if values is not None:
                base = tl.load(tile + 8)
                dp += by_vectors(
                    do, do_low, do_high, pair, base, j0 - i0, values, values_entries, V, BLOCK, BLOCK_V, PRECISION
                )
                if d_values is not None:
                    low_of, high_of = past_ends(p, pair + base, values_entries, from_ + base, BLOCK)
                    p_low, p_high = p_low + low_of, p_high + high_of
                    if reaches(values_entries, from_ + base, BLOCK):
                        given = product(tl.trans(by_distance(p.to(do.dtype), BLOCK)), do, PRECISION)
                        give_window(d_values + h * values_head, values_entries, from_ + base, given, V, BLOCK, BLOCK_V)
            ds, d_product, dc = to_scores(p, dp, delta_i, bare, c, FUNCTION)
            acc += product(d_product.to(k_j.dtype), k_j, PRECISION)
            d_clock += tl.sum(ds, 1)
            if d_bias is not None:
                base = tl.load(tile + 6)
                low_of, high_of = past_ends(ds, pair + base, bias_entries, from_ + base, BLOCK)
                b_low, b_high = b_low + low_of, b_high + high_of
                give_line(d_bias + h * bias_head, bias_entries, from_ + base, ds, BLOCK)
            if d_factor is not None:
                base = tl.load(tile + 9)
                low_of, high_of = past_ends(dc, pair + base, factor_entries, from_ + base, BLOCK)
                c_low, c_high = c_low + low_of, c_high + high_of
                give_line(d_factor + h * factor_head, factor_entries, from_ + base, dc, BLOCK)
            if vectors is not None:
                base = tl.load(tile + 7)
                low_of, high_of = past_ends(ds, pair + base, vectors_entries, from_ + base, BLOCK)
                x_low, x_high = x_low + low_of, x_high + high_of
                if reaches(vectors_entries, from_ + base, BLOCK):
                    near = window(vectors, vectors_entries, from_ + base, E, BLOCK, BLOCK_E).to(x.dtype)
                    dm = by_distance(ds.to(x.dtype), BLOCK)
                    acc_x += product(dm, near, PRECISION)
                    if d_vectors is not None:
                        given = product(tl.trans(dm), x, PRECISION) * x_scale
                        give_window(
                            d_vectors + h * vectors_head, vectors_entries, from_ + base, given, E, BLOCK, BLOCK_E
                        )
    acc *= scale
    if d_shift is not None:
        d = tl.arange(0, BLOCK_D)
        tl.atomic_add(d_shift + h * D + d, tl.sum(acc, 0), mask=d < D)
    if vectors is not None:
        acc_x += x_low[:, None] * entry(vectors, 0, E, BLOCK_E)[None, :]
        acc_x += x_high[:, None] * entry(vectors, vectors_entries - 1, E, BLOCK_E)[None, :]
        acc_x *= x_scale
        if meeting is None:
            acc += acc_x  # the same width, since the query itself is multiplied with the vectors
        if d_meeting is not None:
            put_rows(d_meeting + row * queries * E, i0, mine, acc_x, E, BLOCK, BLOCK_E)
    put_rows(dq + row * queries * D, i0, mine, acc, D, BLOCK, BLOCK_D)
    if d_query_clock is not None:
        tl.store(d_query_clock + row * queries + i, d_clock.to(tl.float64), mask=mine)
    ones = tl.full((BLOCK, 1), 1.0, tl.float32)
    if d_bias is not None:
        give_ends(d_bias + h * bias_head, bias_entries, b_low, b_high, ones, 1, 1)
    if d_factor is not None:
        give_ends(d_factor + h * factor_head, factor_entries, c_low, c_high, ones, 1, 1)
    if d_vectors is not None:
        give_ends(d_vectors + h * vectors_head, vectors_entries, x_low * x_scale, x_high * x_scale, x, E, BLOCK_E)
    if d_values is not None:
        give_ends(d_values + h * values_head, values_entries, p_low, p_high, do, V, BLOCK_V)


@triton.jit
def backward_keys(
    q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, v, v_batch, v_head, v_row, dout, lse, delta,
    bias, bias_head, bias_entries, vectors, vectors_head, vectors_entries,
    values, values_head, values_entries, factor, factor_head, factor_entries,
    meeting, shift, query_clock, key_clock, tasks, tiles, heads, groups, queries, keys, scale,
    dk, dv, d_key_clock,
    D: tl.constexpr, V: tl.constexpr, E: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_E: tl.constexpr,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of keys of one key head, and all queries of its group that attend to them."""
    task, of_keys = tasks + tl.program_id(0) * 5, tl.program_id(1).to(tl.int64)
    b = (tl.load(task) + tl.program_id(2)).to(tl.int64)
    j0, stop = tl.load(task + 1), tl.load(task + 2)
    j = j0 + tl.arange(0, BLOCK)
    mine = j < stop
    k_j = rows(k + b * k_batch + of_keys * k_head, k_row, j0, mine, D, BLOCK, BLOCK_D)
    v_j = rows(v + b * v_batch + of_keys * v_head, v_row, j0, mine, V, BLOCK, BLOCK_V)
    acc_k, acc_v = tl.zeros((BLOCK, BLOCK_D), tl.float32), tl.zeros((BLOCK, BLOCK_V), tl.float32)
    for g in range(groups):
        h = of_keys * groups + g
        row = b * heads + h
        d_clock = tl.zeros((BLOCK,), tl.float32)
        of_query_clock, of_key_clock, zero = None, None, None
        if query_clock is not None:
            of_query_clock, of_key_clock = query_clock + row * queries, key_clock + row * keys
            zero = tl.load(of_key_clock + j0)
        for n in range(tl.load(task + 3), tl.load(task + 4)):
            tile = tiles + n * 10
            first = tl.maximum(tl.load(tile), tl.maximum(j0, tl.load(tile + 2)) - tl.load(tile + 5))
            last = tl.minimum(tl.load(tile + 1), tl.minimum(stop, tl.load(tile + 3)) - tl.load(tile + 4))
            for i0 in range(first, last, BLOCK):
                i = i0 + tl.arange(0, BLOCK)
                here = i < last
                q_i = rows(q + b * q_batch + h * q_head, q_row, i0, here, D, BLOCK, BLOCK_D)
                do = rows(dout + row * queries * V, V, i0, here, V, BLOCK, BLOCK_V)
                lse_i = tl.load(lse + row * queries + i, mask=here, other=float("inf"))
                lse_i = tl.where(lse_i == -float("inf"), float("inf"), lse_i)
                delta_i = tl.load(delta + row * queries + i, mask=here, other=0.0)
                x, x_scale, low, high = q_i, scale, None, None
                of_bias, of_vectors, of_factor = None, None, None
                if bias is not None:
                    of_bias = bias + h * bias_head
                if factor is not None:
                    of_factor = factor + h * factor_head
                if vectors is not None:
                    of_vectors = vectors + h * vectors_head
                    if meeting is not None:
                        x, x_scale = rows(meeting + row * queries * E, E, i0, here, E, BLOCK, BLOCK_E), 1.0
                    low, high = ends(x, of_vectors, vectors_entries, E, BLOCK_E)
                if shift is not None:
                    q_i = (q_i + entry(shift, h, D, BLOCK_D)[None, :]).to(q_i.dtype)
                s, bare, c, pair = scores(
                    q_i, k_j, x, low, high, i0, j0, tile, scale, x_scale, of_query_clock, of_key_clock, zero,
                    of_bias, bias_entries, of_vectors, vectors_entries, of_factor, factor_entries,
                    E, BLOCK, BLOCK_E, FUNCTION, PRECISION,
                )  # fmt: skip
                p = tl.exp(s - lse_i[:, None])
                acc_v += product(tl.trans(p).to(do.dtype), do, PRECISION)
                dp = product(do, tl.trans(v_j), PRECISION)
                if values is not None:
                    of_values = values + h * values_head
                    do_low, do_high = ends(do, of_values, values_entries, V, BLOCK_V)
                    dp += by_vectors(
                        do, do_low, do_high, pair, tl.load(tile + 8), j0 - i0, of_values, values_entries,
                        V, BLOCK, BLOCK_V, PRECISION,
                    )  # fmt: skip
                ds, d_product, _ = to_scores(p, dp, delta_i, bare, c, FUNCTION)
                acc_k += product(tl.trans(d_product).to(q_i.dtype), q_i, PRECISION)
                d_clock += tl.sum(ds, 0)
        if d_key_clock is not None:
            tl.store(d_key_clock + row * keys + j, -d_clock.to(tl.float64), mask=mine)
    of_head = b * (heads // groups) + of_keys
    put_rows(dk + of_head * keys * D, j0, mine, acc_k * scale, D, BLOCK, BLOCK_D)
    put_rows(dv + of_head * keys * V, j0, mine, acc_v, V, BLOCK, BLOCK_V)
