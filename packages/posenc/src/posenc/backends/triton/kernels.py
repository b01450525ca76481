"""The kernels: attention and its gradients, which blocks count, and few queries.

Scores are in units of log 2, so that weights are powers of two. Query i and key j of a block are i0 + a and j0 + c. The
entry of a pair in a table is n = j - i + base, and beyond its ends a table repeats its end entries, or goes on along a
line (``slopes``). A block is far to the left if n < 0 for all of its pairs in all tables, and far to the right if n is
beyond all tables: there all terms by distance are a constant per row, and a line. Every other block is near.

A program of queries has a block of them of one head, and goes over all keys that they attend to; one of keys has all
queries that attend to these. In the backward pass each writes what no other program writes, so gradients are the same
in every run. Programs with few queries share the keys of a head, and then their outputs are merged.
"""

# No `from __future__ import annotations` here: Triton evaluates annotations to find constexpr arguments.

import triton
import triton.language as tl

from posenc.backends.triton.arguments import LENGTHS, PRECISIONS, STEP_LENGTHS, Lines
from posenc.backends.triton.tasks import SPAN

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
def put_parts(
    x, i0, mine, block, over, WIDTH: tl.constexpr, COUNT: tl.constexpr, BLOCK_WIDTH: tl.constexpr, MORE: tl.constexpr
):  # fmt: skip
    """`put_rows` of parts, divided by ``over``."""
    put_rows(x, i0, mine, block[0] / over, WIDTH, COUNT, BLOCK_WIDTH)
    if MORE != 0:
        there = mine[:, None] & (tl.arange(0, MORE) < WIDTH - BLOCK_WIDTH)[None, :]
        at = places(x + BLOCK_WIDTH, WIDTH, i0, COUNT, MORE)
        tl.store(at, (block[1] / over).to(x.dtype.element_ty), mask=there)


@triton.jit
def more(x, values, at, mine, ADD: tl.constexpr):
    """Writes a number for each row, or adds it to what is there."""
    if ADD:
        values += tl.load(x + at, mask=mine, other=0.0)
    tl.store(x + at, values.to(x.dtype.element_ty), mask=mine)


