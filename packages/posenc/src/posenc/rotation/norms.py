"""The norm of each query and key before its rotation, in one launch on CUDA."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import compat
from posenc.rotation.launch import OPTIONS, PAIRS
from posenc.rotation.phases import PairRotation, TokenMap, kernel_supports


def normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the channels of each head, times the weight, in float32 or wider: not rounded to
    x's dtype, since the rotation does that."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return F.rms_norm(wide, wide.shape[-1:], None if weight is None else weight.to(wide.dtype), eps)


@dataclass(frozen=True, eq=False)
class Side:
    """Queries or keys, their weight and their rotation."""

    x: Tensor
    weight: Tensor | None
    rotation: PairRotation

    @property
    def blocks(self) -> tuple[int, int]:
        """Pairs, and channels that are in none, rounded up to powers of two; of these 1 if there are none."""
        width, pairs = self.x.size(-1), self.rotation.cos.size(-1)
        return 1 << (pairs - 1).bit_length(), 1 << (width - 1).bit_length() if width > 2 * pairs else 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """The heads and tokens of a program, and the number of programs."""
        batch, heads, tokens, _ = self.x.shape
        pairs, others = self.blocks
        rows = 1 << (2 * PAIRS // (2 * pairs + others)).bit_length() - 1  # as many as fit in registers
        of_heads = min(heads & -heads, rows)  # a power of two that leaves none over
        of_tokens = min(rows // of_heads, 1 << (tokens - 1).bit_length())
        return of_heads, of_tokens, batch * (heads // of_heads) * -(-tokens // of_tokens)


def sides_of(
    tensors: Sequence[Tensor], weights: Sequence[Tensor | None], maps: Sequence[TokenMap]
) -> tuple[Side, Side] | None:
    """Queries and keys as the kernel takes them, or None where it does not."""
    sides = []
    for x, weight, token_map in zip(tensors, weights, maps, strict=True):
        for _ in range(2):  # a map of so many heads, and the rotation in it
            token_map = token_map.fitted_to(x) if hasattr(token_map, "fitted_to") else token_map
        if not isinstance(token_map, PairRotation) or token_map.heads is not None:
            return None
        if not kernel_supports(x, token_map.cos, token_map.sin) or token_map.cos.dim() != 4:
            return None
        if weight is not None and not (weight.device == x.device and compat.is_plain_memory((weight,))):
            return None
        sides.append(Side(x, weight, token_map))
    of = {(s.x.size(-1), s.x.dtype, s.rotation.layout, s.rotation.first, s.rotation.cos.size(-1)) for s in sides}
    return (sides[0], sides[1]) if len(of) == 1 else None


def norm_rotate(
    sides: tuple[Side, Side], eps: float, outs: Sequence[Tensor | None] = (None, None)
) -> tuple[Tensor, Tensor]:
    """Queries and keys by the kernel. Without gradients they are written to ``outs``, where these are given."""
    tensors = [x for side in sides for x in (side.x, side.weight, side.rotation.cos, side.rotation.sin)]
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        made: tuple[Tensor, Tensor] = _NormRotation.apply(sides, eps, *tensors)  # type: ignore[no-untyped-call]
        return made
    query, key = (torch.empty_like(side.x) if out is None else out for side, out in zip(sides, outs, strict=True))
    _launch(sides, eps, (query, key))
    return query, key


def _launch(
    sides: Sequence[Side], eps: float, outs: Sequence[Tensor], gradients: Sequence[Tensor | None] = (None, None)
) -> list[Tensor | None]:
    """Writes results, or with gradients those of x; then returns those of the weights, in float32."""
    kernel = importlib.import_module("posenc.rotation.kernel")
    arguments: list[Any] = []
    sums: list[Tensor | None] = []
    for side, out, gradient in zip(sides, outs, gradients, strict=True):
        cos, sin = side.rotation.cos, side.rotation.sin
        if cos.stride() != sin.stride() or cos.stride(-1) != 1:
            cos, sin = cos.contiguous(), sin.contiguous()
        strides = (0 if n == 1 else stride for n, stride in zip(cos.shape[:3], cos.stride()[:3], strict=True))
        x = side.x if side.x.stride(-1) == 1 else side.x.contiguous()
        g = gradient if gradient is None or gradient.stride(-1) == 1 else gradient.contiguous()
        weight = None if side.weight is None else side.weight.detach().contiguous()
        of_weight = None
        if g is not None and weight is not None:
            of_weight = x.new_empty((side.shape[2], x.size(-1)), dtype=torch.float32)
        sums.append(of_weight)
        rows = [None if t is None else kernel.Rows(t, *t.stride()[:3]) for t in (out, x, g)]
        arguments += [*rows, weight, kernel.Angles(cos, sin, *strides), of_weight, *x.shape[1:3]]
    (heads_q, tokens_q, of_queries), (heads_k, tokens_k, of_keys) = (side.shape for side in sides)
    width, turn = sides[0].x.size(-1), sides[0].rotation
    pairs, (block_pairs, block_width) = turn.cos.size(-1), sides[0].blocks
    with torch.cuda.device_of(sides[0].x):
        kernel.norm_rotate[(of_queries + of_keys,)](
            *arguments, of_queries, eps, WIDTH=width, FIRST=turn.first, PAIRS=pairs,
            INTERLEAVED=turn.layout == "interleaved", BLOCK_PAIRS=block_pairs, BLOCK_WIDTH=block_width,
            HEADS_Q=heads_q, TOKENS_Q=tokens_q, HEADS_K=heads_k, TOKENS_K=tokens_k, **OPTIONS,
        )  # fmt: skip
    return [None if t is None else t.sum(0) for t in sums]  # of one order: the same in every run


class _NormRotation(torch.autograd.Function):
    """Keeps x, the weights and the angles. The norms are computed again."""

    @staticmethod
    def forward(ctx: Any, sides: tuple[Side, Side], eps: float, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        ctx.rotations, ctx.eps = [side.rotation for side in sides], eps
        ctx.save_for_backward(*tensors)
        outs = [torch.empty_like(side.x) for side in sides]
        _launch(sides, eps, outs)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        kept = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is asked for, which PyTorch's operations have
            again = [
                turn(normed(x, weight, ctx.eps)).to(x.dtype)
                for turn, (x, weight, *_) in zip(ctx.rotations, (kept[:4], kept[4:]), strict=True)
            ]
            at = [n for n, is_needed in enumerate(ctx.needs_input_grad[2:]) if is_needed]
            which = [n for n, out in enumerate(again) if out.requires_grad]
            of = torch.autograd.grad(
                [again[n] for n in which], [kept[n] for n in at], [gradients[n] for n in which], create_graph=True
            )
            return None, None, *(of[at.index(n)] if n in at else None for n in range(8))
        sides = [
            Side(x, weight, replace(rotation, cos=cos, sin=sin))
            for rotation, (x, weight, cos, sin) in zip(ctx.rotations, (kept[:4], kept[4:]), strict=True)
        ]
        outs = [torch.empty_like(side.x) for side in sides]
        sums = _launch(sides, ctx.eps, outs, gradients)
        found: list[Any] = []
        for side, out, of_weight in zip(sides, outs, sums, strict=True):
            found += [out, None if side.weight is None or of_weight is None else of_weight.to(side.weight), None, None]
        return None, None, *found
