"""Sinusoidal positions.

    P[p, 2k]   = sin(p * base^(-2k/dim))
    P[p, 2k+1] = cos(p * base^(-2k/dim))        k = 0 .. dim/2 - 1
    grid of A axes:  P[x] = [ P[x_1] | .. | P[x_A] ],   each of dim/A channels, with dim/A for dim
    shift:  (sin, cos)_k of p + r = (sin cos a + cos sin a, cos cos a - sin sin a),   a = r * base^(-2k/dim)

Vaswani et al. 2017 (arXiv 1706.03762), section 3.5. Conventions: the denominator of the exponent is dim, but
"tensor2tensor" is concatenated and divides k by dim/2 - 1 instead, as get_timing_signal_1d does; index 0 is the
fastest; P is added to the input without a factor. "interleaved" is the paper's order of channels; "concatenated" is
Transformer-XL's [sin | cos] of the same numbers: channel k holds sin and channel k + dim/2 holds cos of frequency k.
Any real position is meaningful, negative and fractional too. On a grid the axes come in the coordinates' order, and the
layout holds within each axis. MAE (arXiv 2111.06377) has these frequencies (big_vision divides by dim/4 - 1),
concatenated; but its code puts the column first, under the name of emb_h: its table is that of (column, row) points.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .attention import Matrix, Vector
from .case import DIM, Case, rows


def frequency(k: int, dim: int, base: float, layout: str) -> float:
    """Radians per position of pair k."""
    if layout == "tensor2tensor":
        return 1.0 if k == 0 else math.exp(-k * math.log(base) / (dim // 2 - 1))
    return base ** (-2.0 * k / dim)


def table(positions: Sequence[float], dim: int, base: float = 10000.0, layout: str = "interleaved") -> Matrix:
    """One row of dim numbers per position."""
    assert dim % 2 == 0, f"dim must be even, got {dim}"
    rows: Matrix = []
    for p in positions:
        row = [0.0] * dim
        for k in range(dim // 2):
            angle = p * frequency(k, dim, base, layout)
            if layout == "interleaved":
                row[2 * k], row[2 * k + 1] = math.sin(angle), math.cos(angle)
            elif layout in ("concatenated", "tensor2tensor"):
                row[k], row[k + dim // 2] = math.sin(angle), math.cos(angle)
            else:
                raise ValueError(f"layout must be interleaved, concatenated or tensor2tensor, got {layout!r}")
        rows.append(row)
    return rows


def grid_table(
    coords: Sequence[Sequence[float]], dim: int, base: float = 10000.0, layout: str = "interleaved"
) -> Matrix:
    """One row of dim numbers per point; a point has one coordinate an axis."""
    rows: Matrix = []
    for point in coords:
        assert dim % (2 * len(point)) == 0, f"dim must be a multiple of {2 * len(point)}, got {dim}"
        row: Vector = []
        for coordinate in point:
            row += table([coordinate], dim // len(point), base, layout)[0]
        rows.append(row)
    return rows


def shift(vector: Vector, offsets: Sequence[float], base: float = 10000.0, layout: str = "interleaved") -> Vector:
    """The vector of the point that lies `offsets` (one an axis) further on, from the vector of the point alone."""
    assert len(vector) % (2 * len(offsets)) == 0, f"{len(vector)} channels are not pairs on {len(offsets)} axes"
    dim = len(vector) // len(offsets)
    out = list(vector)
    for axis, offset in enumerate(offsets):
        for k in range(dim // 2):
            if layout == "interleaved":
                s, c = axis * dim + 2 * k, axis * dim + 2 * k + 1
            elif layout in ("concatenated", "tensor2tensor"):
                s, c = axis * dim + k, axis * dim + k + dim // 2
            else:
                raise ValueError(f"layout must be interleaved, concatenated or tensor2tensor, got {layout!r}")
            angle = offset * frequency(k, dim, base, layout)
            out[s] = vector[s] * math.cos(angle) + vector[c] * math.sin(angle)
            out[c] = vector[c] * math.cos(angle) - vector[s] * math.sin(angle)
    return out


def added(layout: str, base: float) -> Callable[[Tensor, Any, Any], Tensor]:
    def add(x: Tensor, p: Any, scheme: Any) -> Tensor:
        each = table if p.coords.dim() == 2 else grid_table
        return x + torch.tensor([each(row, DIM, base, layout) for row in rows(p)], dtype=torch.float64)

    return add


CASES = {
    "sinusoidal": Case(lambda Sinusoidal: Sinusoidal(DIM, base=313.0), add=added("interleaved", 313.0)),
    "sinusoidal concatenated": Case(
        lambda Sinusoidal: Sinusoidal(DIM, base=77.0, layout="concatenated"), add=added("concatenated", 77.0)
    ),
    "sinusoidal tensor2tensor": Case(
        lambda Sinusoidal: Sinusoidal(DIM, 77.0, "tensor2tensor"), add=added("tensor2tensor", 77.0)
    ),
    "sinusoidal 2d": Case(
        lambda Sinusoidal: Sinusoidal(DIM, base=313.0, axes=2), add=added("interleaved", 313.0), axes=2
    ),
    "sinusoidal 3d concatenated": Case(
        lambda Sinusoidal: Sinusoidal(DIM, 77.0, "concatenated", axes=3), add=added("concatenated", 77.0), axes=3
    ),
}
