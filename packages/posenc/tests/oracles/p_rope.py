"""p-RoPE.

    θ_k = base^(-2k/d) for k < int(p d // 2), else 0,   k = 0 .. d/2 - 1
    (x_a, x_b) <- (x_a cos tθ_k - x_b sin tθ_k,  x_a sin tθ_k + x_b cos tθ_k)

Barbero et al. 2024 (arXiv 2410.06205), section 6; rounding and the half layout, pair k being (k, k + d/2), as in
transformers' `_compute_proportional_rope_parameters`. The interleaved layout pairs (2k, 2k + 1). Any real position will
do.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .attention import heads
from .case import HEAD_DIM, Case, rows


def turned(x: Tensor, positions: Any, share: float, base: float, layout: str) -> Tensor:
    """Every token of x (B, H, N, d), turned to positions (B, N)."""
    out = heads(x)
    for b, sample in enumerate(heads(x)):
        for h, tokens in enumerate(sample):
            for t, row in enumerate(tokens):
                d = len(row)
                for k in range(int(share * d // 2)):
                    first, second = (k, k + d // 2) if layout == "half" else (2 * k, 2 * k + 1)
                    angle = positions[b][t] * base ** (-2 * k / d)
                    a, c = row[first], row[second]
                    out[b][h][t][first] = a * math.cos(angle) - c * math.sin(angle)
                    out[b][h][t][second] = a * math.sin(angle) + c * math.cos(angle)
    return torch.tensor(out, dtype=torch.float64)


def by(share: float, base: float, layout: str) -> Callable[[Tensor, Any], Tensor]:
    return lambda x, p: turned(x, rows(p), share, base, layout)


def scaling(share: float) -> dict[str, Any]:
    return {"rope_type": "proportional", "partial_rotary_factor": share}


CASES = {
    "p_rope": Case(lambda RoPE: RoPE(HEAD_DIM, 77.0, scaling=scaling(0.7)), rotate=by(0.7, 77.0, "half")),
    "p_rope interleaved": Case(
        lambda RoPE: RoPE(HEAD_DIM, 313.0, "interleaved", scaling=scaling(0.5)), rotate=by(0.5, 313.0, "interleaved")
    ),
}
