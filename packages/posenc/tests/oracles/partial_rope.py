"""Partial RoPE.

    n = int(share d),  θ_k = base^(-2k/n),  k = 0 .. n/2 - 1
    (x_a, x_b) <- (x_a cos pθ_k - x_b sin pθ_k,  x_a sin pθ_k + x_b cos pθ_k)

transformers' modeling_phi.py (half) and modeling_glm.py (interleaved), `partial_rotary_factor`. Pair k is (k, k + n/2)
or (2k, 2k + 1); channels from n on stay. Any real position will do.
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
                n = int(share * len(row))
                for k in range(n // 2):
                    first, second = (k, k + n // 2) if layout == "half" else (2 * k, 2 * k + 1)
                    angle = positions[b][t] * base ** (-2 * k / n)
                    a, c = row[first], row[second]
                    out[b][h][t][first] = a * math.cos(angle) - c * math.sin(angle)
                    out[b][h][t][second] = a * math.sin(angle) + c * math.cos(angle)
    return torch.tensor(out, dtype=torch.float64)


def by(share: float, base: float, layout: str) -> Callable[[Tensor, Any], Tensor]:
    return lambda x, p: turned(x, rows(p), share, base, layout)


CASES = {
    "partial rope": Case(lambda RoPE: RoPE(HEAD_DIM, 77.0, rotary_dim=4), rotate=by(0.7, 77.0, "half")),
    "partial rope interleaved": Case(
        lambda RoPE: RoPE(HEAD_DIM, 313.0, "interleaved", 4), rotate=by(2 / 3, 313.0, "interleaved")
    ),
}
