"""Kernelised relative positions.

    log:    s_ij <- s_ij - p_h ln(1 + a_h |p_i - p_j|)
    power:  s_ij <- s_ij - a_h |p_i - p_j|^p_h

Chi et al. 2022 (arXiv 2205.09921), equations 6 and 7, and the authors' `ParallelKerpleLog` and `ParallelKerplePower`.
Conventions: the bias is added after the 1/sqrt(d) and is not divided by it; p and a below 0.01 count as 0.01, and p
above 2 as 2 in the power form alone. Any real position will do.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .attention import Score, Vector, vector
from .case import HEADS, Case, rows


def score(
    p: Tensor | Vector,
    a: Tensor | Vector,
    query_positions: Sequence[Sequence[float]],
    key_positions: Sequence[Sequence[float]],
    *,
    form: str,
) -> Score:
    """The biased logit; p and a: one a head, positions: (B, M) and (B, N)."""
    powers, factors = [max(x, 0.01) for x in vector(p)], [max(x, 0.01) for x in vector(a)]

    def biased(s: float, b: int, h: int, i: int, j: int) -> float:
        distance = abs(query_positions[b][i] - key_positions[b][j])
        if form == "log":
            return s - powers[h] * math.log(1 + factors[h] * distance)
        return s - factors[h] * distance ** min(powers[h], 2.0)

    return biased


def _pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    return {"score": score(s.p, s.a, rows(x), rows(y), form=s.form)}


CASES = {
    "kerple": Case(lambda KERPLE: KERPLE(HEADS), pairs=_pairs, bounds={"p": (0.01,), "a": (0.01,)}),
    "kerple power": Case(lambda KERPLE: KERPLE(HEADS, "power"), pairs=_pairs, bounds={"p": (0.01, 2.0), "a": (0.01,)}),
}
