"""Rotary position embeddings in one pass over memory, forward and backward, in Triton.

Channel pairs (a, b) of each head become (a cos - b sin, a sin + b cos), the gradient is rotated back. It is computed in
float32 and rounded once to the dtype of x. Any number of heads and tokens, any strides, and rotations of the first
channels of a head. In a compiled graph, and where there is no CUDA device, it is done by PyTorch's operations.
Written from posenc, a library of positional encodings, with its kernel unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .launch import launch

try:
    from .kernel import rotate
except ImportError:  # no Triton
    rotate = None

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def apply_rotary_transformers(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """What `apply_rotary_pos_emb` of transformers computes: queries and keys rotated in pairs (k, k + width/2).

    - ``q``, ``k``: (batch, heads, tokens, head_dim), or with ``unsqueeze_dim=2`` (batch, tokens, heads, head_dim).
    - ``cos``, ``sin``: (batch or 1, tokens, width), every angle twice, in both halves. If ``width`` is below head_dim,
      the first channels are rotated.
    """
    if unsqueeze_dim not in (1, 2):
        raise ValueError(f"unsqueeze_dim must be 1 or 2, got {unsqueeze_dim}")
    return apply_rotary_emb(q, k, cos, sin, seq_dim=3 - unsqueeze_dim)


def apply_rotary_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, seq_dim: int = 1, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Queries and keys, (batch, tokens, heads, head_dim), or with ``seq_dim=2`` (batch, heads, tokens, head_dim),
    rotated in pairs (k, k + width/2), or with ``interleaved`` in pairs (2k, 2k + 1).

    - ``cos``, ``sin``: (tokens, width) or (batch or 1, tokens, width), every angle twice: in both halves, or with
      ``interleaved`` side by side.
    """
    if seq_dim not in (1, 2):
        raise ValueError(f"seq_dim must be 1 or 2, got {seq_dim}")
    if cos.shape != sin.shape or cos.dim() not in (2, 3) or cos.size(-1) % 2:
        raise ValueError(
            "cos and sin must both be (tokens, width) or (batch, tokens, width) of an even width, got "
            f"{tuple(cos.shape)} and {tuple(sin.shape)}"
        )
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        raise ValueError("cos and sin must not require a gradient: this rotation has none for them")
    pairs = cos.size(-1) // 2
    angles = [(x if x.dim() == 3 else x[None])[:, None] for x in (cos, sin)]
    cos, sin = (x[..., 0::2] if interleaved else x[..., :pairs] for x in angles)
    rotated = []
    for name, x in (("query", query), ("key", key)):
        by_heads = x.transpose(1, 2) if x.dim() == 4 and seq_dim == 1 else x
        fits = x.dim() == 4 and x.size(-1) >= 2 * pairs and by_heads.size(2) == cos.size(2)
        if not fits or cos.size(0) not in (1, x.size(0)):
            raise ValueError(
                f"{name} must be of {cos.size(2)} tokens in dimension {seq_dim}, of {2 * pairs} or more channels, and "
                f"of the batch of cos, {cos.size(0)}, got {tuple(x.shape)}"
            )
        turned = _turn(by_heads, cos, sin, interleaved, 1.0)
        rotated.append(turned.transpose(1, 2) if seq_dim == 1 else turned)
    return rotated[0], rotated[1]


def _turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, sign: float) -> Tensor:
    """x (batch, heads, tokens, head_dim) rotated, or with sign -1 rotated back."""
    if torch.compiler.is_compiling() or not _kernel_takes(x, cos):
        return _plain(x, cos, sin * sign, interleaved)
    if torch.is_grad_enabled() and x.requires_grad:
        turned: Tensor = _Turn.apply(x, cos, sin, interleaved, sign)
        return turned
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty_like(x)
    launch(rotate, out, x, cos, sin, interleaved, sign=sign)
    return out


def _kernel_takes(x: Tensor, cos: Tensor) -> bool:
    return rotate is not None and x.is_cuda and x.dtype in DTYPES and x.numel() > 0 and cos.numel() > 0


def _plain(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    width, wide = 2 * cos.size(-1), torch.promote_types(x.dtype, torch.float32)
    part, cos, sin = x[..., :width].to(wide), cos.to(wide), sin.to(wide)
    a, b = (part[..., 0::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1 if interleaved else -2).flatten(-2).to(x.dtype)
    return torch.cat((turned, x[..., width:]), -1) if x.size(-1) > width else turned


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, sign: float) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved, ctx.sign = interleaved, sign
        return _turn(x, cos, sin, interleaved, sign)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(gradients[0], cos, sin, ctx.interleaved, -ctx.sign), None, None, None, None


class layers:  # noqa: N801  the name that the package kernels looks for
    """Layers, as transformers looks for them."""

    class apply_rotary_transformers(nn.Module):  # noqa: N801
        """`apply_rotary_transformers`, for training and for compiled graphs too."""

        has_backward = True
        can_torch_compile = True

        def forward(
            self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
        ) -> tuple[Tensor, Tensor]:
            """`apply_rotary_transformers`."""
            return apply_rotary_transformers(q, k, cos, sin, unsqueeze_dim)


__all__ = ["apply_rotary_emb", "apply_rotary_transformers", "layers"]
