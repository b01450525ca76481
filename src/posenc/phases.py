"""Phases p * theta_k, exact whatever the dtype of the model: the arithmetic shared by sinusoidal and rotary schemes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

PairLayout = Literal["half", "interleaved"]


def frequencies(dim: int, base: float, device: torch.device | None = None) -> Float64[Tensor, " pairs"]:
    """theta_k = base^(-2k/dim) radians per position, k = 0 .. dim/2 - 1. Index 0 is the fastest."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=device) / -dim
    return torch.pow(torch.tensor(base, dtype=torch.float64, device=device), exponents)


def phases(
    coords: Shaped[Tensor, "rows tokens"], theta: Float64[Tensor, " pairs"]
) -> Float64[Tensor, "rows tokens pairs"]:
    """p * theta_k in radians.

    In double precision: at p = 2^20 a single-precision product is off by 0.06 rad before the sine is even taken.
    """
    return coords.to(torch.float64)[..., None] * theta


@dataclass(frozen=True, eq=False)
class PairRotation:
    """Turns pairs of channels of x (batch, heads, tokens, head_dim) by the angles whose cos and sin it holds.

    (a, b) -> (a cos - b sin, a sin + b cos), for the first 2 x pairs channels; the others pass untouched.
    A pair is (k, k + pairs) in the "half" layout and (2k, 2k + 1) in the "interleaved" one. Half-precision x is turned
    in float32 and rounded once, at the end.
    """

    cos: Float[Tensor, "rows heads tokens pairs"]
    sin: Float[Tensor, "rows heads tokens pairs"]
    layout: PairLayout
    head_dim: int

    def __call__(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch heads tokens head_dim"]:
        """The turned x, in x's dtype. ValueError where its last dimension is not head_dim."""
        if x.size(-1) != self.head_dim:
            raise ValueError(f"the rotation was made for head_dim {self.head_dim}, got q or k of head_dim {x.size(-1)}")
        pairs = self.cos.size(-1)
        turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
        dtype = torch.promote_types(x.dtype, torch.float32)
        cos, sin = self.cos.to(dtype), self.sin.to(dtype)
        paired = turned.unflatten(-1, (2, pairs) if self.layout == "half" else (pairs, 2)).to(dtype)
        axis = -2 if self.layout == "half" else -1
        a, b = paired.unbind(axis)
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), axis).flatten(-2).to(x.dtype)
        return torch.cat((turned, rest), -1) if rest.size(-1) else turned