@triton.jit
def put_ends(x, past, low, high, at, mine, ADD: tl.constexpr):
    """The same of the sums beyond either end of a table, unless they are not wanted."""
    if x is not None:
        more(x, low, at, mine, ADD)
        more(x + past, high, at, mine, ADD)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a b in float32, (rows, columns). Triton's interpreter would multiply the integer representation of bfloat16, so
    with it, where the precision is exact, inputs are converted first."""
    if PRECISION == EXACT:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision="tf32" if PRECISION == TF32 else "ieee")


# Blocks have powers of two of channels. Rather than with the next of them, kernels without vectors by distance compute
# with the one before and MORE channels after these: rows, and sums, are in so many parts, one of which where MORE is 0.


@triton.jit
def parts(
    x, stride, i0, mine, WIDTH: tl.constexpr, COUNT: tl.constexpr, BLOCK_WIDTH: tl.constexpr, MORE: tl.constexpr
):  # fmt: skip
    """`rows` in parts."""
    if MORE == 0:
        return (rows(x, stride, i0, mine, WIDTH, COUNT, BLOCK_WIDTH),)
    else:
        return (
            rows(x, stride, i0, mine, BLOCK_WIDTH, COUNT, BLOCK_WIDTH),
            rows(x + BLOCK_WIDTH, stride, i0, mine, WIDTH - BLOCK_WIDTH, COUNT, MORE),
        )


@triton.jit
def zero_parts(COUNT: tl.constexpr, WIDTH: tl.constexpr, MORE: tl.constexpr):
    """Sums to add to, in parts."""
    if MORE == 0:
        return (zeros(COUNT, WIDTH),)
    else:
        return zeros(COUNT, WIDTH), zeros(COUNT, MORE)


@triton.jit
def scaled(sums, by, MORE: tl.constexpr):
    """Parts times a number."""
    if MORE == 0:
        return (sums[0] * by,)
    else:
        return sums[0] * by, sums[1] * by


@triton.jit
def inner_product(a, b, PRECISION: tl.constexpr, MORE: tl.constexpr):
    """The products of each row of a with each of b, both in parts."""
    s = product(a[0], tl.trans(b[0]), PRECISION)
    if MORE != 0:
        s += product(a[1], tl.trans(b[1]), PRECISION)
    return s


@triton.jit
def add_product(sums, p, x, PRECISION: tl.constexpr, MORE: tl.constexpr):
    """sums + p x, in parts."""
    p = p.to(x[0].dtype)
    if MORE == 0:
        return (sums[0] + product(p, x[0], PRECISION),)
    else:
        return sums[0] + product(p, x[0], PRECISION), sums[1] + product(p, x[1], PRECISION)


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
    """The batch row and the head of a program, the first of the BLOCK tokens of its task, and the one after the last;
    and the same of its tiles. So many programs have a task that each has SQUARE of the tokens."""
    task = work.tasks + tl.program_id(0) // (BLOCK // SQUARE) * 5
    b, start = (tl.load(task) + tl.program_id(2)).to(tl.int64), tl.load(task + 1)
    stop = tl.minimum(tl.load(task + 2), start + BLOCK)
    return b, tl.program_id(1).to(tl.int64), start, stop, tl.load(task + 3), tl.load(task + 4)


@triton.jit
def of_row(rows, b, h):
    """Where the rows of a head of a batch row begin."""
    return rows.x + b * rows.batch + h * rows.head


@triton.jit
def stride_of(rows, known):
    """The distance from row to row. If the compiler knows it, a thread has one address for several rows."""
    if known is None:
        return rows.row
    else:
        return known


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


# A warp's part of a product on Hopper has columns of a row in registers and in the four threads of its lowest two bits:
# column 8 h + 2 t + o is of thread t, and rows are 8 threads, two registers and the warps. So a row is rotated where it
# is, by registers that change names, choices, and one shuffle for each number; a gather along all columns would go
# through shared memory, there and back. In other layouts the result is the same.


@triton.jit
def rotated(x, SIGN: tl.constexpr, MORE: tl.constexpr, B: tl.constexpr):
    """Rows of x, (B, B), rotated to the left: in row a, column c gets what is in column c + SIGN a + MORE, modulo B."""
    even, odd = tl.split(tl.reshape(x, (B // 16, 2, 8, B // 8, 4, 2)))
    # Others of a row's numbers are multiples of eight.
    is_odd = (SIGN * tl.arange(0, 8)[None, None, :, None, None] + MORE) % 2 == 1
    even, odd = tl.where(is_odd, odd, even), tl.where(is_odd, even, odd)
    return tl.reshape(tl.join(_rotated_pairs(even, SIGN, MORE, B), _rotated_pairs(odd, SIGN, MORE + 1, B)), (B, B))


@triton.jit
def _rotated_pairs(x, SIGN: tl.constexpr, MORE: tl.constexpr, B: tl.constexpr):
    """The same by half of that, rounded down, of one column of each pair: (B / 16, 2, 8, B / 8, 4)."""
    H: tl.constexpr = B // 8
    # The order that makes Triton gather where numbers are: threads first, then warps, then registers.
    x = tl.reshape(tl.trans(x, 3, 1, 0, 2, 4), (H * B, 4))
    r = tl.arange(0, 4 * B)
    a = r // 4 % 8 + r // (2 * B) * 8 + r // 32 % (B // 16) * 16
    by = (SIGN * a + MORE) // 2 + r % 4
    x = tl.gather(x, tl.reshape(tl.broadcast_to((by % 4)[None, :], (H, 4 * B)), (H * B, 4)), 1)
    x = _rolled(tl.trans(tl.reshape(x, (H, 4 * B))), by // 4, 4 * B, H)
    return tl.trans(tl.reshape(tl.trans(x), (H, 2, B // 16, 8, 4)), 2, 1, 3, 0, 4)


@triton.jit
def _rolled(x, by, R: tl.constexpr, N: tl.constexpr):
    """Rows of x, (R, N), rotated to the left by the numbers ``by``, bit by bit."""
    if N == 1:
        return x
    else:  # not without it: Triton would compile both
        x = tl.where((by % 2 == 1)[:, None], _next(x, R, N), x)
        even, odd = tl.split(tl.reshape(x, (R, N // 2, 2)))
        even, odd = _rolled(even, by // 2, R, N // 2), _rolled(odd, by // 2, R, N // 2)
        return tl.reshape(tl.join(even, odd), (R, N))


@triton.jit
def _next(x, R: tl.constexpr, N: tl.constexpr):
    """Rows rotated to the left by one."""
    if N == 1:
        return x
    else:
        even, odd = tl.split(tl.reshape(x, (R, N // 2, 2)))
        return tl.reshape(tl.join(odd, _next(even, R, N // 2)), (R, N))


@triton.jit
def by_key(left, right, B: tl.constexpr):
    """From both halves of a window by distance, (B, B) each, to pairs by key."""
    a, w = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    return rotated(tl.where(w >= B - 1 - a, left, right), -1, B - 1, B)


@triton.jit
def by_distance(x, B: tl.constexpr):
    """From pairs by key to both halves of a window by distance, with 0 where a row has no key."""
    a, w = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    x = rotated(x, 1, 1, B)
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


# -- which blocks count ------------------------------------------------------------------------------------------------
#
# Upper bounds of scores and lower bounds of log-sum-exps, in natural units. The score of a query's own key is a lower
# bound of the row's log-sum-exp, and no score exceeds scale |q_i| |k_j| plus the most that terms add. NaN counts as
# infinite, so that what is NaN is computed.

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
    q, k, lse, terms, bias_entries, longest, bounds, heads, queries, keys, own, low,
    W: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """The bounds of a block of queries, where the norm of the longest vector is ``longest``. Without ``lse``, the least
    log-sum-exp is that of the scores with their own keys, j = i + ``own``."""
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    i0 = tl.program_id(0) * SPAN
    i = i0 + tl.arange(0, SPAN)
    mine = i < queries
    row = b * heads.heads + h
    at = row * tl.num_programs(0) + tl.program_id(0)
    q_i = rows(of_row(q, b, h), q.row, i0, mine, W.D, SPAN, W.BLOCK_D)
    lift = tl.zeros((SPAN,), tl.float32)
    if longest is not None:
        length = tl.load(longest + h)
        if terms.meeting is not None:
            x = rows(terms.meeting + row * queries * W.E, W.E, i0, mine, W.E, SPAN, W.BLOCK_E)
            lift = norms(x.to(tl.float32)) * length
        else:
            lift = norms(q_i.to(tl.float32)) * (length * heads.scale)
        tl.store(bounds.vectors + at, tl.max(or_infinite(lift), 0))
    if terms.shift is not None:
        q_i = (q_i + entry(terms.shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i.dtype)
    x = q_i.to(tl.float32)
    tl.store(bounds.norm + at, tl.max(or_infinite(norms(x)), 0) * heads.scale)
    if terms.query_clock is not None:
        reading = tl.load(terms.query_clock + row * queries + i, mask=mine, other=-float("inf"))
        tl.store(bounds.clock + at, tl.max(or_infinite(reading), 0))
    if lse is not None:
        score = tl.load(lse + row * queries + i, mask=mine, other=float("inf"))
        score = tl.where(score == -float("inf"), float("inf"), score)  # a fully masked row has no weights
    else:
        k_i = rows(of_row(k, b, h // heads.groups), k.row, i0 + own, mine, W.D, SPAN, W.BLOCK_D)
        score = tl.sum(x * k_i.to(tl.float32), 1) * heads.scale - lift
        if terms.bias is not None:
            score += number(of_head(terms.bias, h, bias_entries, 1), bias_entries, -low)
        if terms.query_clock is not None:
            apart = reading - tl.load(terms.key_clock + row * keys + i + own, mask=mine, other=0.0)
            score += apart.to(tl.float32)
        score = tl.where(mine, score, float("inf"))
    tl.store(bounds.lse + at, -tl.max(or_infinite(-score), 0))


@triton.jit(do_not_specialize=LENGTHS)
def bounds_keys(k, key_clock, bounds, heads, keys, W: tl.constexpr, SPAN: tl.constexpr):
    """The bounds of a block of keys; the cumulative feature is of every query head of the group."""
    of_keys, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    j0 = tl.program_id(0) * SPAN
    j = j0 + tl.arange(0, SPAN)
    row = b * tl.num_programs(1) + of_keys
    k_j = rows(of_row(k, b, of_keys), k.row, j0, j < keys, W.D, SPAN, W.BLOCK_D)
    at = row * tl.num_programs(0) + tl.program_id(0)
    tl.store(bounds.norm + at, tl.max(or_infinite(norms(k_j.to(tl.float32))), 0))
    if key_clock is not None:
        for g in range(heads.groups):
            head = row * heads.groups + g
            reading = tl.load(key_clock + head * keys + j, mask=j < keys, other=float("inf"))
            lowest = -tl.max(or_infinite(-reading), 0)
            tl.store(bounds.clock + head * tl.num_programs(0) + tl.program_id(0), lowest)


@triton.jit(do_not_specialize=LENGTHS)
def bounds_counted(
    counted, of_queries, of_keys, blocks_q, blocks_k, place_q, place_k, bias, bias_entries, slopes, highest, low, heads,
    threshold, SPAN: tl.constexpr, C: tl.constexpr, OF_KEYS: tl.constexpr,
):  # fmt: skip
    """The first of the keys that a block of queries must be computed with, and the one after the last: of blocks in
    which a score may be above the threshold, relative to a log-sum-exp. OF_KEYS: the first and last queries for a block
    of keys.

    ``highest`` are the maxima of a bias over the 2 SPAN - 1 distances of two contiguous blocks, from those on that are
    all before the table up to those that are all beyond it."""
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    row = b * tl.num_programs(1) + h
    of_q, of_k = row * blocks_q, (b * (tl.num_programs(1) // heads.groups) + h // heads.groups) * blocks_k
    others = blocks_q if OF_KEYS else blocks_k
    window = 2 * SPAN - 1
    first, last = others, 0
    for from_ in range(0, others, C):
        other = from_ + tl.arange(0, C)
        here = other < others
        mine = tl.zeros((C,), tl.int32) + tl.program_id(0)
        q, k = (other, mine) if OF_KEYS else (mine, other)
        bound = tl.load(of_queries.norm + of_q + q, mask=here, other=0.0)
        bound *= tl.load(of_keys.norm + of_k + k, mask=here, other=0.0)
        if of_queries.vectors is not None:
            bound += tl.load(of_queries.vectors + of_q + q, mask=here, other=0.0)
        if of_queries.clock is not None:
            reading = tl.load(of_queries.clock + of_q + q, mask=here, other=0.0)
            bound += (reading - tl.load(of_keys.clock + row * blocks_k + k, mask=here, other=0.0)).to(tl.float32)
        if bias is not None:
            q_place, k_place = of_head(place_q, b, blocks_q, 2) + q * 2, of_head(place_k, b, blocks_k, 2) + k * 2
            least = tl.load(k_place, mask=here, other=0) - tl.load(q_place + 1, mask=here, other=0)
            greatest = tl.load(k_place + 1, mask=here, other=0) - tl.load(q_place, mask=here, other=0)
            n, m = least - low, greatest - low
            at = tl.minimum(tl.maximum(n + window, 0), bias_entries + window)
            added = tl.load(of_head(highest, h, bias_entries + window + 1, 1) + at)
            if slopes is not None:  # a line is highest at either end
                table, line = of_head(bias, h, bias_entries, 1), of_head(slopes, h, 2, 1)
                added = tl.maximum(added, _beyond(table, bias_entries, line, n))
                added = tl.maximum(added, _beyond(table, bias_entries, line, m))
            bound += tl.where(greatest - least >= window, float("inf"), or_infinite(added))
        counts = here & ~(bound < tl.load(of_queries.lse + of_q + q, mask=here, other=0.0) + threshold)
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


# -- forward -----------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=LENGTHS)
def forward(
    q, k, v, out, lse, terms, bias_entries, vectors_entries, values_entries, factor_entries, work, blocks, heads,
    queries, keys, W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, HAS_RIGHT: tl.constexpr,
    NEAR_STAGES: tl.constexpr,
):  # fmt: skip
    """Far pairs, and near ones too unless they have vectors: those `forward_near` adds."""
    b, h, i0, stop, first_tile, last_tile = block_of(work, M, M)
    q_row, k_row, v_row = stride_of(q, W.Q_ROW), stride_of(k, W.K_ROW), stride_of(v, W.V_ROW)
    i = i0 + tl.arange(0, M)
    mine = i < stop
    row = b * heads.heads + h  # of (batch, heads)
    k_x, v_x = of_row(k, b, h // heads.groups), of_row(v, b, h // heads.groups)
    q_i = parts(of_row(q, b, h), q_row, i0, mine, W.D, M, W.BLOCK_D, W.MORE_D)
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
            low, high = ends(q_i[0], lines.vectors, vectors_entries, W.E, W.BLOCK_E)
            low, high = low * (heads.scale * LOG2E), high * (heads.scale * LOG2E)
    if terms.shift is not None:
        q_i = ((q_i[0] + entry(terms.shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i[0].dtype),)
    if terms.query_clock is not None:
        query_clock, key_clock = terms.query_clock + row * queries, terms.key_clock + row * keys
        zero = tl.load(query_clock + i0)
        own = clock_of(query_clock, i, mine, zero)
    m_i, l_i = tl.full((M,), -float("inf"), tl.float32), tl.zeros((M,), tl.float32)
    acc = zero_parts(M, W.BLOCK_V, W.MORE_V)
    l_low, l_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)  # beyond the ends of the values
    from_i, to_i = counted_of(work.counted, blocks, row, i0, stop)
    for n in range(first_tile, last_tile):
        tile = work.tiles + n * 10
        first, a, b_, c, d, last = ranges(tile, i0, stop, lines, from_i, to_i, N, False)
        row_low = far_row(low, own, lines, M, False)
        for j0 in range(a, b_, N):
            acc, m_i, l_i, l_low, l_high = _see_far_keys(
                acc, m_i, l_i, l_low, l_high, q_i, k_x, k_row, v_x, v_row, i0, j0, tile, heads.scale, row_low,
                key_clock, zero, lines, W, N, False,
            )  # fmt: skip
        if HAS_RIGHT:
            row_high = far_row(high, own, lines, M, True)
            for j0 in range(c, d, N):
                acc, m_i, l_i, l_high, l_low = _see_far_keys(
                    acc, m_i, l_i, l_high, l_low, q_i, k_x, k_row, v_x, v_row, i0, j0, tile, heads.scale, row_high,
                    key_clock, zero, lines, W, N, True,
                )  # fmt: skip
        if (terms.vectors is None) and (terms.value_vectors is None):
            for part in range(3):
                from_, to = part_of(first, a, b_, c, d, last, part)
                for j0 in tl.range(from_, to, N, num_stages=NEAR_STAGES):
                    here = j0 + tl.arange(0, N) < to
                    k_j = parts(k_x, k_row, j0, here, W.D, N, W.BLOCK_D, W.MORE_D)
                    v_j = parts(v_x, v_row, j0, here, W.V, N, W.BLOCK_V, W.MORE_V)
                    s, _, _, _ = near_scores(
                        inner_product(q_i, k_j, W.PRECISION, W.MORE_D) * (heads.scale * LOG2E), i0, j0, to, tile, None,
                        own, key_clock, zero, lines, M, N, W.FUNCTION, False,
                    )  # fmt: skip
                    s = tl.where(seen_of(i0, j0, to, tile, M, N, False), s, -float("inf"))
                    p, m_i, l_i, fade = weigh(s, 1.0, 0.0, m_i, l_i)
                    acc = add_product(scaled(acc, fade[:, None], W.MORE_V), p, v_j, W.PRECISION, W.MORE_V)
    if terms.value_vectors is not None:
        all_values = acc[0] + l_low[:, None] * entry(lines.value_vectors, 0, W.V, W.BLOCK_V)[None, :]
        all_values += l_high[:, None] * entry(lines.value_vectors, values_entries - 1, W.V, W.BLOCK_V)[None, :]
        acc = (all_values,)
    l_safe = tl.where(l_i == 0, 1.0, l_i)  # fully masked rows give zeros
    put_parts(out + row * queries * W.V, i0, mine, acc, l_safe[:, None], W.V, M, W.BLOCK_V, W.MORE_V)
    tl.store(lse + row * queries + i, tl.where(l_i == 0, -float("inf"), (m_i + tl.log2(l_safe)) * LN2), mask=mine)


@triton.jit
def _see_far_keys(
    acc, m_i, l_i, l_here, l_there, q_i, k, k_row, v, v_row, i0, j0, tile, scale, row, key_clock, zero, lines,
    W: tl.constexpr, N: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """A block of keys far to one side. ``l_here`` and ``l_there`` are the weights beyond the ends of the values, on
    this side and on the other."""
    k_j = parts(k, k_row, j0, None, W.D, N, W.BLOCK_D, W.MORE_D)
    v_j = parts(v, v_row, j0, None, W.V, N, W.BLOCK_V, W.MORE_V)
    column = far_column(far_clock(key_clock, j0, zero, N), i0, j0, tile, lines, N, RIGHT)
    s, by, rest, _, _ = far_scores(
        inner_product(q_i, k_j, W.PRECISION, W.MORE_D), scale * LOG2E, row, column, lines, W.FUNCTION, RIGHT, False
    )
    p, m_i, l_i, fade = weigh(s, by, rest, m_i, l_i)
    acc = add_product(scaled(acc, fade[:, None], W.MORE_V), p, v_j, W.PRECISION, W.MORE_V)
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
    b, h, block, end, first_tile, last_tile = block_of(work, M, B)
    q_row, k_row, v_row = stride_of(q, W.Q_ROW), stride_of(k, W.K_ROW), stride_of(v, W.V_ROW)
    i0 = block + tl.program_id(0) % (M // B) * B
    i = i0 + tl.arange(0, B)
    mine = i < end
    row = b * heads.heads + h
    k_x, v_x = of_row(k, b, h // heads.groups), of_row(v, b, h // heads.groups)
    q_i = rows(of_row(q, b, h), q_row, i0, mine, W.D, B, W.BLOCK_D)
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
    for n in range(first_tile, last_tile):
        tile = work.tiles + n * 10
        first, a, b_, c, d, last = ranges(tile, block, end, lines, from_i, to_i, N, False)
        least, most = tl.load(tile + 4), tl.load(tile + 5)
        for part in range(3):
            from_, to = part_of(first, a, b_, c, d, last, part)
            from_, to = tl.maximum(from_, i0 + least), tl.minimum(to, i0 + B + most)
            for j0 in range(from_, to, B):
                here = j0 + tl.arange(0, B) < to
                k_j = rows(k_x, k_row, j0, here, W.D, B, W.BLOCK_D)
                v_j = rows(v_x, v_row, j0, here, W.V, B, W.BLOCK_V)
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


# -- backward ----------------------------------------------------------------------------------------------------------


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
def past_ends(low, high, pairs, n, entries):
    """For each row, the sums so far and those of pairs whose entries n are before and after the table, (rows,) each."""
    low += tl.sum(tl.where(n < 0, pairs, 0.0), 1)
    return low, high + tl.sum(tl.where(n > last_of(entries), pairs, 0.0), 1)


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
    b, h, i0, stop, first_tile, last_tile = block_of(work, M, M)
    q_row, k_row, v_row = stride_of(q, W.Q_ROW), stride_of(k, W.K_ROW), stride_of(v, W.V_ROW)
    i = i0 + tl.arange(0, M)
    mine = i < stop
    row = b * heads.heads + h
    at = row * queries + i
    k_x, v_x = of_row(k, b, h // heads.groups), of_row(v, b, h // heads.groups)
    q_i = parts(of_row(q, b, h), q_row, i0, mine, W.D, M, W.BLOCK_D, W.MORE_D)
    do = parts(incoming.dout + row * queries * W.V, W.V, i0, mine, W.V, M, W.BLOCK_V, W.MORE_V)
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
            low, high = ends(q_i[0], lines.vectors, vectors_entries, W.E, W.BLOCK_E)
            low, high = low * (heads.scale * LOG2E), high * (heads.scale * LOG2E)
        put_ends(met_ends, past, low, high, at, mine, False)
    if terms.value_vectors is not None:
        do_low, do_high = ends(do[0], lines.value_vectors, values_entries, W.V, W.BLOCK_V)
        put_ends(out_ends, past, do_low, do_high, at, mine, False)
        delta_low, delta_high = delta_i - do_low, delta_i - do_high
    if terms.shift is not None:
        q_i = ((q_i[0] + entry(terms.shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i[0].dtype),)
    if terms.query_clock is not None:
        query_clock, key_clock = terms.query_clock + row * queries, terms.key_clock + row * keys
        zero = tl.load(query_clock + i0)
        own = clock_of(query_clock, i, mine, zero)
    acc = zero_parts(M, W.BLOCK_D, W.MORE_D)
    # Sums over the pairs of a row beyond either end of a table: of all terms, of a bias, and of the factor.
    s_low, s_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    b_low, b_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    n_low, n_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    p_low, p_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    c_low, c_high = tl.zeros((M,), tl.float32), tl.zeros((M,), tl.float32)
    d_clock = tl.zeros((M,), tl.float32)
    from_i, to_i = counted_of(work.counted, blocks, row, i0, stop)
    for n in range(first_tile, last_tile):
        tile = work.tiles + n * 10
        first, a, b_, c, d, last = ranges(tile, i0, stop, lines, from_i, to_i, N, False)
        row_low = far_row(low, own, lines, M, False)
        for j0 in range(a, b_, N):
            acc, s_low, n_low, p_low, c_low = _derive_far_keys(
                acc, s_low, n_low, p_low, c_low, q_i, do, lse_i, delta_low, k_x, k_row, v_x, v_row, i0, j0, tile,
                heads.scale, row_low, key_clock, zero, lines, pasts, W, N, False,
            )  # fmt: skip
        if HAS_RIGHT:
            row_high = far_row(high, own, lines, M, True)
            for j0 in range(c, d, N):
                acc, s_high, n_high, p_high, c_high = _derive_far_keys(
                    acc, s_high, n_high, p_high, c_high, q_i, do, lse_i, delta_high, k_x, k_row, v_x, v_row, i0, j0,
                    tile, heads.scale, row_high, key_clock, zero, lines, pasts, W, N, True,
                )  # fmt: skip
        if (terms.vectors is None) and (terms.value_vectors is None):
            for part in range(3):
                from_, to = part_of(first, a, b_, c, d, last, part)
                for j0 in tl.range(from_, to, N, num_stages=NEAR_STAGES):
                    here = j0 + tl.arange(0, N) < to
                    k_j = parts(k_x, k_row, j0, here, W.D, N, W.BLOCK_D, W.MORE_D)
                    v_j = parts(v_x, v_row, j0, here, W.V, N, W.BLOCK_V, W.MORE_V)
                    s, bare, factor_of, pair = near_scores(
                        inner_product(q_i, k_j, W.PRECISION, W.MORE_D) * (heads.scale * LOG2E), i0, j0, to, tile, None,
                        own, key_clock, zero, lines, M, N, W.FUNCTION, False,
                    )  # fmt: skip
                    seen = seen_of(i0, j0, to, tile, M, N, False)
                    p = tl.where(seen, tl.exp2(s - lse_i[:, None]), 0.0)
                    dp = inner_product(do, v_j, W.PRECISION, W.MORE_V) - delta_i[:, None]
                    ds, d_product, dc = to_scores(tl.where(seen, p * dp, 0.0), bare, factor_of, W.FUNCTION)
                    acc = add_product(acc, d_product, k_j, W.PRECISION, W.MORE_D)
                    d_clock += tl.sum(ds, 1)
                    if pasts.bias is not None:
                        b_low, b_high = past_ends(b_low, b_high, ds, pair + tl.load(tile + 6), bias_entries)
                    if pasts.slopes is not None:
                        e = pair + tl.load(tile + 6)
                        n_low += tl.sum(ds * tl.maximum(-e, 0), 1)
                        n_high += tl.sum(ds * tl.maximum(e - last_of(bias_entries), 0), 1)
                    if pasts.factor is not None:
                        c_low, c_high = past_ends(c_low, c_high, dc, pair + tl.load(tile + 9), factor_entries)
    if pasts.slopes is not None:
        n_low += tl.arange(0, M) * s_low
        n_high -= tl.arange(0, M) * s_high
    acc = scaled(acc, heads.scale, W.MORE_D)
    if gradients.shift is not None:
        d_d = tl.arange(0, W.BLOCK_D)
        mine_of = (tl.program_id(0) * tl.num_programs(2) + tl.program_id(2)) * heads.heads + h
        tl.store(gradients.shift + mine_of * W.D + d_d, tl.sum(acc[0], 0), mask=d_d < W.D)
    if terms.vectors is not None:
        acc_x = s_low[:, None] * entry(lines.vectors, 0, W.E, W.BLOCK_E)[None, :]
        acc_x += s_high[:, None] * entry(lines.vectors, vectors_entries - 1, W.E, W.BLOCK_E)[None, :]
        if terms.meeting is None:
            # The same width, since the query itself is multiplied with the vectors.
            acc = (acc[0] + acc_x * heads.scale,)
        elif gradients.meeting is not None:
            put_rows(gradients.meeting + row * queries * W.E, i0, mine, acc_x, W.E, M, W.BLOCK_E)
    put_parts(gradients.query + row * queries * W.D, i0, mine, acc, 1.0, W.D, M, W.BLOCK_D, W.MORE_D)
    if gradients.query_clock is not None:
        more(gradients.query_clock, d_clock + s_low + s_high, at, mine, False)
    put_ends(pasts.bias, past, b_low + s_low, b_high + s_high, at, mine, False)
    put_ends(pasts.slopes, past, n_low, n_high, at, mine, False)
    put_ends(pasts.vectors, past, s_low, s_high, at, mine, False)
    put_ends(pasts.value_vectors, past, p_low, p_high, at, mine, False)
    put_ends(pasts.factor, past, c_low, c_high, at, mine, False)


@triton.jit
def _derive_far_keys(
    acc, s_sum, n_sum, p_sum, c_sum, q_i, do, lse_i, delta_i, k, k_row, v, v_row, i0, j0, tile, scale, row, key_clock,
    zero, lines, pasts, W: tl.constexpr, N: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """What a block of keys far to one side adds to the gradients of queries, and to the sums over pairs beyond this end
    of the tables."""
    k_j = parts(k, k_row, j0, None, W.D, N, W.BLOCK_D, W.MORE_D)
    v_j = parts(v, v_row, j0, None, W.V, N, W.BLOCK_V, W.MORE_V)
    column = far_column(far_clock(key_clock, j0, zero, N), i0, j0, tile, lines, N, RIGHT)
    s, by, rest, bare, factor_of = far_scores(
        inner_product(q_i, k_j, W.PRECISION, W.MORE_D), scale * LOG2E, row, column, lines, W.FUNCTION, RIGHT, False
    )
    p = tl.exp2(s * by + (rest - lse_i)[:, None])
    dp = inner_product(do, v_j, W.PRECISION, W.MORE_V) - delta_i[:, None]
    ds, d_product, dc = to_scores(p * dp, bare, factor_of, W.FUNCTION)
    acc = add_product(acc, d_product, k_j, W.PRECISION, W.MORE_D)
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
    b, of_keys, j0, stop, first_tile, last_tile = block_of(work, N, N)
    q_row, k_row, v_row = stride_of(q, W.Q_ROW), stride_of(k, W.K_ROW), stride_of(v, W.V_ROW)
    j = j0 + tl.arange(0, N)
    mine = j < stop
    k_j = parts(of_row(k, b, of_keys), k_row, j0, mine, W.D, N, W.BLOCK_D, W.MORE_D)
    v_j = parts(of_row(v, b, of_keys), v_row, j0, mine, W.V, N, W.BLOCK_V, W.MORE_V)
    acc_k, acc_v = zero_parts(N, W.BLOCK_D, W.MORE_D), zero_parts(N, W.BLOCK_V, W.MORE_V)
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
        for n in range(first_tile, last_tile):
            tile = work.tiles + n * 10
            first, a, b_, c, d, last = ranges(tile, j0, stop, lines, from_j, to_j, M, True)
            for i0 in range(c, d, M):
                acc_k, acc_v, d_clock = _derive_far_queries(
                    acc_k, acc_v, d_clock, of_row(q, b, h), q_row, k_j, v_j, incoming, row * queries, i0, j0, tile,
                    heads.scale, clock, zero, of_query_clock, lines, met_ends, out_ends, past, terms.shift, h,
                    W, M, N, False,
                )  # fmt: skip
            if HAS_RIGHT:
                for i0 in range(a, b_, M):
                    acc_k, acc_v, d_clock = _derive_far_queries(
                        acc_k, acc_v, d_clock, of_row(q, b, h), q_row, k_j, v_j, incoming, row * queries, i0, j0, tile,
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
                        q_i = parts(of_row(q, b, h), q_row, i0, here, W.D, M, W.BLOCK_D, W.MORE_D)
                        do = parts(incoming.dout + row * queries * W.V, W.V, i0, here, W.V, M, W.BLOCK_V, W.MORE_V)
                        lse_i = lse_of(incoming.lse, row * queries + i, here)
                        delta_i = tl.load(incoming.delta + row * queries + i, mask=here, other=0.0)
                        own = None
                        if terms.query_clock is not None:
                            own = clock_of(of_query_clock, i, here, zero)
                        if terms.shift is not None:
                            q_i = ((q_i[0] + entry(terms.shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i[0].dtype),)
                        s, bare, factor_of, _ = near_scores(
                            inner_product(k_j, q_i, W.PRECISION, W.MORE_D) * (heads.scale * LOG2E), i0, j0, until, tile,
                            None, own, of_key_clock, zero, lines, M, N, W.FUNCTION, True,
                        )  # fmt: skip
                        seen = seen_of(i0, j0, until, tile, M, N, True)
                        p = tl.where(seen, tl.exp2(s - lse_i[None, :]), 0.0)
                        acc_v = add_product(acc_v, p, do, W.PRECISION, W.MORE_V)
                        dp = inner_product(v_j, do, W.PRECISION, W.MORE_V) - delta_i[None, :]
                        ds, d_product, _ = to_scores(tl.where(seen, p * dp, 0.0), bare, factor_of, W.FUNCTION)
                        acc_k = add_product(acc_k, d_product, q_i, W.PRECISION, W.MORE_D)
                        d_clock += tl.sum(ds, 1)
        if d_key_clock is not None:
            more(d_key_clock, -d_clock, row * keys + j, mine, False)
    of = b * (heads.heads // heads.groups) + of_keys
    put_parts(
        dk + of * keys * W.D, j0, mine, scaled(acc_k, heads.scale, W.MORE_D), 1.0, W.D, N, W.BLOCK_D, W.MORE_D
    )  # fmt: skip
    put_parts(dv + of * keys * W.V, j0, mine, acc_v, 1.0, W.V, N, W.BLOCK_V, W.MORE_V)


@triton.jit
def _derive_far_queries(
    acc_k, acc_v, d_clock, q, q_row, k_j, v_j, incoming, row, i0, j0, tile, scale, clock, zero, query_clock, lines,
    met_ends, out_ends, past, shift, h, W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """What a block of queries far to one side adds to the gradients of keys, values and the cumulative feature."""
    i = i0 + tl.arange(0, M)
    q_i = parts(q, q_row, i0, None, W.D, M, W.BLOCK_D, W.MORE_D)
    do = parts(incoming.dout + row * W.V, W.V, i0, None, W.V, M, W.BLOCK_V, W.MORE_V)
    lse_i, delta_i = lse_of(incoming.lse, row + i, None), tl.load(incoming.delta + row + i)
    met, own = None, None
    if lines.vectors is not None:
        met = tl.load(met_ends + (past if RIGHT else 0) + row + i)
    if lines.value_vectors is not None:
        delta_i -= tl.load(out_ends + (past if RIGHT else 0) + row + i)
    if query_clock is not None:
        own = clock_of(query_clock, i, None, zero)
    if shift is not None:
        q_i = ((q_i[0] + entry(shift, h, W.D, W.BLOCK_D)[None, :]).to(q_i[0].dtype),)
    s, by, rest, bare, c = far_scores(
        inner_product(k_j, q_i, W.PRECISION, W.MORE_D), scale * LOG2E, far_row(met, own, lines, M, RIGHT),
        far_column(clock, i0, j0, tile, lines, N, RIGHT), lines, W.FUNCTION, RIGHT, True,
    )  # fmt: skip
    p = tl.exp2(s * by + (rest - lse_i)[None, :])
    acc_v = add_product(acc_v, p, do, W.PRECISION, W.MORE_V)
    dp = inner_product(v_j, do, W.PRECISION, W.MORE_V) - delta_i[None, :]
    ds, d_product, _ = to_scores(p * dp, bare, c, W.FUNCTION)
    acc_k = add_product(acc_k, d_product, q_i, W.PRECISION, W.MORE_D)
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
    b, h, block, end, first_tile, last_tile = block_of(work, M, B)
    q_row, k_row, v_row = stride_of(q, W.Q_ROW), stride_of(k, W.K_ROW), stride_of(v, W.V_ROW)
    i0 = block + tl.program_id(0) % (M // B) * B
    i = i0 + tl.arange(0, B)
    mine = i < end
    row = b * heads.heads + h
    at = row * queries + i
    k_x, v_x = of_row(k, b, h // heads.groups), of_row(v, b, h // heads.groups)
    q_i = rows(of_row(q, b, h), q_row, i0, mine, W.D, B, W.BLOCK_D)
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
    for n in range(first_tile, last_tile):
        tile = work.tiles + n * 10
        first, a, b_, c, d, last = ranges(tile, block, end, lines, from_i, to_i, N, False)
        least, most = tl.load(tile + 4), tl.load(tile + 5)
        for part in range(3):
            from_, to = part_of(first, a, b_, c, d, last, part)
            from_, to = tl.maximum(from_, i0 + least), tl.minimum(to, i0 + B + most)
            for j0 in range(from_, to, B):
                here = j0 + tl.arange(0, B) < to
                k_j = rows(k_x, k_row, j0, here, W.D, B, W.BLOCK_D)
                v_j = rows(v_x, v_row, j0, here, W.V, B, W.BLOCK_V)
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
                    p_low, p_high = past_ends(p_low, p_high, p, pair + tl.load(tile + 8), values_entries)
                ds, d_product, dc = to_scores(ds, bare, factor_of, W.FUNCTION)
                acc += product(d_product.to(k_j.dtype), k_j, W.PRECISION)
                d_clock += tl.sum(ds, 1)
                if pasts.bias is not None:
                    b_low, b_high = past_ends(b_low, b_high, ds, pair + tl.load(tile + 6), bias_entries)
                if pasts.slopes is not None:
                    e = pair + tl.load(tile + 6)
                    n_low += tl.sum(ds * tl.maximum(-e, 0), 1)
                    n_high += tl.sum(ds * tl.maximum(e - last_of(bias_entries), 0), 1)
                if pasts.factor is not None:
                    c_low, c_high = past_ends(c_low, c_high, dc, pair + tl.load(tile + 9), factor_entries)
                if pasts.vectors is not None:
                    x_low, x_high = past_ends(x_low, x_high, ds, pair + tl.load(tile + 7), vectors_entries)
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
    put_ends(pasts.bias, past, b_low, b_high, at, mine, True)
    put_ends(pasts.slopes, past, n_low, n_high, at, mine, True)
    put_ends(pasts.vectors, past, x_low, x_high, at, mine, True)
    put_ends(pasts.value_vectors, past, p_low, p_high, at, mine, True)
    put_ends(pasts.factor, past, c_low, c_high, at, mine, True)


@triton.jit(do_not_specialize=LENGTHS)
def backward_keys_near(
    q, k, v, incoming, terms, bias_entries, vectors_entries, values_entries, factor_entries, work, blocks, heads,
    queries, keys, far_k, far_v, dk, dv, d_key_clock,
    W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The near pairs of B of the N keys of a block of `backward_keys`, which left its gradients in ``far_k`` and
    ``far_v``."""
    b, of_keys, block, end, first_tile, last_tile = block_of(work, N, B)
    q_row, k_row, v_row = stride_of(q, W.Q_ROW), stride_of(k, W.K_ROW), stride_of(v, W.V_ROW)
    j0 = block + tl.program_id(0) % (N // B) * B
    j = j0 + tl.arange(0, B)
    mine = j < end
    k_j = rows(of_row(k, b, of_keys), k_row, j0, mine, W.D, B, W.BLOCK_D)
    v_j = rows(of_row(v, b, of_keys), v_row, j0, mine, W.V, B, W.BLOCK_V)
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
                    q_i = rows(of_row(q, b, h), q_row, i0, here, W.D, B, W.BLOCK_D)
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
    q_row, k_row, v_row = stride_of(q, W.Q_ROW), stride_of(k, W.K_ROW), stride_of(v, W.V_ROW)
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
        q_i = rows(of_row(q, b, h), q_row, i0, mine, W.D, B, W.BLOCK_D)
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
                k_j = rows(of_row(k, b, h // heads.groups), k_row, j0, here, W.D, B, W.BLOCK_D)
                v_j = rows(of_row(v, b, h // heads.groups), v_row, j0, here, W.V, B, W.BLOCK_V)
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


# -- few queries -------------------------------------------------------------------------------------------------------


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


@triton.jit(do_not_specialize=STEP_LENGTHS)
def decode(
    q, k, v, out, lse, terms, bias_entries, vectors_entries, values_entries, factor_entries, broken, away_entries,
    key_norms, faint, tiles, count, start, stop, from_key, to_key, least, most,
    of_bias, of_vectors, of_values, of_factor, of_away, apart, heads, queries, keys, parts, W: tl.constexpr,
    R: tl.constexpr, Q: tl.constexpr, N: tl.constexpr, LINES: tl.constexpr, PIECES: tl.constexpr, BY_HEAD: tl.constexpr,
):  # fmt: skip
    """Q queries of the heads that share keys, in R rows, and one of ``parts`` parts of the keys: its output and
    log-sum-exp, of (parts, batch, heads, queries[, V]). Blocks of keys before the first one with a score of at least
    that of the query's own key plus ``faint`` are not read, where ``key_norms`` are given."""
    blocks = tl.cdiv(queries, Q)
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
        key_norms = of_row(key_norms, b, kv)
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
