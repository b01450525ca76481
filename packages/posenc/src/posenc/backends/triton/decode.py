"""The kernels for few queries: programs share the keys of a head, and then their outputs are merged."""

import triton
import triton.language as tl

from posenc.backends.triton.pieces import (
    LN2,
    LOG2E,
    bias_at,
    entries_from,
    number,
    of_head,
    of_row,
    product,
    relu,
    rows,
    weigh,
    zeros,
)

# What changes from step to step. A kernel that knew that one is 1 or a multiple of 16 would be compiled again.
CHANGING = (
    "bias_entries", "vectors_entries", "values_entries", "factor_entries", "away_entries",
    "queries", "keys", "parts", "count", "start", "stop", "from_key", "to_key", "least", "most",
    "of_bias", "of_vectors", "of_values", "of_factor", "of_away", "apart",
)  # fmt: skip


@triton.jit
def placed(s, n, nearest, j, here, own, key_clock, bias, bias_entries, slopes, level, slope):
    """Scores of rows and keys j, (R, N), with what is added whatever queries and keys hold: biases at entries n, (R, N)
    or (1, N), of which none is above ``nearest``, and cumulative features. Before the first entry, a bias is ``level``
    and goes on by ``slope``."""
    if bias is not None:
        if (s.shape[0] > 64) or (nearest > 0):  # with so many rows, two ways would take too many registers
            s += bias_at(bias, bias_entries, slopes, n)
        elif slopes is not None:
            s += level - slope * n.to(tl.float32)
        else:
            s += level
    if own is not None:
        # In double precision, so that nothing is lost of large sums.
        s += (own - tl.load(key_clock + j[None, :], mask=here[None, :], other=0.0)).to(tl.float32) * LOG2E
    return s


@triton.jit
def piece_at(x, share, lines, part):
    """Piece ``part`` of a piecewise linear function of x share, in units of log 2; see `lined`."""
    slope = (tl.load(lines + 2 * part) * tl.load(share)).to(tl.float32)
    return (x * slope + tl.load(lines + 2 * part + 1).to(tl.float32)) * LOG2E


@triton.jit
def lined(s, x, n, first, last, share, lines, line_ends):
    """Scores with a piecewise linear function of x share. ``share``, ``lines`` and ``line_ends`` point to those of each
    row; entries n before the k-th end are beyond the k-th break. Pairs are in the pieces ``first`` .. ``last``."""
    if first == last:
        s += piece_at(x, share, lines, first)
    else:
        part = tl.zeros(n.shape, tl.int32) + first
        for k in range(first, last):
            part += (n < tl.load(line_ends + k)).to(tl.int32)
        s += piece_at(x, share, lines, part)
    return s


