"""The attention of Swin Transformers, version 2.

    s_ij = cos(q_i, k_j) exp(min(tau_h, ln 100)) + 16 sigmoid(W2 relu(W1 x + b1))_h
    x    = (space(8 (row_i - row_j) / (h - 1)), space(8 (column_i - column_j) / (w - 1)))
    space(u) = sign(u) log2(|u| + 1) / log2(8)

Liu et al. 2022 (arXiv 2111.09883), sections 3.3 and 3.4, with the factors of the authors' code. Conventions: (h, w) is
the window of training, whichever window is at hand; a difference is query less key; the product is not divided by
sqrt(d). Grouped queries: a query of any head meets the key of its group.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .attention import Heads, Matrix, Score, Vector, dot, heads, matrix, vector
from .case import HEADS, Case, rows


def score(
    query: Tensor | Heads,
    key: Tensor | Heads,
    tau: Tensor | Vector,
    w1: Tensor | Matrix,
    b1: Tensor | Vector,
    w2: Tensor | Matrix,
    trained: tuple[int, int],
    query_positions: Sequence[Sequence[Sequence[int]]],
    key_positions: Sequence[Sequence[Sequence[int]]],
) -> Score:
    """The logit, whatever s is."""
    q, k, taus, inner, biases, outer = heads(query), heads(key), vector(tau), matrix(w1), vector(b1), matrix(w2)
    group = len(q[0]) // len(k[0])

    def space(difference: int, side: int) -> float:
        u = 8.0 * difference / (side - 1)
        return math.copysign(math.log2(abs(u) + 1) / math.log2(8), u)

    def logit(s: float, b: int, h: int, i: int, j: int) -> float:
        one, other = q[b][h][i], k[b][h // group][j]
        cosine = dot(one, other) / math.sqrt(dot(one, one) * dot(other, other))
        here, there = query_positions[b][i], key_positions[b][j]
        x = [space(here[axis] - there[axis], trained[axis]) for axis in range(2)]
        total = 0.0
        for unit in range(len(inner)):
            total += outer[h][unit] * max(dot(inner[unit], x) + biases[unit], 0.0)
        return cosine * math.exp(min(taus[h], math.log(100))) + 16 / (1 + math.exp(-total))

    return logit


def _pairs(trained: tuple[int, int]) -> Any:
    def pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
        weights = (s.tau, s.inner.weight, s.inner.bias, s.outer.weight)
        return {"score": score(q, k, *weights, trained, rows(x), rows(y))}

    return pairs


BOUNDS = {"tau": (math.log(100),)}
CASES = {
    "swin_v2": Case(lambda SwinV2: SwinV2((3, 5), HEADS, hidden=7), pairs=_pairs((3, 5)), axes=2, bounds=BOUNDS),
    "swin_v2 of another window": Case(
        lambda SwinV2: SwinV2((3, 5), HEADS, trained=(7, 4), hidden=7), pairs=_pairs((7, 4)), axes=2, bounds=BOUNDS
    ),
}
