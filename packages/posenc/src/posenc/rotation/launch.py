"""How the kernel of `posenc.rotation.kernel` is launched. It imports torch alone, and is copied with the kernel to
where the package is not installed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PAIRS = 2048  # rotated by a program of four warps: 16 by a thread, in loads of 16 bytes
OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}


def launch(
    kernel: Any,
    out: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    is_interleaved: bool,
    first: int = 0,
    rotated: tuple[int, int] | None = None,
    sign: float = 1.0,
) -> None:
    """Writes x (batch, heads, tokens, width), rotated in heads start .. stop (``rotated``; None: all) and in channels
    from ``first`` on, to ``out``, which may be x itself. Both have channels side by side, and otherwise any strides.
    Angles are (rows or 1, heads or 1, tokens or 1, pairs)."""
    if cos.stride() != sin.stride() or cos.stride(-1) != 1:
        cos, sin = cos.contiguous(), sin.contiguous()
    batch, heads, tokens, width = x.shape
    pairs, rotated = cos.size(-1), (0, heads) if rotated is None else rotated
    has_more = width > 2 * pairs or rotated != (0, heads)
    block = 1 << (pairs - 1).bit_length()
    rows = max(PAIRS // block, 1)
    of_heads = min(heads & -heads, rows)  # a power of two that leaves none over
    of_tokens = min(rows // of_heads, 1 << (tokens - 1).bit_length())
    with torch.cuda.device_of(x):
        kernel[(batch * -(-heads // of_heads) * -(-tokens // of_tokens),)](
            out, *out.stride()[:3], x, *x.stride()[:3],
            cos, sin, *(0 if n == 1 else stride for n, stride in zip(cos.shape[:3], cos.stride()[:3], strict=True)),
            heads, tokens, *rotated, sign,
            WIDTH=width, FIRST=first, PAIRS=pairs, INTERLEAVED=is_interleaved, BLOCK_PAIRS=block,
            BLOCK_WIDTH=1 << (width - 1).bit_length() if has_more else 0,
            HEADS=of_heads, TOKENS=of_tokens, **OPTIONS,
        )  # fmt: skip
