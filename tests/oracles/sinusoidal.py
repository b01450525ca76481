"""Sinusoidal positions.

    P[p, 2k]   = sin(p * base^(-2k/dim))
    P[p, 2k+1] = cos(p * base^(-2k/dim))        k = 0 .. dim/2 - 1

Vaswani et al. 2017 (arXiv 1706.03762), section 3.5. Conventions: the denominator of the exponent is dim
(tensor2tensor divides k by dim/2 - 1 instead); index 0 is the fastest; P is added to the input without a factor.
"interleaved" is the paper's order of channels; "concatenated" is Transformer-XL's [sin | cos] of the same numbers:
channel k holds sin and channel k + dim/2 holds cos of frequency k. Any real position is meaningful, negative and
fractional too.
"""

import math
from collections.abc import Sequence

from .attention import Matrix


def table(positions: Sequence[float], dim: int, base: float = 10000.0, layout: str = "interleaved") -> Matrix:
    """One row of dim numbers per position."""
    assert dim % 2 == 0, f"dim must be even, got {dim}"
    rows: Matrix = []
    for p in positions:
        row = [0.0] * dim
        for k in range(dim // 2):
            angle = p * base ** (-2.0 * k / dim)
            if layout == "interleaved":
                row[2 * k], row[2 * k + 1] = math.sin(angle), math.cos(angle)
            elif layout == "concatenated":
                row[k], row[k + dim // 2] = math.sin(angle), math.cos(angle)
            else:
                raise ValueError(f"layout must be interleaved or concatenated, got {layout!r}")
        rows.append(row)
    return rows
