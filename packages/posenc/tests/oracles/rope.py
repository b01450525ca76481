"""Rotary position embedding.

    (x_a, x_b) <- (x_a cos pθ_k - x_b sin pθ_k,  x_a sin pθ_k + x_b cos pθ_k)
    θ_k = base^(-2k/D),   k = 0 .. D/2 - 1,   D = rotary_dim

Su et al. 2021, RoFormer (arXiv 2104.09864), Eqs. 14-16; the bound is section 3.4.3. Conventions: a position turns its
pair counter-clockwise, q and k alike, so q_i . k_j depends on p_j - p_i alone. Pair k is (2k, 2k+1) in the paper's
"interleaved" layout and (k, k + D/2) in the "half" layout. Partial rotary: the first rotary_dim channels are paired and
rotated, with frequencies over rotary_dim; the last head_dim - rotary_dim are untouched. Any real position will do.

Axial, for a position of A coordinates (Heo et al. 2024, Rotary Position Embedding for Vision Transformer,
with A = 2): pair k turns by coordinate k // (D/2A), with the frequencies of k mod (D/2A) over D/A channels.

RoPE++ (Liu et al. 2025, arXiv 2512.07525; OpenMOSS/rope_pp): with z_k = q_a + i q_b and w_k = k_a + i k_b, the score is
Re sum_k z_k conj(w_k) e^(i (p_i - p_j) θ_k) / sqrt(d), and that of an imaginary head has Im in place of Re.
"""

import cmath
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .attention import Heads, Vector, heads
from .case import HEAD_DIM, HEADS, Case, rows
from .turning import every_token, pair
from .turning import turned as turned_row


def frequencies(dim: int, base: float = 10000.0) -> Vector:
    """θ_0 = 1 is the fastest."""
    return [base ** (-2.0 * k / dim) for k in range(dim // 2)]


def rotate(
    x_row: Vector,
    position: float | Sequence[float],
    base: float = 10000.0,
    layout: str = "half",
    rotary_dim: int | None = None,
) -> Vector:
    """One token's query or key, turned to its position, which has one coordinate or several."""
    coordinates = [position] if isinstance(position, (int, float)) else position
    dim = len(x_row) if rotary_dim is None else rotary_dim
    each, left = divmod(dim, 2 * len(coordinates))
    assert left == 0, f"rotary_dim must be even on each axis, got {dim}"
    pairs = ((*pair(k, dim, layout), coordinates[k // each] * base ** (-(k % each) / each)) for k in range(dim // 2))
    return turned_row(x_row, pairs)


def rotate_all(
    x: Tensor | Heads,
    positions: Sequence[Sequence[float]] | Sequence[Sequence[Sequence[float]]],
    base: float = 10000.0,
    layout: str = "half",
    rotary_dim: int | None = None,
) -> Tensor:
    """Every token of x (B, H, N, head_dim), turned to positions (B, N) or (B, N, axes); in float64."""
    out = every_token(x, positions, lambda row, place, _: rotate(row, place, base, layout, rotary_dim))
    return torch.tensor(out, dtype=torch.float64)


def bound(distance: float, dim: int, base: float = 10000.0) -> float:
    """B(r) = (2/D) sum_{j=1..D/2} |S_j|,  S_j = sum_{k<j} e^{i r θ_k}: an upper bound up to a factor, not a behaviour.

    The factor, max_k |h_{k+1} - h_k| of the query-key products, is left out as in the paper's figure. B(0) is the mean
    of 1 .. D/2.
    """
    partial, total = 0j, 0.0
    for theta in frequencies(dim, base):
        partial += cmath.exp(1j * distance * theta)
        total += abs(partial)
    return 2.0 * total / dim


def imaginary(x: Tensor, p: Any, scheme: Any) -> Tensor:
    """Turned queries, those of odd heads times -i: Re(-i z conj(w)) is Im(z conj(w))."""
    out = heads(x)
    for sample in out:
        for tokens in sample[1::2]:
            for row in tokens:
                for k in range(len(row) // 2):
                    z = complex(row[k], row[k + len(row) // 2]) * -1j
                    row[k], row[k + len(row) // 2] = z.real, z.imag
    return torch.tensor(out, dtype=torch.float64)


def turned(base: float, layout: str, rotary_dim: int) -> Callable[[Tensor, Any], Tensor]:
    return lambda x, p: rotate_all(x, rows(p), base, layout, rotary_dim)


CASES = {
    "rope": Case(lambda RoPE: RoPE(HEAD_DIM, base=313.0), rotate=turned(313.0, "half", HEAD_DIM)),
    "rope interleaved": Case(
        lambda RoPE: RoPE(HEAD_DIM, base=500_000.0, layout="interleaved"),
        rotate=turned(500_000.0, "interleaved", HEAD_DIM),
    ),
    "rope partial": Case(lambda RoPE: RoPE(HEAD_DIM, base=77.0, rotary_dim=4), rotate=turned(77.0, "half", 4)),
    "rope++": Case(
        lambda RoPE: RoPE(HEAD_DIM, base=313.0, imaginary=range(1, HEADS, 2), num_heads=HEADS),
        rotate=turned(313.0, "half", HEAD_DIM),
        turn_query=imaginary,
    ),
    "rope 2d": Case(lambda RoPE: RoPE(HEAD_DIM, 77.0, rotary_dim=4, axes=2), rotate=turned(77.0, "half", 4), axes=2),
    "rope 3d interleaved": Case(
        lambda RoPE: RoPE(HEAD_DIM, 5.0, "interleaved", axes=3), rotate=turned(5.0, "interleaved", HEAD_DIM), axes=3
    ),
}
