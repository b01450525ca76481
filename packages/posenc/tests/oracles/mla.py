"""The rotation of multi-head latent attention.

    θ_k = base^(-2k/n),   k = 0 .. n/2 - 1,   n = rope_dim, the last channels of q and k
    (x_a, x_b) <- (x_a cos pθ_k - x_b sin pθ_k,  x_a sin pθ_k + x_b cos pθ_k)

DeepSeek-V2 (arXiv 2405.04434), equations 14 to 18: q = [q^C; RoPE(q^R)], k = [k^C; RoPE(k^R)]. Pair k of the slice is
(2k, 2k + 1), as in the checkpoints, or (k, k + n/2). Any real position will do.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .attention import Vector, heads
from .case import HEAD_DIM, Case, rows


def turned(row: Vector, position: float, n: int, base: float, layout: str) -> Vector:
    """One query or key, or one slice of it."""
    out, start = list(row), len(row) - n
    for k in range(n // 2):
        first, second = (k, k + n // 2) if layout == "half" else (2 * k, 2 * k + 1)
        a, b = row[start + first], row[start + second]
        angle = position * base ** (-2 * k / n)
        out[start + first] = a * math.cos(angle) - b * math.sin(angle)
        out[start + second] = a * math.sin(angle) + b * math.cos(angle)
    return out


def turned_all(x: Tensor, positions: Any, n: int, base: float, layout: str) -> Tensor:
    """Every token of x (B, H, N, d or n), turned to positions (B, N)."""
    out = [
        [[turned(row, positions[b][t], n, base, layout) for t, row in enumerate(tokens)] for tokens in sample]
        for b, sample in enumerate(heads(x))
    ]
    return torch.tensor(out, dtype=torch.float64)


def by(n: int, base: float, layout: str) -> Callable[[Tensor, Any], Tensor]:
    return lambda x, p: turned_all(x, rows(p), n, base, layout)


CASES = {
    "mla": Case(lambda MLA: MLA(HEAD_DIM, 4, 313.0), rotate=by(4, 313.0, "interleaved")),
    "mla half": Case(lambda MLA: MLA(HEAD_DIM, 4, 77.0, "half"), rotate=by(4, 77.0, "half")),
}
