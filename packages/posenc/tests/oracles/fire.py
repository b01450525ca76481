"""Functional interpolation of distances.

    s_ij <- s_ij + f(psi(max(p_i - p_j, 0)) / (psi(max(|m L|, p_i)) + 1e-6))_h,    psi(x) = ln(|c| x + 1)
    f(x)  = W2 relu(w1 x + b1) + b2

Li et al. 2024 (arXiv 2310.04418), equations 4, 7 and 8, with the details of the class FIRE in the code of DAPE (Zheng
et al. 2024). Conventions: p_i is the query's own position, counted from 0; a key after the query is at no distance;
the bias is not divided by sqrt(d). Any real position will do.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .attention import Matrix, Score, Vector, matrix, vector
from .case import HEADS, Case, rows


def score(
    c: float,
    threshold: float,
    inner: tuple[Tensor | Matrix, Tensor | Vector],
    outer: tuple[Tensor | Matrix, Tensor | Vector],
    query_positions: Sequence[Sequence[float]],
    key_positions: Sequence[Sequence[float]],
) -> Score:
    """The biased logit; ``inner`` and ``outer`` are weights and biases of the two layers."""
    (w1, b1), (w2, b2) = ((matrix(w), vector(b)) for w, b in (inner, outer))

    def psi(x: float) -> float:
        return math.log(abs(c) * x + 1)

    def biased(s: float, b: int, h: int, i: int, j: int) -> float:
        here, there = query_positions[b][i], key_positions[b][j]
        share = psi(max(here - there, 0.0)) / (psi(max(threshold, here)) + 1e-6)
        total = b2[h]
        for unit in range(len(b1)):
            total += w2[h][unit] * max(w1[unit][0] * share + b1[unit], 0.0)
        return s + total

    return biased


def _pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    threshold = abs(s.multiple.item() * s.length)
    layers = ((s.inner.weight, s.inner.bias), (s.outer.weight, s.outer.bias))
    return {"score": score(s.c.item(), threshold, *layers, rows(x), rows(y))}


CASES = {  # so that queries lie on both sides of the threshold
    "fire": Case(lambda FIRE: FIRE(HEADS, 5, length=17.0), pairs=_pairs),
    "fire of short texts": Case(lambda FIRE: FIRE(HEADS, 5, length=4.3), pairs=_pairs),
}
