"""The forward kernels: a block of queries of one head, and all keys that they attend to."""

import triton
import triton.language as tl

from posenc.backends.triton.arguments import LENGTHS, Lines
from posenc.backends.triton.bounds import counted_of
from posenc.backends.triton.pieces import (
    LN2,
    LOG2E,
    block_of,
    clock_of,
    ends,
    entry,
    far_clock,
    far_column,
    far_row,
    far_scores,
    is_whole,
    met_with,
    near_scores,
    of_head,
    of_row,
    of_vectors,
    part_of,
    product,
    put_rows,
    ranges,
    rows,
    seen_of,
    tiles_of,
    weigh,
    zeros,
)


@triton.jit(do_not_specialize=LENGTHS)
def forward(
    q, k, v, out, lse, terms, bias_entries, vectors_entries, values_entries, factor_entries, work, blocks, heads,
    queries, keys, W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, HAS_RIGHT: tl.constexpr,
    NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """Far pairs, and near ones too unless they have vectors: those `forward_near` adds."""
    b, h, i0, stop = block_of(work, M, M)
    i = i0 + tl.arange(0, M)
    mine = i < stop
    row = b * heads.heads + h  # of (batch, heads)
    k_x, v_x = of_row(k, b, h // heads.groups), of_row(v, b, h // heads.groups)
    q_i = rows(of_row(q, b, h), q.row, i0, mine, W.D, M, W.BLOCK_D)
    lines = Lines(
        of_head(terms.bias, h, bias_entries, 1), bias_entries,
        of_head(terms.vectors, h, vectors_entries, W.E), vectors_entries,
        of_head(terms.value_vectors, h, values_entries, W.V), values_entries,
        of_head(terms.factor, h, factor_entries, 1), factor_entries, of_head(terms.slopes, h, 2, 1),
    )  # fmt: skip
    # Values per row are computed once. Branches on None are resolved at compile time.
    low, high, own, zero, key_clock = None, None, None, None, None
    if terms.vectors is not None:
        if terms.meeting is not None:
            x = rows(terms.meeting + row * queries * W.E, W.E, i0, mine, W.E, M, W.BLOCK_E)
            low, high = ends(x, lines.vectors, vectors_entries, W.E, W.BLOCK_E)
            low, high = low * LOG2E, high * LOG2E
        else:
            low, high = ends(q_i, lines.vectors, vectors_entries, W.E, W.BLOCK_E)
            low, high = low * (heads.scale * LOG2E), high * (heads.scale * LOG2E)
    if terms.shift is not None:
        q_i = (q_i + entry(terms.shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i.dtype)
    if terms.query_clock is not None:
        query_clock, key_clock = terms.query_clock + row * queries, terms.key_clock + row * keys
        zero = tl.load(query_clock + i0)
        own = clock_of(query_clock, i, mine, zero)
    m_i, l_i = tl.full((M,), -float("inf"), tl.float32), tl.zeros((M,), tl.float32)
    acc = zeros(M, W.BLOCK_V)
    l_low, l_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)  # beyond the ends of the values
    from_i, to_i = counted_of(work.counted, blocks, row, i0, stop)
    first_tile, last_tile = tiles_of(work, M, M)
    for n in range(first_tile, last_tile):
        tile = work.tiles + n * 10
        first, a, b_, c, d, last = ranges(tile, i0, stop, lines, from_i, to_i, N, False)
        row_low = far_row(low, own, lines, M, False)
        for j0 in range(a, b_, N):
            acc, m_i, l_i, l_low, l_high = _of_far_keys(
                acc, m_i, l_i, l_low, l_high, q_i, k_x, k.row, v_x, v.row, i0, j0, tile, heads.scale, row_low,
                key_clock, zero, lines, W, N, False,
            )  # fmt: skip
        if HAS_RIGHT:
            row_high = far_row(high, own, lines, M, True)
            for j0 in range(c, d, N):
                acc, m_i, l_i, l_high, l_low = _of_far_keys(
                    acc, m_i, l_i, l_high, l_low, q_i, k_x, k.row, v_x, v.row, i0, j0, tile, heads.scale, row_high,
                    key_clock, zero, lines, W, N, True,
                )  # fmt: skip
        if (terms.vectors is None) and (terms.value_vectors is None):
            for part in range(3):
                from_, to = part_of(first, a, b_, c, d, last, part)
                for j0 in tl.range(from_, to, N, num_stages=NEAR_STAGES):
                    here = j0 + tl.arange(0, N) < to
                    k_j = rows(k_x, k.row, j0, here, W.D, N, W.BLOCK_D)
                    v_j = rows(v_x, v.row, j0, here, W.V, N, W.BLOCK_V)
                    s, _, _, _ = near_scores(
                        product(q_i, tl.trans(k_j), W.PRECISION) * (heads.scale * LOG2E), i0, j0, to, tile, None, own,
                        key_clock, zero, lines, M, N, W.FUNCTION, False,
                    )  # fmt: skip
                    s = tl.where(seen_of(i0, j0, to, tile, M, N, False), s, -float("inf"))
                    p, m_i, l_i, fade = weigh(s, 1.0, 0.0, m_i, l_i)
                    acc = acc * fade[:, None] + product(p.to(v_j.dtype), v_j, W.PRECISION)
    if terms.value_vectors is not None:
        acc += l_low[:, None] * entry(lines.value_vectors, 0, W.V, W.BLOCK_V)[None, :]
        acc += l_high[:, None] * entry(lines.value_vectors, values_entries - 1, W.V, W.BLOCK_V)[None, :]
    l_safe = tl.where(l_i == 0, 1.0, l_i)  # fully masked rows give zeros
    put_rows(out + row * queries * W.V, i0, mine, acc / l_safe[:, None], W.V, M, W.BLOCK_V)
    tl.store(lse + row * queries + i, tl.where(l_i == 0, -float("inf"), (m_i + tl.log2(l_safe)) * LN2), mask=mine)


@triton.jit
def _of_far_keys(
    acc, m_i, l_i, l_here, l_there, q_i, k, k_row, v, v_row, i0, j0, tile, scale, row, key_clock, zero, lines,
    W: tl.constexpr, N: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """A block of keys far to one side. ``l_here`` and ``l_there`` are the weights beyond the ends of the values, on
    this side and on the other."""
    k_j, v_j = rows(k, k_row, j0, None, W.D, N, W.BLOCK_D), rows(v, v_row, j0, None, W.V, N, W.BLOCK_V)
    column = far_column(far_clock(key_clock, j0, zero, N), i0, j0, tile, lines, N, RIGHT)
    s, by, rest, _, _ = far_scores(
        product(q_i, tl.trans(k_j), W.PRECISION), scale * LOG2E, row, column, lines, W.FUNCTION, RIGHT, False
    )
    p, m_i, l_i, fade = weigh(s, by, rest, m_i, l_i)
    acc = acc * fade[:, None] + product(p.to(v_j.dtype), v_j, W.PRECISION)
    if lines.value_vectors is not None:
        l_here, l_there = l_here * fade + tl.sum(p, 1), l_there * fade
    return acc, m_i, l_i, l_here, l_there


@triton.jit(do_not_specialize=LENGTHS)
def forward_near(
    q, k, v, far, out, lse, terms, bias_entries, vectors_entries, values_entries, factor_entries, work, blocks, heads,
    queries, keys, W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The near pairs of B of the M queries of a block of `forward`, which goes on where that ended: ``far`` and ``lse``
    are its output and log-sum-exp."""
    b, h, block, end = block_of(work, M, B)  # of all M
    i0 = block + tl.program_id(0) % (M // B) * B
    i = i0 + tl.arange(0, B)
    mine = i < end
    row = b * heads.heads + h
    k_x, v_x = of_row(k, b, h // heads.groups), of_row(v, b, h // heads.groups)
    q_i = rows(of_row(q, b, h), q.row, i0, mine, W.D, B, W.BLOCK_D)
    lines = Lines(
        of_head(terms.bias, h, bias_entries, 1), bias_entries,
        of_head(terms.vectors, h, vectors_entries, W.E), vectors_entries,
        of_head(terms.value_vectors, h, values_entries, W.V), values_entries,
        of_head(terms.factor, h, factor_entries, 1), factor_entries, of_head(terms.slopes, h, 2, 1),
    )  # fmt: skip
    x, x_scale, own, zero, key_clock = q_i, heads.scale * LOG2E, None, None, None
    if terms.meeting is not None:
        x, x_scale = rows(terms.meeting + row * queries * W.E, W.E, i0, mine, W.E, B, W.BLOCK_E), LOG2E
    if terms.shift is not None:
        q_i = (q_i + entry(terms.shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i.dtype)
    if terms.query_clock is not None:
        query_clock, key_clock = terms.query_clock + row * queries, terms.key_clock + row * keys
        zero = tl.load(query_clock + block)
        own = clock_of(query_clock, i, mine, zero)
    m_i = tl.load(lse + row * queries + i, mask=mine, other=-float("inf")) * LOG2E
    l_i = tl.where(m_i == -float("inf"), 0.0, 1.0)
    acc = rows(far + row * queries * W.V, W.V, i0, mine, W.V, B, W.BLOCK_V)
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
                s, _, _, _ = near_scores(
                    product(q_i, tl.trans(k_j), W.PRECISION) * (heads.scale * LOG2E), i0, j0, to, tile, met, own,
                    key_clock, zero, lines, B, B, W.FUNCTION, False,
                )  # fmt: skip
                if not is_whole(i0, j0, to, tile, B, B):
                    s = tl.where(seen_of(i0, j0, to, tile, B, B, False), s, -float("inf"))
                p, m_i, l_i, fade = weigh(s, 1.0, 0.0, m_i, l_i)
                acc = acc * fade[:, None] + product(p.to(v_j.dtype), v_j, W.PRECISION)
                if terms.value_vectors is not None:
                    acc = of_vectors(
                        acc, p, lines.value_vectors, values_entries, window + tl.load(tile + 8), v_j.dtype, W.V, B,
                        W.BLOCK_V, W.PRECISION,
                    )  # fmt: skip
    l_safe = tl.where(l_i == 0, 1.0, l_i)
    put_rows(out + row * queries * W.V, i0, mine, acc / l_safe[:, None], W.V, B, W.BLOCK_V)
    tl.store(lse + row * queries + i, tl.where(l_i == 0, -float("inf"), (m_i + tl.log2(l_safe)) * LN2), mask=mine)
