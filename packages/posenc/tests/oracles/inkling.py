"""A bias of the distance back that the query mixes for itself.

    s_ij <- s_ij + tau_i r_i . B[p_i - p_j]   where 0 <= p_i - p_j < extent, else s_ij
    q_i  <- tau_i q_i,   tau_i = 1 + alpha ln max(1, (p_i + 1) / n) in global layers, else 1

transformers, models/inkling/modeling_inkling.py, `InklingRelativeLogits` and `InklingAttention.forward`. Conventions: r
(B, H, M, width) is made by the layer, B is extent x width and shared by the heads (the model keeps its transpose), and
the product is not scaled. Positions are those of the tokens. In Inkling 2 (models/inkling2/modeling_inkling2.py,
`Inkling2ScaledL2Clip`) r is first shortened: r_ih <- r_ih min(1, clip / (|r_ih| + 1e-6)).
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .attention import Heads, Matrix, Score, Vector, dot, heads, matrix
from .case import HEADS, Case, rows

WIDTH, EXTENT, FLOOR, ALPHA, CLIP = 3, 5, 4, 0.7, 1.5


def growth(position: int, floor: int | None, alpha: float) -> float:
    """tau of a position."""
    return 1.0 if floor is None else 1.0 + alpha * math.log(max(1.0, (position + 1) / floor))


def clipped(x: Vector, most: float) -> Vector:
    """x, shortened where it is longer than ``most``."""
    return [min(1.0, most / (math.sqrt(dot(x, x)) + 1e-6)) * c for c in x]


def score(
    profile: Tensor | Heads,
    table: Tensor | Matrix,
    query_positions: Sequence[Sequence[int]],
    key_positions: Sequence[Sequence[int]],
    floor: int | None = None,
    alpha: float = 0.1,
    clip: float = math.inf,
) -> Score:
    """The logit and the mixed bias."""
    r, B = heads(profile), matrix(table)
    r = [[[clipped(row, clip) for row in tokens] for tokens in sample] for sample in r]

    def biased(s: float, b: int, h: int, i: int, j: int) -> float:
        back = query_positions[b][i] - key_positions[b][j]
        if not 0 <= back < len(B):
            return s
        return s + growth(query_positions[b][i], floor, alpha) * dot(r[b][h][i], B[back])

    return biased


def profile_in(query: Tensor) -> Tensor:
    """What the layer would make, cut from the queries' first channels."""
    return query[..., :WIDTH]


def _grown(x: Tensor, p: Any, scheme: Any) -> Tensor:
    factors = [[growth(at, FLOOR, ALPHA) for at in row] for row in rows(p)]
    return x * x.new_tensor(factors)[:, None, :, None]


def _global(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    factors = [[growth(at, FLOOR, ALPHA) for at in row] for row in rows(x)]
    profile = profile_in(q / q.new_tensor(factors)[:, None, :, None])  # the queries have grown already
    return {"score": score(profile, s.B, rows(x), rows(y), FLOOR, ALPHA, s.clip or math.inf)}


CASES = {
    "inkling": Case(
        lambda Inkling: Inkling(HEADS, WIDTH, EXTENT),
        pairs=lambda s, q, k, x, y: {"score": score(profile_in(q), s.B, rows(x), rows(y))},
        projected=lambda q, k: {"profile": profile_in(q)},
        integers_only=True,
    ),
    "inkling, a global layer": Case(
        lambda Inkling: Inkling(HEADS, WIDTH, EXTENT, length=FLOOR, strength=ALPHA),
        turn_query=_grown,
        pairs=_global,
        projected=lambda q, k: {"profile": profile_in(q)},
        integers_only=True,
    ),
    "inkling 2, a global layer": Case(
        lambda Inkling: Inkling(HEADS, WIDTH, EXTENT, length=FLOOR, strength=ALPHA, clip=CLIP),
        turn_query=_grown,
        pairs=_global,
        projected=lambda q, k: {"profile": profile_in(q)},
        integers_only=True,
    ),
}
