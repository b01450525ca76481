"""The rotation of channel pairs in one pass over memory, in Triton."""

import triton
import triton.language as tl

# No `from __future__ import annotations` here: Triton evaluates annotations to find constexpr arguments.


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
