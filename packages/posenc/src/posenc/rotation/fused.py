"""The rotation of channel pairs on CUDA: one Triton kernel, which reads and writes x once.

cos and sin are the tables of the reference, in float32: angles need float64, which most GPUs compute slowly, and every
layer and head shares the tables. In a compiled graph, inductor makes such a kernel of PyTorch's operations, and fuses
it with what is around it, which it cannot do with a kernel of ours.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any

import torch
from torch import Tensor

from posenc import compat

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PAIRS = 2048  # rotated by a program of four warps: 16 by a thread, in loads of 16 bytes
HOW: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}
INSTEAD = "rotations on {} take PyTorch's operations, since the Triton kernel for them cannot run: {}"
UNTRIED = "a CUDA graph is captured, and nothing was rotated before; run once what is captured"
PASSING = ("out of memory", "capturing")  # errors that say nothing of the next trial
_WORKS: dict[torch.device, bool] = {}


@functools.cache
def _kernel() -> Any:
    """The kernel; None where there is no Triton. It is imported on first use."""
    try:
        return importlib.import_module("posenc.rotation.kernel").rotate
    except ImportError:
        return None


def works_on(device: torch.device) -> bool:
    """Whether the kernel runs on a device, found out by running it. Warns where Triton is installed, but cannot compile
    for the device, or has no C compiler for what launches kernels. Nothing is remembered of a device without memory to
    spare, nor of one where a CUDA graph is captured, on this stream or by another thread."""
    if device.type != "cuda" or not torch.cuda.is_available() or _kernel() is None:
        return False
    if device in _WORKS:
        return _WORKS[device]
    if torch.cuda.is_current_stream_capturing():
        warnings.warn(INSTEAD.format(device, UNTRIED), stacklevel=2)
        return False
    try:
        x = torch.ones(1, 1, 1, 2, device=device)
        rotate_into(x, x, x[..., :1], x[..., 1:], is_interleaved=False)
    except Exception as error:  # compilers raise many kinds
        warnings.warn(INSTEAD.format(device, error), stacklevel=2)
        if not any(words in str(error) for words in PASSING):
            _WORKS[device] = False
        return False
    _WORKS[device] = True
    return True


def takes(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether the kernel rotates x: it has no gradients of angles, and nothing but the kernel may be at work here."""
    return (
        not torch.compiler.is_compiling()
        and x.dtype in DTYPES
        and x.device == cos.device == sin.device
        and x.numel() > 0
        and cos.numel() > 0
        and cos.shape == sin.shape
        and not (torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad))
        and compat.is_bare((x, cos, sin))
        and works_on(x.device)
    )


def rotate_into(
    out: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    is_interleaved: bool,
    first: int = 0,
    rotated: tuple[int, int] | None = None,
    sign: float = 1.0,
) -> None:
    """Writes x, ``rotated`` in these heads (None: all), start .. stop, and in channels from ``first`` on, to ``out``,
    which may be x itself. Both have channels side by side, and otherwise any strides."""
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
        _kernel()[(batch * -(-heads // of_heads) * -(-tokens // of_tokens),)](
            out, *out.stride()[:3], x, *x.stride()[:3],
            cos, sin, *(0 if n == 1 else stride for n, stride in zip(cos.shape[:3], cos.stride()[:3], strict=True)),
            heads, tokens, *rotated, sign,
            WIDTH=width, FIRST=first, PAIRS=pairs, INTERLEAVED=is_interleaved, BLOCK_PAIRS=block,
            BLOCK_WIDTH=1 << (width - 1).bit_length() if has_more else 0,
            HEADS=of_heads, TOKENS=of_tokens, **HOW,
        )  # fmt: skip
