"""What the kernels share: blocks of rows, the ranges of keys of a block of queries, and scores far and near.

Scores are in units of log 2, so that weights are powers of two. Query i and key j of a block are i0 + a and j0 + c. The
entry of a pair in a table is n = j - i + base, and beyond its ends a table repeats its end entries, or goes on along a
line (``slopes``). A block is far to the left if n < 0 for all of its pairs in all tables, and far to the right if n is
beyond all tables: there all terms by distance are a constant per row, and a line. Every other block is near.
"""

import triton
import triton.language as tl

from posenc.backends.triton.arguments import PRECISIONS

# No `from __future__ import annotations` here: Triton evaluates annotations to find constexpr arguments.

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
EXACT: tl.constexpr = tl.constexpr(PRECISIONS.index("exact"))
TF32: tl.constexpr = tl.constexpr(PRECISIONS.index("tf32"))


@triton.jit
def places(x, stride, i0, COUNT: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Pointers to COUNT rows of x from i0 on: a 64-bit offset to the first row, and 32-bit offsets from there."""
    return (
        x
        + tl.cast(i0, tl.int64) * stride
        + (tl.arange(0, COUNT)[:, None] * stride + tl.arange(0, BLOCK_WIDTH)[None, :])
    )


@triton.jit
def zeros(COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """Sums to add to: Triton 3.5 takes no field of a structure as a length of a tensor."""
    return tl.zeros((COUNT, WIDTH), tl.float32)


@triton.jit
def rows(x, stride, i0, mine, WIDTH: tl.constexpr, COUNT: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Rows of x from i0 on, (COUNT, BLOCK_WIDTH); 0 where ``mine`` is false, and beyond their width. ``mine`` None
    says that all of them exist."""
    at = places(x, stride, i0, COUNT, BLOCK_WIDTH)
    wide = (tl.arange(0, BLOCK_WIDTH) < WIDTH)[None, :]
    if mine is not None:
        return tl.load(at, mask=mine[:, None] & wide, other=0.0)
    if WIDTH == BLOCK_WIDTH:
        return tl.load(at)
    return tl.load(at, mask=wide, other=0.0)


@triton.jit
def put_rows(x, i0, mine, block, WIDTH: tl.constexpr, COUNT: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Writes contiguous rows of x from i0 on."""
    there = mine[:, None] & (tl.arange(0, BLOCK_WIDTH) < WIDTH)[None, :]
    tl.store(places(x, WIDTH, i0, COUNT, BLOCK_WIDTH), block.to(x.dtype.element_ty), mask=there)


@triton.jit
def more(x, values, at, mine, ADD: tl.constexpr):
    """Writes a number for each row, or adds it to what is there."""
    if ADD:
        values += tl.load(x + at, mask=mine, other=0.0)
    tl.store(x + at, values.to(x.dtype.element_ty), mask=mine)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a b in float32, (rows, columns). Triton's interpreter would multiply the integer representation of bfloat16, so
    with it, where the precision is exact, inputs are converted first."""
    if PRECISION == EXACT:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision="tf32" if PRECISION == TF32 else "ieee")


@triton.jit
def entry(table, n, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Entry n of a table, (BLOCK_WIDTH,)."""
    d = tl.arange(0, BLOCK_WIDTH)
    return tl.load(table + n * WIDTH + d, mask=d < WIDTH, other=0.0)


@triton.jit
def entries_from(table, entries, from_, WIDTH: tl.constexpr, COUNT: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """COUNT entries of a table from ``from_`` on, (COUNT, BLOCK_WIDTH); beyond its ends, the end entries."""
    n = tl.minimum(tl.maximum(from_ + tl.arange(0, COUNT), 0), entries - 1)
    d = tl.arange(0, BLOCK_WIDTH)
    return tl.load(table + n[:, None] * WIDTH + d[None, :], mask=(d < WIDTH)[None, :], other=0.0)


@triton.jit
def ends(x, table, entries, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """The products of rows x with the first and the last entry of a table, (rows,) each."""
    first, last = entry(table, 0, WIDTH, BLOCK_WIDTH), entry(table, entries - 1, WIDTH, BLOCK_WIDTH)
    return tl.sum(x.to(tl.float32) * first[None, :], 1), tl.sum(x.to(tl.float32) * last[None, :], 1)


@triton.jit
def relu(s):
    """ReLU that propagates NaN."""
    return tl.where(s <= 0, 0.0, s)


@triton.jit
def block_of(work, BLOCK: tl.constexpr, SQUARE: tl.constexpr):
    """The batch row and the head of a program, the first of the BLOCK tokens of its task, and the one after the last.
    So many programs have a task that each has SQUARE of them."""
    task = work.tasks + tl.program_id(0) // (BLOCK // SQUARE) * 5
    b, start = (tl.load(task) + tl.program_id(2)).to(tl.int64), tl.load(task + 1)
    return b, tl.program_id(1).to(tl.int64), start, tl.minimum(tl.load(task + 2), start + BLOCK)


@triton.jit
def tiles_of(work, BLOCK: tl.constexpr, SQUARE: tl.constexpr):
    """The first of the tiles of a program's task, and the one after the last."""
    task = work.tasks + tl.program_id(0) // (BLOCK // SQUARE) * 5
    return tl.load(task + 3), tl.load(task + 4)


@triton.jit
def of_row(rows, b, h):
    """Where the rows of a head of a batch row begin."""
    return rows.x + b * rows.batch + h * rows.head


# -- ranges of keys ----------------------------------------------------------------------------------------------------


@triton.jit
def last_of(entries):
    """The last entry of a table. ``entries`` None says that it has one, which is then known to the compiler: a line
    (ALiBi) needs no lookup for each pair."""
    if entries is None:
        return 0
    else:  # not without it: Triton would compile both
        return entries - 1


@triton.jit
def of_head(table, h, entries, WIDTH: tl.constexpr):
    """Where the table of a head begins; None without a table."""
    x = None
    if table is not None:
        x = table.x + h * table.by_head * ((last_of(entries) + 1) * WIDTH)
    return x


@triton.jit
def near_of(left, right, table, entries, base, low, high, OF_KEYS: tl.constexpr):
    """The tokens that are near a block low .. high in some table: those of the tables so far, and of one more, which
    may be None."""
    if table is not None:
        if OF_KEYS:
            left, right = tl.minimum(left, low + base - last_of(entries)), tl.maximum(right, high + base + 1)
        else:
            left, right = tl.minimum(left, low - base), tl.maximum(right, high - base + last_of(entries) + 1)
    return left, right


@triton.jit
def ranges(tile, i0, stop, lines, from_, to, N: tl.constexpr, OF_KEYS: tl.constexpr):
    """The keys of a tile that the queries i0 .. stop attend to, as six ends: pairs far to the left are in a .. b and
    far to the right in c .. d, of which none is masked and which are multiples of N; near pairs are in first .. a,
    b .. c and d .. last. OF_KEYS: the queries that attend to these keys, those far to the right of them first.
    In either case only those in ``from_`` .. ``to``."""
    mine, other = (2, 0) if OF_KEYS else (0, 2)
    start, end, first, last = (
        tl.load(tile + mine), tl.load(tile + mine + 1), tl.load(tile + other), tl.load(tile + other + 1)
    )  # fmt: skip
    least, most = tl.load(tile + 4), tl.load(tile + 5)
    if OF_KEYS:
        least, most = -most, -least
    low, high = tl.maximum(i0, start), tl.minimum(stop, end) - 1
    first, last = tl.maximum(tl.maximum(first, low + least), from_), tl.minimum(tl.minimum(last, high + most + 1), to)
    # Without a table all pairs are far to the left.
    left, right = -(1 << 30) if OF_KEYS else 1 << 30, -(1 << 30)
    left, right = near_of(left, right, lines.bias, lines.bias_entries, tl.load(tile + 6), low, high, OF_KEYS)
    left, right = near_of(left, right, lines.vectors, lines.vectors_entries, tl.load(tile + 7), low, high, OF_KEYS)
    left, right = near_of(left, right, lines.value_vectors, lines.values_entries, tl.load(tile + 8), low, high, OF_KEYS)
    left, right = near_of(left, right, lines.factor, lines.factor_entries, tl.load(tile + 9), low, high, OF_KEYS)
    # Seen by all tokens of the block.
    inner = tl.where((i0 >= start) & (stop <= end), tl.maximum(first, high + least), last)
    outer = tl.minimum(last, low + most + 1)
    some = tl.maximum(tl.minimum(outer, left) - inner, 0) // N * N
    a = tl.where(some > 0, inner, first)
    b = a + some
    from_ = tl.maximum(tl.maximum(inner, right), b)
    more = tl.maximum(outer - from_, 0) // N * N
    c = tl.where(more > 0, from_, last)
    return first, a, b, c, c + more, last


@triton.jit
def part_of(first, a, b, c, d, last, part):
    """One of the three ranges of near pairs."""
    return tl.where(part == 0, first, tl.where(part == 1, b, d)), tl.where(part == 0, a, tl.where(part == 1, c, last))


# -- scores ------------------------------------------------------------------------------------------------------------


@triton.jit
def number(table, entries, n):
    """The value of a table of width 1 at entries n, of any shape, clamped to the table; one number of one entry."""
    if entries is None:
        return tl.load(table)
    else:
        return tl.load(table + tl.minimum(tl.maximum(n, 0), entries - 1))


@triton.jit
def bias_at(bias, entries, slopes, n):
    """A bias at entries n, of any shape, in units of log 2; with slopes, it goes on along a line beyond its ends."""
    s = number(bias, entries, n)
    if slopes is not None:
        s += tl.load(slopes) * tl.maximum(-n, 0).to(tl.float32)
        s += tl.load(slopes + 1) * tl.maximum(n - last_of(entries), 0).to(tl.float32)
    return s * LOG2E


@triton.jit
def of_queries(x, KEYS_FIRST: tl.constexpr):
    """Numbers of queries, beside scores (queries, keys), or (keys, queries) with KEYS_FIRST."""
    return x[None, :] if KEYS_FIRST else x[:, None]


@triton.jit
def of_keys(x, KEYS_FIRST: tl.constexpr):
    """Numbers of keys, beside scores."""
    return x[:, None] if KEYS_FIRST else x[None, :]


@triton.jit
def is_whole(i0, j0, to, tile, M: tl.constexpr, N: tl.constexpr):
    """Whether no pair of M queries from i0 on and N keys from j0 on is masked, and all keys are before ``to``."""
    there = (i0 >= tl.load(tile)) & (i0 + M <= tl.load(tile + 1)) & (j0 >= tl.load(tile + 2)) & (j0 + N <= to)
    return there & (j0 - i0 - M + 1 >= tl.load(tile + 4)) & (j0 - i0 + N - 1 <= tl.load(tile + 5))


@triton.jit
def seen_of(i0, j0, to, tile, M: tl.constexpr, N: tl.constexpr, KEYS_FIRST: tl.constexpr):
    """Which pairs are not masked, and have a key before ``to``."""
    i, j = of_queries(i0 + tl.arange(0, M), KEYS_FIRST), of_keys(j0 + tl.arange(0, N), KEYS_FIRST)
    there = ((i >= tl.load(tile)) & (i < tl.load(tile + 1))) & ((j >= tl.load(tile + 2)) & (j < to))
    return there & (j - i >= tl.load(tile + 4)) & (j - i <= tl.load(tile + 5))


@triton.jit
def clock_of(clock, at, mine, zero):
    """A cumulative feature at tokens, relative to ``zero``, for exact differences of near tokens; in units of log 2."""
    there = tl.load(clock + at) if mine is None else tl.load(clock + at, mask=mine, other=0.0)
    return (there - zero).to(tl.float32) * LOG2E


@triton.jit
def near_scores(
    s, i0, j0, to, tile, met, own, key_clock, zero, lines,
    M: tl.constexpr, N: tl.constexpr, FUNCTION: tl.constexpr, KEYS_FIRST: tl.constexpr,
):  # fmt: skip
    """The scores of M queries from i0 on and N keys from j0 on, of their products s, whether masked or not; the scores
    before the function, its factor, and j - i. ``met`` are the scaled products with vectors and the bias, or
    None."""
    i, j = of_queries(i0 + tl.arange(0, M), KEYS_FIRST), j0 + tl.arange(0, N)
    pair = of_keys(j, KEYS_FIRST) - i
    bare, c = s, s
    if FUNCTION != 0:
        c = number(lines.factor, lines.factor_entries, pair + tl.load(tile + 9))
    if FUNCTION == 1:
        s = relu(s) * c
    # After the products, so that a large bias is rounded only once.
    if met is not None:
        s += met
    elif lines.bias is not None:
        s += bias_at(lines.bias, lines.bias_entries, lines.slopes, pair + tl.load(tile + 6))
    if own is not None:
        column = clock_of(key_clock, j, (j >= tl.load(tile + 2)) & (j < to), zero)
        s += of_queries(own, KEYS_FIRST) - of_keys(column, KEYS_FIRST)
    if FUNCTION == 2:
        bare = s
        s = relu(s) * c
    return s, bare, c, pair


@triton.jit
def far_row(met, own, lines, M: tl.constexpr, RIGHT: tl.constexpr):
    """What is added to all scores of a query with keys far to one side, (M,). ``met`` are its scaled products with the
    end vector, or None."""
    row = tl.zeros((M,), tl.float32)
    if met is not None:
        row += met
    if own is not None:
        row += own
    if lines.bias is not None:
        row += tl.load(lines.bias + (last_of(lines.bias_entries) if RIGHT else 0)) * LOG2E
        if lines.slopes is not None:
            row -= _slope(lines.slopes, RIGHT) * tl.arange(0, M)
    return row


@triton.jit
def far_clock(key_clock, j0, zero, N: tl.constexpr):
    """The cumulative feature of N keys that all exist, or None."""
    clock = None
    if key_clock is not None:
        clock = clock_of(key_clock, j0 + tl.arange(0, N), None, zero)
    return clock


@triton.jit
def far_column(clock, i0, j0, tile, lines, N: tl.constexpr, RIGHT: tl.constexpr):
    """What is added to all scores of a key with queries far to one side, (N,), or None. ``clock`` is its cumulative
    feature, or None."""
    column = None
    if lines.slopes is not None:
        n = (j0 - i0) + tl.load(tile + 6) - (last_of(lines.bias_entries) if RIGHT else 0) + tl.arange(0, N)
        column = _slope(lines.slopes, RIGHT) * n
        if clock is not None:
            column -= clock
    elif clock is not None:
        column = -clock
    return column


@triton.jit
def _slope(slopes, RIGHT: tl.constexpr):
    """The change of a bias from key to key, far to one side."""
    return (tl.load(slopes + 1) if RIGHT else -tl.load(slopes)) * LOG2E


@triton.jit
def far_scores(
    s, scale, row, column, lines, FUNCTION: tl.constexpr, RIGHT: tl.constexpr, KEYS_FIRST: tl.constexpr
):  # fmt: skip
    """Scores of pairs far to one side, as s * by + rest, with a number ``by``, and ``rest`` of queries: of the products
    s, and of `far_row` and `far_column`. What is the same for a row need not be added to each pair. Also the scores
    before the function, and its factor, which is one number."""
    by, rest, bare, c = scale, row, s, 1.0
    if (FUNCTION != 0) or (column is not None):
        s, by = s * scale, 1.0
        bare = s
    if FUNCTION != 0:
        c = tl.load(lines.factor + (lines.factor_entries - 1 if RIGHT else 0))
    if FUNCTION == 1:
        s = relu(s) * c
    if column is not None:
        s += of_keys(column, KEYS_FIRST)
    if FUNCTION == 2:
        s += of_queries(row, KEYS_FIRST)
        bare, rest = s, tl.zeros_like(row)
        s = relu(s) * c
    return s, by, rest, bare, c


# -- between keys and distances ----------------------------------------------------------------------------------------
#
# Pairs of a square block of B queries and B keys have 2 B - 1 distances. Those of the keys' own square are in the
# columns w = c - a + B - 1 of a window: a row's first B - a columns that it has are in the window's first half, and the
# others in its second half, where the first half of the next block of keys begins. So a row of both halves is a row by
# key that is rotated. A half is multiplied anew in the next block, since carrying it costs registers.


@triton.jit
def by_key(left, right, B: tl.constexpr):
    """From both halves of a window by distance, (B, B) each, to pairs by key."""
    a, w = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    return tl.gather(tl.where(w >= B - 1 - a, left, right), (w - a + B - 1) % B, 1)


@triton.jit
def by_distance(x, B: tl.constexpr):
    """From pairs by key to both halves of a window by distance, with 0 where a row has no key."""
    a, w = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    x = tl.gather(x, (w + a + 1) % B, 1)
    return tl.where(w >= B - 1 - a, x, 0.0), tl.where(w >= B - 1 - a, 0.0, x)


@triton.jit
def met_with(
    x, scale, lines, window, tile, B: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """The scaled products of B rows with the vectors of their distances to B keys, (B, B), and the bias of these
    distances, which saves looking it up for each pair; None without vectors. A ``window`` begins at this distance."""
    met = None
    if lines.vectors is not None:
        left, right = _halves(
            x, scale, lines.vectors, lines.vectors_entries, window + tl.load(tile + 7), B, E, BLOCK_E, PRECISION
        )
        if lines.bias is not None:
            n = window + tl.load(tile + 6) + tl.arange(0, B)
            left += bias_at(lines.bias, lines.bias_entries, lines.slopes, n)[None, :]
            right += bias_at(lines.bias, lines.bias_entries, lines.slopes, n + B)[None, :]
        met = by_key(left, right, B)
    return met


@triton.jit
def met_with_values(
    x, lines, window, tile, B: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """The same of the vectors of values, which there are."""
    left, right = _halves(
        x, 1.0, lines.value_vectors, lines.values_entries, window + tl.load(tile + 8), B, V, BLOCK_V, PRECISION
    )
    return by_key(left, right, B)


@triton.jit
def _halves(
    x, scale, table, entries, from_,
    B: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The products of B rows with both halves of a window of entries from ``from_`` on."""
    near = entries_from(table, entries, from_, WIDTH, B, BLOCK_WIDTH).to(x.dtype)
    left = product(x, tl.trans(near), PRECISION) * scale
    near = entries_from(table, entries, from_ + B, WIDTH, B, BLOCK_WIDTH).to(x.dtype)
    return left, product(x, tl.trans(near), PRECISION) * scale


@triton.jit
def of_vectors(
    acc, pairs, table, entries, from_, dtype: tl.constexpr,
    WIDTH: tl.constexpr, B: tl.constexpr, BLOCK_WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds to B rows the sums of the vectors of their distances to B keys, times a number for each pair."""
    left, right = by_distance(pairs, B)
    near = entries_from(table, entries, from_, WIDTH, B, BLOCK_WIDTH).to(dtype)
    acc += product(left.to(dtype), near, PRECISION)
    near = entries_from(table, entries, from_ + B, WIDTH, B, BLOCK_WIDTH).to(dtype)
    acc += product(right.to(dtype), near, PRECISION)
    return acc


# -- weights -----------------------------------------------------------------------------------------------------------


@triton.jit
def weigh(s, by, row, m_i, l_i):
    """The weights of more scores s * by + row, relative to a new maximum; the maximum and the sum; and by how much
    older weights fade. ``by`` is positive. Rows that see nothing so far have a maximum of -inf."""
    m_new = tl.maximum(m_i, tl.max(s, 1) * by + row)
    offset = tl.where(m_new == -float("inf"), 0.0, m_new)
    fade = tl.exp2(m_i - offset)
    p = tl.exp2(s * by - (offset - row)[:, None])
    return p, m_new, l_i * fade + tl.sum(p, 1), fade


@triton.jit
def lse_of(lse, at, mine):
    """The log-sum-exp of rows in units of log 2, and inf where a row has no weights or, by ``mine``, does not exist."""
    there = tl.load(lse + at) if mine is None else tl.load(lse + at, mask=mine, other=float("inf"))
    return tl.where(there == -float("inf"), float("inf"), there) * LOG2E


@triton.jit
def seen_alone(p, ds, i0, j0, to, tile, M: tl.constexpr, N: tl.constexpr):
    """Weights and gradients of scores, 0 where a pair is masked. A block without such pairs needs no mask."""
    if not is_whole(i0, j0, to, tile, M, N):
        seen = seen_of(i0, j0, to, tile, M, N, False)
        p, ds = tl.where(seen, p, 0.0), tl.where(seen, ds, 0.0)
    return p, ds
