"""The rotation of channel pairs in one pass over memory, alone and after a norm of each head, in Triton."""

from collections import namedtuple

import triton
import triton.language as tl

# No `from __future__ import annotations` here: Triton evaluates annotations to find constexpr arguments.

# (batch, heads, tokens, channels), the channels side by side: a tensor and its strides. Angles have two tensors.
Rows = namedtuple("Rows", "x batch head token")
Angles = namedtuple("Angles", "cos sin batch head token")


@triton.jit
def rows_of(x, at, channels, mine, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Pointers to channels of rows, (rows, BLOCK), and which of them exist; ``at`` are the rows' offsets."""
    return x + at[:, None] + channels[None, :], mine[:, None] & (tl.arange(0, BLOCK) < WIDTH)[None, :]


@triton.jit(do_not_specialize=["heads", "tokens", "start", "stop"])
def rotate(
    out, out_batch, out_head, out_token, x, x_batch, x_head, x_token,
    cos, sin, angle_row, angle_head, angle_token, heads, tokens, start, stop, sign,
    WIDTH: tl.constexpr, FIRST: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr, BLOCK_WIDTH: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """A program has a block of TOKENS x HEADS rows of a batch row, those of a token side by side, which share its cos
    and sin. Heads start .. stop are rotated, in their channels from FIRST on; what else there is is copied. Every
    program reads what it writes before it writes it, so ``out`` may be ``x``."""
    of_heads, of_tokens = tl.cdiv(heads, HEADS), tl.cdiv(tokens, TOKENS)
    n = tl.program_id(0)
    b = (n // (of_heads * of_tokens)).to(tl.int64)
    row = tl.arange(0, TOKENS * HEADS)
    h = n % of_heads * HEADS + row % HEADS
    t = n // of_heads % of_tokens * TOKENS + row // HEADS
    exists = (h < heads) & (t < tokens)
    is_rotated = exists & (h >= start) & (h < stop)
    h, t = h.to(tl.int64), t.to(tl.int64)
    x_at, out_at = b * x_batch + h * x_head + t * x_token, b * out_batch + h * out_head + t * out_token
    angle_at = b * angle_row + h * angle_head + t * angle_token
    k = tl.arange(0, BLOCK_PAIRS)
    place, there = rows_of(cos, angle_at, k, is_rotated, PAIRS, BLOCK_PAIRS)
    c = tl.load(place, mask=there, other=0.0).to(tl.float32)
    place, there = rows_of(sin, angle_at, k, is_rotated, PAIRS, BLOCK_PAIRS)
    s = tl.load(place, mask=there, other=0.0).to(tl.float32) * sign
    if INTERLEAVED:
        both = FIRST + tl.arange(0, 2 * BLOCK_PAIRS)
        place, there = rows_of(x, x_at, both, is_rotated, 2 * PAIRS, 2 * BLOCK_PAIRS)
        pairs = tl.load(place, mask=there, other=0.0).to(tl.float32)
        left, right = tl.split(tl.reshape(pairs, (TOKENS * HEADS, BLOCK_PAIRS, 2)))
        turned = tl.join(left * c - right * s, left * s + right * c)
        turned = tl.reshape(turned, (TOKENS * HEADS, 2 * BLOCK_PAIRS))
        place, there = rows_of(out, out_at, both, is_rotated, 2 * PAIRS, 2 * BLOCK_PAIRS)
        tl.store(place, turned.to(out.dtype.element_ty), mask=there)
    else:
        place, there = rows_of(x, x_at, FIRST + k, is_rotated, PAIRS, BLOCK_PAIRS)
        left = tl.load(place, mask=there, other=0.0).to(tl.float32)
        right = tl.load(place + PAIRS, mask=there, other=0.0).to(tl.float32)
        place, there = rows_of(out, out_at, FIRST + k, is_rotated, PAIRS, BLOCK_PAIRS)
        tl.store(place, (left * c - right * s).to(out.dtype.element_ty), mask=there)
        tl.store(place + PAIRS, (left * s + right * c).to(out.dtype.element_ty), mask=there)
    if BLOCK_WIDTH > 0:
        d = tl.arange(0, BLOCK_WIDTH)
        place, there = rows_of(x, x_at, d, exists, WIDTH, BLOCK_WIDTH)
        others = ((h < start) | (h >= stop))[:, None] | ((d < FIRST) | (d >= FIRST + 2 * PAIRS))[None, :]
        there = there & others
        rest = tl.load(place, mask=there, other=0.0)
        tl.store(out + out_at[:, None] + d[None, :], rest, mask=there)


@triton.jit
def places_of(n, heads, tokens, HEADS: tl.constexpr, TOKENS: tl.constexpr):
    """The batch row, heads and tokens of the rows of a program, and which of them exist."""
    of_heads, of_tokens = tl.cdiv(heads, HEADS), tl.cdiv(tokens, TOKENS)
    row = tl.arange(0, TOKENS * HEADS)
    h, t = n % of_heads * HEADS + row % HEADS, n // of_heads % of_tokens * TOKENS + row // HEADS
    return (n // (of_heads * of_tokens)).to(tl.int64), h.to(tl.int64), t.to(tl.int64), (h < heads) & (t < tokens)


@triton.jit
def load_rows(
    rows, b, h, t, exists, FIRST: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
):  # fmt: skip
    """Both channels of each pair, (rows, BLOCK_PAIRS), and of the other channels those that exist, (rows,
    BLOCK_WIDTH), in float32; 0 for what does not exist. ``BLOCK_WIDTH`` is 1 where every channel is one of a pair."""
    at = b * rows.batch + h * rows.head + t * rows.token
    if INTERLEAVED:
        place, there = rows_of(rows.x, at, FIRST + tl.arange(0, 2 * BLOCK_PAIRS), exists, 2 * PAIRS, 2 * BLOCK_PAIRS)
        pairs = tl.load(place, mask=there, other=0.0).to(tl.float32)
        left, right = tl.split(tl.reshape(pairs, (pairs.shape[0], BLOCK_PAIRS, 2)))
    else:
        place, there = rows_of(rows.x, at, FIRST + tl.arange(0, BLOCK_PAIRS), exists, PAIRS, BLOCK_PAIRS)
        left = tl.load(place, mask=there, other=0.0).to(tl.float32)
        right = tl.load(place + PAIRS, mask=there, other=0.0).to(tl.float32)
    d = tl.arange(0, BLOCK_WIDTH)
    others = exists[:, None] & ((d < FIRST) | ((d >= FIRST + 2 * PAIRS) & (d < WIDTH)))[None, :]
    return left, right, tl.load(rows.x + at[:, None] + d[None, :], mask=others, other=0.0).to(tl.float32)


@triton.jit
def store_rows(
    rows, b, h, t, exists, left, right, rest, FIRST: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes what `load_rows` reads."""
    at = b * rows.batch + h * rows.head + t * rows.token
    kind = rows.x.dtype.element_ty
    if INTERLEAVED:
        place, there = rows_of(rows.x, at, FIRST + tl.arange(0, 2 * BLOCK_PAIRS), exists, 2 * PAIRS, 2 * BLOCK_PAIRS)
        pairs = tl.reshape(tl.join(left, right), (left.shape[0], 2 * BLOCK_PAIRS))
        tl.store(place, pairs.to(kind), mask=there)
    else:
        place, there = rows_of(rows.x, at, FIRST + tl.arange(0, BLOCK_PAIRS), exists, PAIRS, BLOCK_PAIRS)
        tl.store(place, left.to(kind), mask=there)
        tl.store(place + PAIRS, right.to(kind), mask=there)
    d = tl.arange(0, BLOCK_WIDTH)
    others = exists[:, None] & ((d < FIRST) | ((d >= FIRST + 2 * PAIRS) & (d < WIDTH)))[None, :]
    tl.store(rows.x + at[:, None] + d[None, :], rest.to(kind), mask=others)


@triton.jit
def norm_rotate_rows(
    n, out, x, gradient, weight, angles, sums, heads, tokens, eps, WIDTH: tl.constexpr, FIRST: tl.constexpr,
    PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_PAIRS: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    HEADS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """The rows of program ``n`` of queries or keys. With a ``gradient``, that of x goes to ``out``, and that of the
    weights, summed over the program's rows, to its row of ``sums``, (programs, WIDTH)."""
    b, h, t, exists = places_of(n, heads, tokens, HEADS, TOKENS)
    left, right, rest = load_rows(
        x, b, h, t, exists, FIRST, PAIRS, INTERLEAVED, BLOCK_PAIRS, WIDTH, BLOCK_WIDTH
    )  # fmt: skip
    squares = tl.sum(left * left, 1) + tl.sum(right * right, 1) + tl.sum(rest * rest, 1)
    r = tl.rsqrt(tl.where(exists, squares / WIDTH + eps, 1.0))[:, None]
    left, right, rest = left * r, right * r, rest * r
    angle_at, k = b * angles.batch + h * angles.head + t * angles.token, tl.arange(0, BLOCK_PAIRS)
    place, there = rows_of(angles.cos, angle_at, k, exists, PAIRS, BLOCK_PAIRS)
    c = tl.load(place, mask=there, other=0.0).to(tl.float32)
    place, there = rows_of(angles.sin, angle_at, k, exists, PAIRS, BLOCK_PAIRS)
    s = tl.load(place, mask=there, other=0.0).to(tl.float32)
    if weight is not None:
        of_left, of_right, of_rest = load_rows(
            Rows(weight, 0, 0, 0), b, h, t, exists, FIRST, PAIRS, INTERLEAVED, BLOCK_PAIRS, WIDTH, BLOCK_WIDTH
        )  # fmt: skip
    if gradient is None:
        if weight is not None:
            left, right, rest = left * of_left, right * of_right, rest * of_rest
        left, right = left * c - right * s, left * s + right * c
    else:
        a, z, back = load_rows(
            gradient, b, h, t, exists, FIRST, PAIRS, INTERLEAVED, BLOCK_PAIRS, WIDTH, BLOCK_WIDTH
        )  # fmt: skip
        a, z = a * c + z * s, z * c - a * s
        if weight is not None:
            row = tl.arange(0, 1)
            store_rows(
                Rows(sums, WIDTH, 0, 0), n.to(tl.int64) + row, row, row, row == 0, tl.sum(a * left, 0)[None, :],
                tl.sum(z * right, 0)[None, :], tl.sum(back * rest, 0)[None, :], FIRST, PAIRS, INTERLEAVED, BLOCK_PAIRS,
                WIDTH, BLOCK_WIDTH,
            )  # fmt: skip
            a, z, back = a * of_left, z * of_right, back * of_rest
        mean = ((tl.sum(a * left, 1) + tl.sum(z * right, 1) + tl.sum(back * rest, 1)) / WIDTH)[:, None]
        left, right, rest = (a - left * mean) * r, (z - right * mean) * r, (back - rest * mean) * r
    store_rows(
        out, b, h, t, exists, left, right, rest, FIRST, PAIRS, INTERLEAVED, BLOCK_PAIRS, WIDTH, BLOCK_WIDTH
    )  # fmt: skip


@triton.jit(do_not_specialize=["heads_q", "tokens_q", "heads_k", "tokens_k", "of_queries"])
def norm_rotate(
    out_q, q, gradient_q, weight_q, angles_q, sums_q, heads_q, tokens_q, out_k, k, gradient_k, weight_k, angles_k,
    sums_k, heads_k, tokens_k, of_queries, eps, WIDTH: tl.constexpr, FIRST: tl.constexpr, PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr, BLOCK_PAIRS: tl.constexpr, BLOCK_WIDTH: tl.constexpr, HEADS_Q: tl.constexpr,
    TOKENS_Q: tl.constexpr, HEADS_K: tl.constexpr, TOKENS_K: tl.constexpr,
):  # fmt: skip
    """Queries and keys in one launch: the first ``of_queries`` programs have queries. Each row x becomes
    R (weight * x / sqrt(mean(x^2) + eps)), R the rotation by its angles, or with gradients the gradients of that."""
    n = tl.program_id(0)
    if n < of_queries:
        norm_rotate_rows(
            n, out_q, q, gradient_q, weight_q, angles_q, sums_q, heads_q, tokens_q, eps, WIDTH, FIRST, PAIRS,
            INTERLEAVED, BLOCK_PAIRS, BLOCK_WIDTH, HEADS_Q, TOKENS_Q,
        )  # fmt: skip
    else:
        norm_rotate_rows(
            n - of_queries, out_k, k, gradient_k, weight_k, angles_k, sums_k, heads_k, tokens_k, eps, WIDTH, FIRST,
            PAIRS, INTERLEAVED, BLOCK_PAIRS, BLOCK_WIDTH, HEADS_K, TOKENS_K,
        )  # fmt: skip
