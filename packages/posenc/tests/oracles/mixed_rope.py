"""RoPE-Mixed.

    (x_a, x_b) <- (x_a cos φ - x_b sin φ,  x_a sin φ + x_b cos φ),   φ = x f[0][h][k] + y f[1][h][k]

Heo et al. 2024, Rotary Position Embedding for Vision Transformer (arXiv 2403.13298), section 3.2, and their code.
Conventions: pair k is the channels (2k, 2k+1) of the first rotary_dim; a position is (y, x), row before column, and f
has the columns first. h is the head of the key; query head h reads f of key head h // (H / Hk). f is learned.
"""

from typing import Any

from torch import Tensor

from .attention import Vector
from .case import HEAD_DIM, KV_HEADS, Case
from .turning import scores, turned


def _pairs(s: Any, query: Tensor, key: Tensor, x: Any, y: Any) -> dict[str, Any]:
    """Scores from nothing, of queries and keys that are turned here."""
    columns, along_rows = s.frequencies.detach().tolist()

    def turn(row: Vector, place: tuple[float, float], h: int) -> Vector:
        f = enumerate(zip(columns[h], along_rows[h], strict=True))
        return turned(row, [(2 * k, 2 * k + 1, place[1] * f_x + place[0] * f_y) for k, (f_x, f_y) in f])

    return scores(query, key, x, y, turn)


CASES = {"mixed_rope": Case(lambda MixedRoPE: MixedRoPE(HEAD_DIM, KV_HEADS, rotary_dim=4), pairs=_pairs, axes=2)}
