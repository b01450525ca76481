"""Sinusoidal: vectors of sines and cosines, added to the input."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.encoding import Scheme
from posenc.phases import frequencies, phases
from posenc.positions import Positions


class Sinusoidal(Scheme):
    """Sinusoidal position vectors, added to the input.

    Formula, for k = 0 .. dim/2 - 1 and theta_k = base^(-2k/dim):

        interleaved:   P[p, 2k] = sin(p theta_k)    P[p, 2k + 1]     = cos(p theta_k)
        concatenated:  P[p, k]  = sin(p theta_k)    P[p, k + dim/2]  = cos(p theta_k)

    Index 0 turns fastest, one radian per position. Every vector has norm sqrt(dim/2), P[p + k] is a rotation of P[p]
    that depends on k alone, and any real position has a vector. Nothing is learned.

    Shapes: table (rows, tokens, dim), float32 or float64, accurate to that dtype up to position 2^20 and beyond.
    Errors: ValueError for an odd dim, a base not above 1, an unknown layout, or positions of several axes.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5 (interleaved); Dai et al. 2019,
    "Transformer-XL", whose code concatenates.

    >>> Sinusoidal(4).table(Positions.arange(2))
    tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
             [0.8415, 0.5403, 0.0100, 0.9999]]])
    """

    def __init__(
        self, dim: int, base: float = 10_000.0, layout: Literal["interleaved", "concatenated"] = "interleaved"
    ) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise ValueError(f"dim must be positive and even (sines and cosines come in pairs), got {dim}")
        if not base > 1:
            raise ValueError(f"base must be above 1, got {base}")
        if layout not in ("interleaved", "concatenated"):
            raise ValueError(f"layout must be 'interleaved' or 'concatenated', got {layout!r}")
        self.dim, self.base, self.layout = dim, base, layout

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        """The vectors P[p]."""
        coords = positions.scalar("Sinusoidal")
        angle = phases(coords, frequencies(self.dim, self.base, coords.device))
        axis = -1 if self.layout == "interleaved" else -2
        return torch.stack((angle.sin(), angle.cos()), axis).flatten(-2).to(dtype)

    def extra_repr(self) -> str:
        return f"{self.dim}, base={self.base}, layout={self.layout!r}"
