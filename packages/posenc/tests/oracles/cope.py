"""Contextual position encoding: a position is a count of the tokens that matter.

    g_it = sigmoid(s_it),   s_it = q_i.k_t / sqrt(d)
    p_ij = min( sum_{t = j..i} g_it, n_pos - 1 )
    s_ij <- s_ij + position_scale * [ (1 - f) q_i.e[floor p_ij] + f q_i.e[ceil p_ij] ],   f = p_ij - floor p_ij

Golovneva et al. 2024 (arXiv 2405.18719), section 4 and its code listing. Conventions: the sum runs from
the key to the query, both included, in the tokens' order and not their index; only visible tokens count. e is n_pos x
d, shared across heads. The gate reads the logit of the row as it comes: already scaled, with whatever earlier terms
put there. position_scale must be said: 1.0 adds the term after the division by sqrt(d), as the paper's listing does;
1/sqrt(d) divides it too, as facebookresearch/RAM does by default.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .attention import Heads, Matrix, Row, Vector, dot, heads, matrix
from .case import HEAD_DIM, Case


def sigmoid(x: float) -> float:
    """1 / (1 + e^-x), without overflow."""
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def positions(
    logits: Vector, order: Sequence[int], query_order: int, visible: Sequence[bool], num_positions: int, causal: bool
) -> Vector:
    """p_ij of one row. Not causal: tokens after the query count too, up to the end of the row, as in the listing."""
    out: Vector = []
    for j in range(len(logits)):
        count = 0.0
        for t in range(len(logits)):
            if visible[t] and order[t] >= order[j] and (not causal or order[t] <= query_order):
                count += sigmoid(logits[t])
        out.append(min(count, num_positions - 1.0))
    return out


def row(
    query: Tensor | Heads,
    table: Tensor | Matrix,
    query_order: Sequence[Sequence[int]],
    key_order: Sequence[Sequence[int]],
    *,
    position_scale: float,
    causal: bool = True,
) -> Row:
    """One query's logits with the position term added."""
    q, e = heads(query), matrix(table)

    def with_positions(logits: Vector, b: int, h: int, i: int, visible: list[bool]) -> Vector:
        counts = positions(logits, key_order[b], query_order[b][i], visible, len(e), causal)
        out: Vector = []
        for s, p in zip(logits, counts, strict=True):
            low, high, part = math.floor(p), math.ceil(p), p - math.floor(p)
            interpolated = (1.0 - part) * dot(q[b][h][i], e[low]) + part * dot(q[b][h][i], e[high])
            out.append(s + position_scale * interpolated)
        return out

    return with_positions


def _counted(scaled: bool, causal: bool) -> Callable[..., dict[str, Any]]:
    factor = HEAD_DIM**-0.5 if scaled else 1.0
    return lambda s, q, k, x, y: {
        "row": row(q, s.e, x.expand(2).order.tolist(), y.expand(2).order.tolist(), position_scale=factor, causal=causal)
    }


# What is not visible does not count, so that the loops need not be told whether there is a causal mask.
CASES = {
    "cope": Case(lambda CoPE: CoPE(HEAD_DIM, 4), pairs=_counted(scaled=True, causal=False), refused_by=("sdpa",)),
    "cope unscaled": Case(
        lambda CoPE: CoPE(HEAD_DIM, 7, scaled=False), pairs=_counted(scaled=False, causal=False), refused_by=("sdpa",)
    ),
}
