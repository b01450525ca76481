"""Rotary position embedding for video: a RoPE of its own for time, row and column, each on its share of the channels.

    channels (2k, 2k+1) of the share d_a:  (x_a, x_b) <- (x_a cos p θ - x_b sin p θ,  x_a sin p θ + x_b cos p θ)
    θ = base^(-2k/d_a),  k = 0 .. d_a/2 - 1

    "vjepa2": channel c of an axis with n has the angle φ_c = p base^(-2 (c mod n/2) / n), and
    (x_a, x_b) <- (x_a cos φ_a - x_b sin φ_a,  x_a sin φ_b + x_b cos φ_b),  (a, b) = (2k, 2k+1)

The code of Wan 2.1 (rope_params, rope_apply). A position is (t, h, w); the shares follow in this order and are
d - 4 (d // 6), 2 (d // 6), 2 (d // 6) unless given. V-JEPA 2's code (rotate_queries_or_keys) has three shares of
n = 2 (d // 6). In the half layout, of MiniMax M3's vision encoder, pair number m, counted over the three shares, is the
channels (m, m + s/2), with s the sum of the shares; channels from s on stay. A scaled axis has its angles divided and
its channels multiplied.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .attention import Vector
from .case import HEAD_DIM, Case, rows
from .turning import every_token


def rotate(
    x_row: Vector,
    position: Sequence[float],
    shares: Sequence[int],
    base: float,
    half: bool = False,
    slower: Sequence[float] = (1, 1, 1),
    longer: Sequence[float] = (1, 1, 1),
    split: bool = False,
) -> Vector:
    """One token's query or key; ``half``: each channel has the angle of its place in halves; ``split``: the half
    layout."""
    out, start = list(x_row), 0
    for p, share, less, more in zip(position, shares, slower, longer, strict=True):
        for k in range(share // 2):
            a, b = start + 2 * k, start + 2 * k + 1
            a, b = (start // 2 + k, start // 2 + k + sum(shares) // 2) if split else (a, b)
            of_a, of_b = (c % (share // 2) for c in (2 * k, 2 * k + 1)) if half else (k, k)
            at_a, at_b = (p * base ** (-2.0 * place / share) / less for place in (of_a, of_b))
            out[a] = more * (x_row[a] * math.cos(at_a) - x_row[b] * math.sin(at_a))
            out[b] = more * (x_row[a] * math.sin(at_b) + x_row[b] * math.cos(at_b))
        start += share
    return out


def turned(shares: Sequence[int], base: float, half: bool = False, **scaled: Any) -> Callable[[Tensor, Any], Tensor]:
    def all_of(x: Tensor, p: Any) -> Tensor:
        out = every_token(x, rows(p), lambda row, place, _: rotate(row, place, shares, base, half, **scaled))
        return torch.tensor(out, dtype=torch.float64)

    return all_of


CASES = {
    "rope_3d": Case(lambda RoPE3D: RoPE3D(HEAD_DIM, base=77.0), rotate=turned((2, 2, 2), 77.0), axes=3),
    "rope_3d shares": Case(lambda RoPE3D: RoPE3D(HEAD_DIM, (0, 4, 2), 313.0), rotate=turned((0, 4, 2), 313.0), axes=3),
    "rope_3d half": Case(
        lambda RoPE3D: RoPE3D(HEAD_DIM, (0, 2, 2), 77.0, layout="half"),
        rotate=turned((0, 2, 2), 77.0, split=True),
        axes=3,
    ),
    "rope_3d longer": Case(
        lambda RoPE3D: RoPE3D(HEAD_DIM, base=77.0, scaling=lambda theta: (theta / 4, 1.25)),
        rotate=turned((2, 2, 2), 77.0, slower=(4, 1, 1), longer=(1.25, 1, 1)),
        axes=3,
    ),
    "rope_3d larger": Case(
        lambda RoPE3D: RoPE3D(HEAD_DIM, (0, 4, 2), 313.0, scaling=lambda theta: (theta / 3, 1.0), scaled_axes=(1, 2)),
        rotate=turned((0, 4, 2), 313.0, slower=(1, 3, 3)),
        axes=3,
    ),
}
