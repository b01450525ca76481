"""RoPE-Mixed.

    (x_a, x_b) <- (x_a cos φ - x_b sin φ,  x_a sin φ + x_b cos φ),   φ = x f[0][h][k] + y f[1][h][k]

Heo et al. 2024, Rotary Position Embedding for Vision Transformer (arXiv 2403.13298), section 3.2, and their code.
Conventions: pair k is the channels (2k, 2k+1) of the first rotary_dim; a position is (y, x), row before column, and f
has the columns first. h is the head of the key; query head h reads f of key head h // (H / Hk). f is learned.
"""

import math
from typing import Any

from torch import Tensor

from .attention import Vector, dot, heads
from .case import HEAD_DIM, KV_HEADS, Case, rows


def rotate(x_row: Vector, y: float, x: float, of_columns: Vector, of_rows: Vector) -> Vector:
    """One token's query or key; f of its head for columns and for rows."""
    out = list(x_row)
    for k, (f_x, f_y) in enumerate(zip(of_columns, of_rows, strict=True)):
        angle = x * f_x + y * f_y
        a, b = 2 * k, 2 * k + 1
        out[a] = x_row[a] * math.cos(angle) - x_row[b] * math.sin(angle)
        out[b] = x_row[a] * math.sin(angle) + x_row[b] * math.cos(angle)
    return out


def _pairs(s: Any, query: Tensor, key: Tensor, x: Any, y: Any) -> dict[str, Any]:
    """Scores from nothing, of queries and keys that are turned here."""
    columns, along_rows = s.frequencies.detach().tolist()
    q, k, here, there = heads(query), heads(key), rows(x), rows(y)
    group = len(q[0]) // len(k[0])

    def turned(tokens: Any, places: Any, share: int) -> Any:
        return [
            [
                [rotate(v, *places[b][n], columns[h // share], along_rows[h // share]) for n, v in enumerate(of_head)]
                for h, of_head in enumerate(sample)
            ]
            for b, sample in enumerate(tokens)
        ]

    q, k = turned(q, here, group), turned(k, there, 1)
    return {"score": lambda _, b, h, i, j: dot(q[b][h][i], k[b][h // group][j]) / math.sqrt(len(q[b][h][i]))}


CASES = {
    "mixed_rope": Case(lambda MixedRoPE: MixedRoPE(HEAD_DIM, KV_HEADS, rotary_dim=4), pairs=_pairs, axes=2),
}
