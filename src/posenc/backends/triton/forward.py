"""The forward kernel: a block of queries of one head, and all keys that they attend to."""

import triton
import triton.language as tl

from posenc.backends.triton.primitives import (
    by_distance,
    ends,
    entry,
    past_ends,
    product,
    put_rows,
    reaches,
    rows,
    scores,
    window,
)


@triton.jit
def forward(
    q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, v, v_batch, v_head, v_row, out, lse,
    bias, bias_head, bias_entries, vectors, vectors_head, vectors_entries,
    values, values_head, values_entries, factor, factor_head, factor_entries,
    meeting, shift, query_clock, key_clock, tasks, tiles, heads, groups, queries, keys, scale,
    D: tl.constexpr, V: tl.constexpr, E: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_E: tl.constexpr,
    FUNCTION: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    task, h = tasks + tl.program_id(0) * 5, tl.program_id(1).to(tl.int64)
    b = (tl.load(task) + tl.program_id(2)).to(tl.int64)
    i0, stop = tl.load(task + 1), tl.load(task + 2)
    i = i0 + tl.arange(0, BLOCK)
    mine = i < stop
    row = b * heads + h  # of (batch, heads)
    k, v = k + b * k_batch + h // groups * k_head, v + b * v_batch + h // groups * v_head
    q_i = rows(q + b * q_batch + h * q_head, q_row, i0, mine, D, BLOCK, BLOCK_D)
    # Values per row are computed once. Branches on None are resolved at compile time.
    x, x_scale, low, high, zero = q_i, scale, None, None, None
    if bias is not None:
        bias += h * bias_head
    if factor is not None:
        factor += h * factor_head
    if vectors is not None:
        vectors += h * vectors_head
        if meeting is not None:
            x, x_scale = rows(meeting + row * queries * E, E, i0, mine, E, BLOCK, BLOCK_E), 1.0
        low, high = ends(x, vectors, vectors_entries, E, BLOCK_E)
    if shift is not None:
        q_i = (q_i + entry(shift, h, D, BLOCK_D)[None, :]).to(q_i.dtype)
    if query_clock is not None:
        query_clock, key_clock = query_clock + row * queries, key_clock + row * keys
        zero = tl.load(query_clock + i0)
    m_i, l_i = tl.full((BLOCK,), -float("inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, BLOCK_V), tl.float32)
    l_low, l_high = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)  # beyond the ends of the values
    for n in range(tl.load(task + 3), tl.load(task + 4)):
        tile = tiles + n * 10
        first = tl.maximum(tl.load(tile + 2), tl.maximum(i0, tl.load(tile)) + tl.load(tile + 4))
        last = tl.minimum(tl.load(tile + 3), tl.minimum(stop, tl.load(tile + 1)) + tl.load(tile + 5))
        for j0 in range(first, last, BLOCK):
            j = j0 + tl.arange(0, BLOCK)
            k_j, v_j = rows(k, k_row, j0, j < last, D, BLOCK, BLOCK_D), rows(v, v_row, j0, j < last, V, BLOCK, BLOCK_V)
            s, _, _, pair = scores(
                q_i, k_j, x, low, high, i0, j0, tile, scale, x_scale, query_clock, key_clock, zero,
                bias, bias_entries, vectors, vectors_entries, factor, factor_entries,
                E, BLOCK, BLOCK_E, FUNCTION, PRECISION,
            )  # fmt: skip
            m_new = tl.maximum(m_i, tl.max(s, 1))
            offset = tl.where(m_new == -float("inf"), 0.0, m_new)
            fade = tl.exp(m_i - offset)
            p = tl.exp(s - offset[:, None])
            m_i, l_i = m_new, l_i * fade + tl.sum(p, 1)
            acc = acc * fade[:, None] + product(p.to(v_j.dtype), v_j, PRECISION)
            if values is not None:
                base = tl.load(tile + 8)
                from_ = j0 - i0 + base - (BLOCK - 1)
                p_low, p_high = past_ends(p, pair + base, values_entries, from_, BLOCK)
                l_low, l_high = l_low * fade + p_low, l_high * fade + p_high
                if reaches(values_entries, from_, BLOCK):
                    near = window(values + h * values_head, values_entries, from_, V, BLOCK, BLOCK_V).to(v_j.dtype)
                    acc += product(by_distance(p.to(v_j.dtype), BLOCK), near, PRECISION)
    if values is not None:
        acc += l_low[:, None] * entry(values + h * values_head, 0, V, BLOCK_V)[None, :]
        acc += l_high[:, None] * entry(values + h * values_head, values_entries - 1, V, BLOCK_V)[None, :]
    l_safe = tl.where(l_i == 0, 1.0, l_i)  # fully masked rows give zeros
    put_rows(out + row * queries * V, i0, mine, acc / l_safe[:, None], V, BLOCK, BLOCK_V)
    tl.store(lse + row * queries + i, tl.where(l_i == 0, -float("inf"), m_i + tl.log(l_safe)), mask=mine)
