"""The rotation of channel pairs on CUDA: one Triton kernel, which reads and writes x once.

cos and sin are the tables of the reference, in float32: angles need float64, which most GPUs compute slowly, and every
layer and head shares the tables. In a compiled graph, inductor makes such a kernel of PyTorch's operations, and fuses
it with what is around it, which it cannot do with a kernel of ours.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc import compat

if TYPE_CHECKING:
    from posenc.rotation.phases import PairRotation

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PAIRS = 2048  # rotated by a program of four warps: 16 by a thread, in loads of 16 bytes
INSTEAD = "rotations on {} take PyTorch's operations, since the Triton kernel for them cannot run: {}"


@functools.cache
def _kernel() -> Any:
    """The kernel; None where there is no Triton. It is imported on first use."""
    try:
        return importlib.import_module("posenc.rotation.kernel").rotate
    except ImportError:
        return None


@functools.cache
def works_on(device: torch.device) -> bool:
    """Whether the kernel runs on a device, found out by running it. Warns where Triton is installed, but cannot compile
    for the device, or has no C compiler for what launches kernels."""
    if device.type != "cuda" or _kernel() is None:
        return False
    x = torch.ones(1, 1, 1, 2, device=device)
    try:
        rotate_into(x, x, x[..., :1], x[..., 1:], is_interleaved=False)
    except Exception as error:  # compilers raise many kinds
        warnings.warn(INSTEAD.format(device, error), stacklevel=2)
        return False
    return True


def takes(x: Tensor, turn: PairRotation) -> bool:
    """Whether the kernel rotates x: it has no gradients of angles, and nothing but the kernel may be at work here."""
    cos, sin = turn.cos, turn.sin
    return (
        not torch.compiler.is_compiling()
        and works_on(x.device)
        and x.dtype in DTYPES
        and x.device == cos.device == sin.device
        and x.numel() > 0
        and cos.numel() > 0
        and cos.shape == sin.shape
        and turn.first + 2 * cos.size(-1) <= x.size(-1)
        and (turn.heads is None or cos.size(1) == 1)
        and not (torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad))
        and compat.is_bare((x, cos, sin))
    )


def turned(x: Tensor, turn: PairRotation, sign: float = 1.0) -> Tensor:
    """x (batch, heads, tokens, head_dim) rotated, or with sign -1 rotated back, in a tensor with the order of x's
    dimensions in memory: that of a projection, where x is a view of one."""
    if torch.is_grad_enabled() and x.requires_grad:
        rotated: Tensor = _Turned.apply(x, turn.cos, turn.sin, turn, sign)  # type: ignore[no-untyped-call]
        return rotated
    return _turned(x, turn.cos, turn.sin, turn, sign)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, turn: PairRotation, sign: float) -> Tensor:
    out = torch.empty_like(x)
    start, stop = turn.heads_of(x)
    rotate_into(out, x, cos, sin, turn.layout == "interleaved", turn.first, start, stop, sign)
    return out


class _Turned(torch.autograd.Function):
    """Its gradient is rotated back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, turn: PairRotation, sign: float) -> Tensor:
        ctx.turn, ctx.sign = turn, sign
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, turn, sign)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin = ctx.saved_tensors
        turn = replace(ctx.turn, cos=cos, sin=sin)
        if takes(gradient, turn):
            return turned(gradient, turn, -ctx.sign), None, None, None, None
        return (turn.inverse() if ctx.sign > 0 else turn)(gradient), None, None, None, None


def rotate_into(
    out: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    is_interleaved: bool,
    first: int = 0,
    start: int = 0,
    stop: int | None = None,
    sign: float = 1.0,
) -> None:
    """Writes x, rotated in its heads ``start`` .. ``stop`` and in channels from ``first`` on, to ``out``, which may be
    x itself. Both have any strides, but channels side by side."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    if cos.stride() != sin.stride() or cos.stride(-1) != 1:
        cos, sin = cos.contiguous(), sin.contiguous()
    batch, heads, tokens, width = x.shape
    pairs = cos.size(-1)
    block = 1 << (pairs - 1).bit_length()
    rows = max(PAIRS // block, 1)
    of_heads = min(heads & -heads, rows)  # a power of two that leaves none over
    of_tokens = min(rows // of_heads, 1 << (tokens - 1).bit_length())
    with torch.cuda.device_of(x):
        _kernel()[(batch * -(-heads // of_heads) * -(-tokens // of_tokens),)](
            out, *out.stride()[:3], x, *x.stride()[:3],
            cos, sin, *(0 if n == 1 else stride for n, stride in zip(cos.shape[:3], cos.stride()[:3], strict=True)),
            heads, tokens, start, heads if stop is None else stop, sign,
            WIDTH=width, FIRST=first, PAIRS=pairs, INTERLEAVED=is_interleaved, BLOCK_PAIRS=block,
            BLOCK_WIDTH=0 if width == 2 * pairs else 1 << (width - 1).bit_length(),
            HEADS=of_heads, TOKENS=of_tokens, num_warps=4,
        )  # fmt: skip
