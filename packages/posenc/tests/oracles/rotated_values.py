"""Rotated values.

    a_ij = softmax_j (R(p_i) q_i) . (R(p_j) k_j) / sqrt(d)
    o_i  = R(-p_i) sum_j a_ij R(p_j) v_j
    R(p) turns pair k of the last n channels by p base^(-2k/n),   k = 0 .. n/2 - 1,   n = rotary_dim

transformers' modeling_deepseek_v4.py. Pair k of the slice is (2k, 2k + 1), or (k, k + n/2) in the half layout. Any real
position will do.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .attention import heads
from .case import HEAD_DIM, Case, rows


def turned(x: Tensor, positions: Any, n: int, base: float, layout: str, sense: int = 1) -> Tensor:
    """Every token of x (B, H, N, d), turned to positions (B, N), or back."""
    out = heads(x)
    for b, sample in enumerate(heads(x)):
        for h, tokens in enumerate(sample):
            for t, row in enumerate(tokens):
                for k in range(n // 2):
                    pair = (k, k + n // 2) if layout == "half" else (2 * k, 2 * k + 1)
                    first, second = (len(row) - n + c for c in pair)
                    angle = sense * positions[b][t] * base ** (-2 * k / n)
                    out[b][h][t][first] = row[first] * math.cos(angle) - row[second] * math.sin(angle)
                    out[b][h][t][second] = row[first] * math.sin(angle) + row[second] * math.cos(angle)
    return torch.tensor(out, dtype=torch.float64)


def by(n: int, base: float, layout: str) -> dict[str, Callable[..., Tensor]]:
    return {
        "rotate": lambda x, p: turned(x, rows(p), n, base, layout),
        "turn_values": lambda v, p, sense: turned(v, rows(p), n, base, layout, sense),
    }


CASES = {
    "rotated values": Case(lambda Rotated: Rotated(HEAD_DIM, 4, 313.0), **by(4, 313.0, "interleaved")),
    "rotated values half": Case(lambda Rotated: Rotated(HEAD_DIM, 4, 77.0, "half"), **by(4, 77.0, "half")),
}
