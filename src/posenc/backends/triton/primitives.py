"""Building blocks of the kernels: a block of scores, and conversions between layouts by key and by distance.

Query i and key j of a block are i0 + a and j0 + c. Vectors by distance are in the columns w = c - a + BLOCK - 1 of a
window, from the last query's first key to the first query's last key. A block of pairs by key is thus a block by
distance with each row shifted by one more column: a gather along rows, in either direction.

The entry of a pair in a table is j - i + base. Beyond its ends a table repeats its end entries, whose products are a
number per row.
"""

import triton
import triton.language as tl

# No `from __future__ import annotations` here: Triton evaluates annotations to find constexpr arguments.


@triton.jit
def places(x, stride, i0, COUNT: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Pointers to COUNT rows of x from i0 on: a 64-bit offset to the first row, and 32-bit offsets from there."""
    return (
        x
        + tl.cast(i0, tl.int64) * stride
        + (tl.arange(0, COUNT)[:, None] * stride + tl.arange(0, BLOCK_WIDTH)[None, :])
    )


@triton.jit
def rows(x, stride, i0, mine, WIDTH: tl.constexpr, COUNT: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Rows of x from i0 on, (COUNT, BLOCK_WIDTH); 0 where ``mine`` is false, and beyond their width."""
    there = mine[:, None] & (tl.arange(0, BLOCK_WIDTH) < WIDTH)[None, :]
    return tl.load(places(x, stride, i0, COUNT, BLOCK_WIDTH), mask=there, other=0.0)


@triton.jit
def put_rows(x, i0, mine, block, WIDTH: tl.constexpr, COUNT: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Writes contiguous rows of x from i0 on."""
    there = mine[:, None] & (tl.arange(0, BLOCK_WIDTH) < WIDTH)[None, :]
    tl.store(places(x, WIDTH, i0, COUNT, BLOCK_WIDTH), block.to(x.dtype.element_ty), mask=there)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a b in float32, (rows, columns). Triton's interpreter would multiply the integer representation of bfloat16, so
    with it, where the precision is "exact", inputs are converted first."""
    if PRECISION == "exact":
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def entry(table, n, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Entry n of a table, (BLOCK_WIDTH,)."""
    d = tl.arange(0, BLOCK_WIDTH)
    return tl.load(table + n * WIDTH + d, mask=d < WIDTH, other=0.0)


@triton.jit
def window(table, entries, from_, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """The entries of a table in a window that starts at entry ``from_``, (2 BLOCK, BLOCK_WIDTH); 0 outside the
    table."""
    n = from_ + tl.arange(0, 2 * BLOCK)
    return rows(table, WIDTH, from_, (n >= 0) & (n < entries), WIDTH, 2 * BLOCK, BLOCK_WIDTH)


@triton.jit
def reaches(entries, from_, BLOCK: tl.constexpr):
    """Whether a window that starts at entry ``from_`` overlaps the table."""
    return (from_ + 2 * BLOCK - 2 >= 0) & (from_ < entries)


@triton.jit
def by_key(x, BLOCK: tl.constexpr):
    """(BLOCK, 2 BLOCK) by distance as (BLOCK, BLOCK) by key."""
    a, c = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    return tl.gather(x, c - a + BLOCK - 1, 1)


@triton.jit
def by_distance(x, BLOCK: tl.constexpr):
    """(BLOCK, BLOCK) by key as (BLOCK, 2 BLOCK) by distance, with 0 for distances without a key."""
    a, w = tl.arange(0, BLOCK)[:, None], tl.arange(0, 2 * BLOCK)[None, :]
    c = w + a - (BLOCK - 1)
    return tl.where((c >= 0) & (c < BLOCK), tl.gather(x, tl.minimum(tl.maximum(c, 0), BLOCK - 1), 1), 0.0)


@triton.jit
def ends(x, table, entries, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """The products of rows x with the first and the last entry of a table, (BLOCK,) each."""
    first, last = entry(table, 0, WIDTH, BLOCK_WIDTH), entry(table, entries - 1, WIDTH, BLOCK_WIDTH)
    return tl.sum(x.to(tl.float32) * first[None, :], 1), tl.sum(x.to(tl.float32) * last[None, :], 1)


@triton.jit
def by_vectors(
    x, low, high, pair, base, apart, table, entries,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The products of rows x with the vectors of a table, (BLOCK, BLOCK); ``low`` and ``high`` are those with its ends.

    ``apart`` is the index of the first key minus that of the first query."""
    n, from_ = pair + base, apart + base - (BLOCK - 1)
    s = tl.broadcast_to(tl.where(from_ < 0, low, high)[:, None], (BLOCK, BLOCK))
    if reaches(entries, from_, BLOCK):
        near = window(table, entries, from_, WIDTH, BLOCK, BLOCK_WIDTH)
        s = by_key(product(x, tl.trans(near).to(x.dtype), PRECISION), BLOCK)
        s += tl.where(n < 0, low[:, None], tl.where(n >= entries, high[:, None], 0.0))
    return s


@triton.jit
def past_ends(pairs, n, entries, from_, BLOCK: tl.constexpr):
    """For each row, the sums of pairs whose entries n are before and after the table, (BLOCK,) each."""
    total = tl.sum(pairs, 1)
    low, high = tl.where(from_ < 0, total, 0.0), tl.where(from_ < 0, 0.0, total)
    if reaches(entries, from_, BLOCK):
        low, high = tl.sum(tl.where(n < 0, pairs, 0.0), 1), tl.sum(tl.where(n >= entries, pairs, 0.0), 1)
    return low, high


@triton.jit
def numbers(table, entries, n):
    """The values of a table of width 1 at entries n, of any shape, clamped to the table."""
    return tl.load(table + tl.minimum(tl.maximum(n, 0), entries - 1))


@triton.jit
def relu(s):
    """ReLU that propagates NaN."""
    return tl.where(s <= 0, 0.0, s)


@triton.jit
def scores(
    q, k, x, low, high, i0, j0, tile, scale, x_scale, query_clock, key_clock, zero,
    bias, bias_entries, vectors, vectors_entries, factor, factor_entries,
    E: tl.constexpr, BLOCK: tl.constexpr, BLOCK_E: tl.constexpr, FUNCTION: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The scores of queries from i0 on with keys from j0 on, -inf where masked; the scores before the function, its
    factor, and j - i; (BLOCK, BLOCK) each.

    ``x`` is multiplied with the vectors. Cumulative features are relative to ``zero``, for exact differences of near
    tokens. FUNCTION 1 comes first, 2 comes last, 0 is none.
    """
    i, j = i0 + tl.arange(0, BLOCK), j0 + tl.arange(0, BLOCK)
    start, stop, first, last = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    least, most = tl.load(tile + 4), tl.load(tile + 5)
    pair = j[None, :] - i[:, None]
    s = product(q, tl.trans(k), PRECISION) * scale
    bare, c = s, s
    if FUNCTION != 0:
        c = numbers(factor, factor_entries, pair + tl.load(tile + 9))
    if FUNCTION == 1:
        s = relu(s) * c
    if vectors is not None:
        base = tl.load(tile + 7)
        s += (
            by_vectors(x, low, high, pair, base, j0 - i0, vectors, vectors_entries, E, BLOCK, BLOCK_E, PRECISION)
            * x_scale
        )
    # After the products, so that a large bias is rounded only once.
    if bias is not None:
        s += numbers(bias, bias_entries, pair + tl.load(tile + 6))
    if query_clock is not None:
        own = tl.load(query_clock + i, mask=i < stop, other=0.0)
        other = tl.load(key_clock + j, mask=j < last, other=0.0)
        s += (own - zero).to(tl.float32)[:, None] - (other - zero).to(tl.float32)[None, :]
    if FUNCTION == 2:
        bare = s
        s = relu(s) * c
    is_whole = (i0 >= start) & (i0 + BLOCK <= stop) & (j0 >= first) & (j0 + BLOCK <= last)
    if not (is_whole & (j0 - i0 - BLOCK + 1 >= least) & (j0 - i0 + BLOCK - 1 <= most)):
        seen = ((i >= start) & (i < stop))[:, None] & ((j >= first) & (j < last))[None, :]
        s = tl.where(seen & (pair >= least) & (pair <= most), s, -float("inf"))
    return s, bare, c, pair


@triton.jit
def to_scores(p, dp, delta, bare, c, FUNCTION: tl.constexpr):
    """The gradients of the sum of terms, of the scaled product of query and key, and of the factor c, given those of
    the weights p."""
    ds = p * (dp - delta[:, None])
    terms, product, dc = ds, ds, ds
    if FUNCTION != 0:
        product = tl.where(bare <= 0, 0.0, ds * c)
        dc = ds * relu(bare)
    if FUNCTION == 2:
        terms = product
    return terms, product, dc


# -- gradients of tables, added by many blocks ------------------------------------------------------------------------


@triton.jit
def give_window(
    table, entries, from_, given, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_WIDTH: tl.constexpr
):  # fmt: skip
    """Adds (2 BLOCK, BLOCK_WIDTH) to the entries of a window that starts at entry ``from_``."""
    n, d = from_ + tl.arange(0, 2 * BLOCK), tl.arange(0, BLOCK_WIDTH)
    there = ((n >= 0) & (n < entries))[:, None] & (d < WIDTH)[None, :]
    tl.atomic_add(places(table, WIDTH, from_, 2 * BLOCK, BLOCK_WIDTH), given, mask=there, sem="relaxed")


@triton.jit
def give_line(table, entries, from_, pairs, BLOCK: tl.constexpr):
    """Adds the sums of pairs (BLOCK, BLOCK) by distance to a table of width 1."""
    if reaches(entries, from_, BLOCK):
        n = from_ + tl.arange(0, 2 * BLOCK)
        given = tl.sum(by_distance(pairs, BLOCK), 0)
        tl.atomic_add(table + n, given, mask=(n >= 0) & (n < entries), sem="relaxed")


@triton.jit
def give_ends(table, entries, low, high, x, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Adds the sums of rows x, (BLOCK, BLOCK_WIDTH), times ``low`` and ``high`` to a table's first and last entry."""
    d = tl.arange(0, BLOCK_WIDTH)
    x = x.to(tl.float32)
    tl.atomic_add(table + d, tl.sum(low[:, None] * x, 0), mask=d < WIDTH, sem="relaxed")
    tl.atomic_add(table + (entries - 1) * WIDTH + d, tl.sum(high[:, None] * x, 0), mask=d < WIDTH, sem="relaxed")
