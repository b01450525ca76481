"""Exponential decay: every channel forgets at its own pace.

    P[p, k] = exp(-p / tau_k),        tau_k = longest^((k+1)/dim),        k = 0 .. dim-1

Introductions name exponential decay beside sine and cosine, and give no formula; no paper is known. Conventions: the
time constants are geometric, as the sinusoid's wavelengths are; channel 0 is the fastest and the last one's constant is
`longest` itself. P[0] = (1, .., 1), and every channel falls towards 0: P[p + r] is P[p] times exp(-r / tau_k), channel
by channel, so a shift is a contraction and not a rotation, and positions far past `longest` grow alike. Any real
position from 0 up; a negative one would grow without bound and is refused.
"""

import math
from collections.abc import Sequence

import torch

from .attention import Matrix
from .case import DIM, Case, rows


def table(positions: Sequence[float], dim: int, longest: float = 10000.0) -> Matrix:
    """One row of dim numbers per position."""
    rows: Matrix = []
    for p in positions:
        if p < 0:
            raise IndexError(f"position {p} is negative: the decay starts at 0")
        rows.append([math.exp(-p / longest ** ((k + 1) / dim)) for k in range(dim)])
    return rows


CASES = {
    "exponential decay": Case(
        lambda ExponentialDecay: ExponentialDecay(DIM, longest=313.0),
        add=lambda x, p, scheme: x + torch.tensor([table(row, DIM, 313.0) for row in rows(p)], dtype=torch.float64),
        from_zero=True,
    )
}