@triton.jit
def unit(u, row, table, size, first_head, Q: tl.constexpr, BY_HEAD: tl.constexpr):
    """The rows that one product with a table by distance is for, those of one query, and of one head if heads have
    tables of their own; the query, and the table, which has ``size`` numbers for a head."""
    if BY_HEAD:
        return row == u, u % Q, table.x + tl.cast(first_head + u // Q, tl.int64) * (table.by_head * size)
    return row % Q == u, u, table.x


@triton.jit(do_not_specialize=CHANGING)
def decode(
    q, k, v, out, lse, terms, bias_entries, vectors_entries, values_entries, factor_entries, broken, away_entries,
    key_norms, faint, tiles, count, start, stop, from_key, to_key, least, most,
    of_bias, of_vectors, of_values, of_factor, of_away, apart, heads, queries, keys, parts, W: tl.constexpr,
    R: tl.constexpr, Q: tl.constexpr, N: tl.constexpr, LINES: tl.constexpr, PIECES: tl.constexpr, BY_HEAD: tl.constexpr,
):  # fmt: skip
    """Q queries of the heads that share keys, in R rows, and one of ``parts`` parts of the keys: its output and
    log-sum-exp, of (parts, batch, heads, queries[, V]). Blocks of keys before the first one with a score of at least
    that of the query's own key plus ``faint`` are not read, where ``key_norms`` are given."""
    blocks, kv_heads = tl.cdiv(queries, Q), heads.heads // heads.groups
    b, i0 = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * Q
    kv, first_head, part = tl.program_id(1).to(tl.int64), tl.program_id(1) * heads.groups, tl.program_id(2)
    row, d = tl.arange(0, R), tl.arange(0, W.BLOCK_D)
    mine = (row // Q < heads.groups) & (i0 + row % Q < queries)
    # Rows that do not exist repeat others.
    i, h = tl.minimum(i0 + row % Q, queries - 1), first_head + tl.minimum(row // Q, heads.groups - 1)
    at = (b * heads.heads + h) * queries + i  # of (batch, heads, queries)
    h = h.to(tl.int64)
    k_x, v_x = of_row(k, b, kv), of_row(v, b, kv)
    q_i = tl.load(
        q.x + b * q.batch + (h * q.head + i.to(tl.int64) * q.row)[:, None] + d[None, :],
        mask=(d < W.D)[None, :], other=0.0,
    )  # fmt: skip
    # Values per row are computed once. Branches on None are resolved at compile time.
    x, x_scale, low, own, longest, level, slope = q_i, heads.scale * LOG2E, None, None, None, None, None
    bias, slopes, factor, key_clock, share, lines, line_ends = None, None, None, None, None, None, None
    if terms.bias is not None:
        bias = of_head(terms.bias, h, bias_entries, 1)[:, None]
        level = tl.load(bias) * LOG2E
    if terms.slopes is not None:
        slopes = of_head(terms.slopes, h, 2, 1)[:, None]
        slope = tl.load(slopes) * LOG2E
    if terms.factor is not None:
        factor = of_head(terms.factor, h, factor_entries, 1)[:, None]
    if terms.meeting is not None:
        e = tl.arange(0, W.BLOCK_E)
        x = tl.load(terms.meeting + at[:, None] * W.E + e[None, :], mask=(e < W.E)[None, :], other=0.0)
        x_scale = LOG2E
    if terms.vectors is not None:
        e = tl.arange(0, W.BLOCK_E)
        lowest = of_head(terms.vectors, h, vectors_entries, W.E)[:, None]
        nearest = tl.load(lowest + e[None, :], mask=(e < W.E)[None, :], other=0.0)
        low = tl.sum(x.to(tl.float32) * nearest, 1) * x_scale
    if terms.shift is not None:
        added = tl.load(terms.shift + h[:, None] * W.D + d[None, :], mask=(d < W.D)[None, :], other=0.0)
        q_i = (q_i + added).to(q_i.dtype)
    if terms.query_clock is not None:
        own = tl.load(terms.query_clock + at)[:, None]
        key_clock = terms.key_clock + ((b * heads.heads + h) * keys)[:, None]
    if broken.lines is not None:
        of_share = b * broken.share.by_head * queries
        share, lines = broken.share.x + (of_share + i)[:, None], broken.lines + (h * (2 * LINES))[:, None]
        if Q == 1:
            line_ends = broken.ends + (of_share + i0) * (LINES - 1)
            piece = tl.arange(0, PIECES)  # at least LINES
            ends = tl.load(line_ends + piece, mask=piece < LINES - 1, other=-(1 << 30))
        else:
            line_ends = broken.ends + ((of_share + i) * (LINES - 1))[:, None]
    if key_norms is not None:
        key_norms += (b * kv_heads + kv) * keys
        longest = tl.sqrt(tl.sum(q_i.to(tl.float32) * q_i.to(tl.float32), 1)) * (heads.scale * LOG2E)
    m_i, l_i = tl.full((R,), -float("inf"), tl.float32), tl.zeros((R,), tl.float32)
    acc = zeros(R, W.BLOCK_V)
    l_low = tl.zeros((R,), tl.float32)  # before the first entry of the values
    units = heads.groups * Q if BY_HEAD else Q
    i_pair = i[:, None]
    if Q == 1:  # the distances of a row are those of all
        i_pair = i0
    from_tile, to_tile = 0, count
    if tiles is not None:
        of_tiles = tiles.x + b * tiles.by_head
        from_tile, to_tile = tl.load(of_tiles), tl.load(of_tiles + 1)
    for n in range(from_tile, to_tile):
        if tiles is not None:
            tile = tiles.x + n * 12
            start, stop, from_key, to_key = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
            least, most, of_bias, of_vectors = (
                tl.load(tile + 4), tl.load(tile + 5), tl.load(tile + 6), tl.load(tile + 7)
            )  # fmt: skip
            of_values, of_factor, of_away, apart = (
                tl.load(tile + 8), tl.load(tile + 9), tl.load(tile + 10), tl.load(tile + 11)
            )  # fmt: skip
        i_low, i_high = tl.maximum(i0, start), tl.minimum(tl.minimum(i0 + Q, queries), stop) - 1
        first, last = tl.maximum(from_key, i_low + least), tl.minimum(to_key, i_high + most + 1)
        each = tl.cdiv(tl.cdiv(tl.where(i_low > i_high, 0, tl.maximum(last - first, 0)), N), parts) * N
        first += part * each
        last = tl.minimum(last, first + each)
        asks = (i >= start) & (i < stop)
        if key_norms is not None:
            # The own key, if the query attends to it, gives a lower bound of the row's log-sum-exp.
            own_j = i - apart
            there = asks & (own_j >= from_key) & (own_j < to_key)
            there = there & (own_j - i >= least) & (own_j - i <= most)
            own_k = tl.load(
                k_x + own_j.to(tl.int64)[:, None] * k.row + d[None, :],
                mask=there[:, None] & (d < W.D)[None, :], other=0.0,
            )  # fmt: skip
            limit = tl.sum(q_i.to(tl.float32) * own_k.to(tl.float32), 1)[:, None] * (heads.scale * LOG2E)
            limit += faint * LOG2E
            if bias is not None:
                limit += bias_at(bias, bias_entries, slopes, (own_j - i + of_bias)[:, None])
            if own is not None:
                limit += (own - tl.load(key_clock + own_j[:, None], mask=there[:, None], other=0.0)).to(
                    tl.float32
                ) * LOG2E
            limit = tl.where(there[:, None], limit, -float("inf"))
            is_faint = first < last
            while is_faint:
                j = first + tl.arange(0, N)
                here = j < last
                pair = j[None, :] - i_pair
                seen = asks[:, None] & here[None, :] & (pair >= least) & (pair <= most)
                bound = placed(
                    longest[:, None] * tl.load(key_norms + j, mask=here, other=0.0)[None, :],
                    pair + of_bias, first + N - 1 - i_low + of_bias, j, here, own, key_clock,
                    bias, bias_entries, slopes, level, slope,
                )  # fmt: skip
                # NaN is computed.
                is_faint = tl.sum(tl.sum((seen & ~(bound < limit)).to(tl.int32), 1), 0) == 0
                first = tl.where(is_faint, first + N, first)
                is_faint = is_faint & (first < last)
        for j0 in range(first, last, N):
            j = j0 + tl.arange(0, N)
            here = j < last
            pair = j[None, :] - i_pair
            k_j = rows(k_x, k.row, j0, here, W.D, N, W.BLOCK_D)
            v_j = rows(v_x, v.row, j0, here, W.V, N, W.BLOCK_V)
            s = product(q_i, tl.trans(k_j), W.PRECISION) * (heads.scale * LOG2E)
            if W.FUNCTION != 0:
                c = number(factor, factor_entries, pair + of_factor)
            if W.FUNCTION == 1:
                s = relu(s) * c
            if terms.vectors is not None:
                if j0 + N - 1 - i_low + of_vectors > 0:
                    for u in range(units):
                        size = vectors_entries * W.E
                        whose, a, table = unit(u, row, terms.vectors, size, first_head, Q, BY_HEAD)
                        from_ = j0 - i0 - a + of_vectors
                        near = entries_from(table, vectors_entries, from_, W.E, N, W.BLOCK_E).to(x.dtype)
                        s += tl.where(whose[:, None], product(x, tl.trans(near), W.PRECISION) * x_scale, 0.0)
                else:
                    s += low[:, None]
            s = placed(
                s, pair + of_bias, j0 + N - 1 - i_low + of_bias, j, here, own, key_clock,
                bias, bias_entries, slopes, level, slope,
            )  # fmt: skip
            if broken.lines is not None:
                far, first_piece, last_piece = pair + of_away, 0, LINES - 1
                if Q == 1:
                    nearest = j0 + N - 1 - i0 + of_away
                    first_piece = tl.sum((nearest < ends).to(tl.int32), 0)
                    last_piece = tl.sum((nearest - (N - 1) < ends).to(tl.int32), 0)
                away = number(broken.away, away_entries, far)
                s = lined(s, away, far, first_piece, last_piece, share, lines, line_ends)
            if W.FUNCTION == 2:
                s = relu(s) * c
            seen = asks[:, None] & here[None, :] & (pair >= least) & (pair <= most)
            p, m_i, l_i, fade = weigh(tl.where(seen, s, -float("inf")), 1.0, 0.0, m_i, l_i)
            acc = acc * fade[:, None] + product(p.to(v_j.dtype), v_j, W.PRECISION)
            if terms.value_vectors is not None:
                l_low = l_low * fade
                if j0 + N - 1 - i_low + of_values > 0:
                    for u in range(units):
                        whose, a, table = unit(
                            u, row, terms.value_vectors, values_entries * W.V, first_head, Q, BY_HEAD
                        )
                        from_ = j0 - i0 - a + of_values
                        near = entries_from(table, values_entries, from_, W.V, N, W.BLOCK_V).to(v_j.dtype)
                        acc += product(tl.where(whose[:, None], p, 0.0).to(v_j.dtype), near, W.PRECISION)
                else:
                    l_low += tl.sum(p, 1)
    d = tl.arange(0, W.BLOCK_V)
    if terms.value_vectors is not None:
        lowest = of_head(terms.value_vectors, h, values_entries, W.V)[:, None]
        nearest = tl.load(lowest + d[None, :], mask=(d < W.V)[None, :], other=0.0)
        acc += l_low[:, None] * nearest
    l_safe = tl.where(l_i == 0, 1.0, l_i)  # rows that see nothing give zeros
    at += part * (tl.num_programs(0) // blocks).to(tl.int64) * heads.heads * queries
    here = mine[:, None] & (d < W.V)[None, :]
    tl.store(out + at[:, None] * W.V + d[None, :], (acc / l_safe[:, None]).to(out.dtype.element_ty), mask=here)
    tl.store(lse + at, tl.where(l_i == 0, -float("inf"), (m_i + tl.log2(l_safe)) * LN2), mask=mine)


@triton.jit(do_not_specialize=["parts", "count"])
def decode_merge(
    partial, partial_lse, out, lse, parts, count,
    V: tl.constexpr, BLOCK_V: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One of ``count`` rows of the output, of at most PARTS parts: see `posenc.merge`."""
    row, every, d = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS), tl.arange(0, BLOCK_V)
    lses = tl.load(partial_lse + row + every.to(tl.int64) * count, mask=every < parts, other=-float("inf"))
    most = tl.max(lses, 0)
    highest = tl.where(most == -float("inf"), 0.0, most)
    total = tl.sum(tl.exp2((lses - highest) * LOG2E), 0)
    acc = tl.zeros((BLOCK_V,), tl.float32)
    for first in range(0, parts, STEP):
        n = first + tl.arange(0, STEP)
        at = row + n.to(tl.int64) * count
        share = tl.exp2((tl.load(partial_lse + at, mask=n < parts, other=-float("inf")) - highest) * LOG2E)
        there = (n < parts)[:, None] & (d < V)[None, :]
        acc += tl.sum(share[:, None] * tl.load(partial + at[:, None] * V + d[None, :], mask=there, other=0.0), 0)
    safe = tl.where(total == 0, 1.0, total)
    tl.store(out + row * V + d, (acc / safe).to(out.dtype.element_ty), mask=d < V)
    tl.store(lse + row, tl.where(total == 0, -float("inf"), highest + tl.log2(safe) * LN2))
