"""YaRN: RoPE stretched from a context of L to factor * L.

    θ_k    = base^(-2k/D),                                            D = rotary_dim
    dim(n) = D ln(L / (2 pi n)) / (2 ln base)                         the index that turns n times in L tokens
    ramp_k = clip((k - low) / (high - low), 0, 1),                    low = floor dim(32),  high = ceil dim(1)
    θ'_k   = (1 - ramp_k) θ_k + ramp_k θ_k / factor
    q, k   <- rotated with θ', both times 0.1 ln(factor) + 1          so logits times its square

Peng et al. 2023 (arXiv 2309.00071), section 3, as the authors' LlamaYaRNScaledRotaryEmbedding.py has it. Conventions:
the ramp is linear in the index k, between whole indices (any ones where they are not truncated), low held at 0 from
below and high at D-1 from above, and pushed 0.001 apart where low is not below high (the paper's own ramp is linear in
L / wavelength). The magnitude multiplies cos and sin, so a partial rotary's untouched channels keep their length; it is
1 for factor <= 1. Pairs, sign and layouts are RoPE's.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from .attention import Heads, Vector, heads


def correction_range(
    dim: int, base: float, original_length: int, fast: float = 32.0, slow: float = 1.0, truncate: bool = True
) -> tuple[float, float]:
    """(low, high): indices up to low keep their frequency, from high on they are divided by the factor."""

    def index_turning(times: float) -> float:
        return dim * math.log(original_length / (times * 2.0 * math.pi)) / (2.0 * math.log(base))

    low, high = index_turning(fast), index_turning(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, dim - 1)


def frequencies(
    dim: int,
    base: float,
    factor: float,
    original_length: int,
    fast: float = 32.0,
    slow: float = 1.0,
    truncate: bool = True,
) -> Vector:
    """θ'_0 .. θ'_{D/2-1}."""
    low, high = correction_range(dim, base, original_length, fast, slow, truncate)
    width = high - low if low < high else 0.001
    out: Vector = []
    for k in range(dim // 2):
        theta = base ** (-2.0 * k / dim)
        ramp = min(max((k - low) / width, 0.0), 1.0)
        out.append((1.0 - ramp) * theta + ramp * theta / factor)
    return out


def magnitude(factor: float) -> float:
    """sqrt(1/t), on q and on k alike."""
    return 1.0 if factor <= 1.0 else 0.1 * math.log(factor) + 1.0


def rotate(
    x_row: Vector,
    position: float,
    *,
    factor: float,
    original_length: int,
    base: float = 10000.0,
    layout: str = "half",
    rotary_dim: int | None = None,
) -> Vector:
    """One token's query or key, turned to its position and lengthened."""
    dim = len(x_row) if rotary_dim is None else rotary_dim
    assert dim % 2 == 0, f"rotary_dim must be even, got {dim}"
    long = magnitude(factor)
    out = list(x_row)
    for k, theta in enumerate(frequencies(dim, base, factor, original_length)):
        if layout == "half":
            a, b = k, k + dim // 2
        elif layout == "interleaved":
            a, b = 2 * k, 2 * k + 1
        else:
            raise ValueError(f"layout must be half or interleaved, got {layout!r}")
        cos, sin = long * math.cos(position * theta), long * math.sin(position * theta)
        out[a] = x_row[a] * cos - x_row[b] * sin
        out[b] = x_row[a] * sin + x_row[b] * cos
    return out


def rotate_all(
    x: Tensor | Heads,
    positions: Sequence[Sequence[float]],
    *,
    factor: float,
    original_length: int,
    base: float = 10000.0,
    layout: str = "half",
    rotary_dim: int | None = None,
) -> Tensor:
    """Every token of x (B, H, N, head_dim), turned to positions (B, N); in float64."""
    turn = partial(
        rotate, factor=factor, original_length=original_length, base=base, layout=layout, rotary_dim=rotary_dim
    )
    out = [
        [[turn(row, positions[b][n]) for n, row in enumerate(tokens)] for tokens in sample]
        for b, sample in enumerate(heads(x))
    ]
    return torch.tensor(out, dtype=torch.float64)
