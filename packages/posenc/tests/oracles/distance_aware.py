"""DA-Transformer: real distances re-scale the attention weights.

    A    = softmax( ReLU(Q K^T) * Rhat / sqrt(d) )
    Rhat = f(w_h |p_i - p_j|; v_h),        f(R; v) = (1 + e^v) / (1 + e^(v - R))

Wu, Wu, Huang 2021 (arXiv 2010.06925), section 3 (the formula is known at second hand; the abstract confirms ReLU,
then the product). Conventions: the distance has no sign, so direction is not seen; the factor multiplies, it is not
added; the ReLU falls on the logit already divided by sqrt(d), which is the same for any positive scale. f(0) = 1, f
grows towards 1 + e^v when w > 0 (far is favoured) and falls to 0 when w < 0: suppression sends a score to 0, not to
-inf. One w and one v a head. Any real position will do.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from .attention import Score, Vector, vector
from .case import HEADS, Case, rows


def rescale(distance: float, weight: float, steepness: float) -> float:
    """f(w |r|; v), written so that no exponential overflows."""
    exponent = steepness - weight * abs(distance)
    if exponent > 0:  # the same fraction, both sides times e^-exponent
        return (1.0 + math.exp(steepness)) * math.exp(-exponent) / (math.exp(-exponent) + 1.0)
    return (1.0 + math.exp(steepness)) / (1.0 + math.exp(exponent))


def score(
    weight: Tensor | Vector,
    steepness: Tensor | Vector,
    query_positions: Sequence[Sequence[float]],
    key_positions: Sequence[Sequence[float]],
) -> Score:
    """max(s, 0) * Rhat; weight is the paper's w and steepness its v, both (H,)."""
    w, v = vector(weight), vector(steepness)

    def rescaled(s: float, b: int, h: int, i: int, j: int) -> float:
        return max(s, 0.0) * rescale(query_positions[b][i] - key_positions[b][j], w[h], v[h])

    return rescaled


CASES = {
    "distance_aware": Case(
        lambda DistanceAware: DistanceAware(HEADS),
        pairs=lambda s, q, k, x, y: {"score": score(s.w, s.v, rows(x), rows(y))},
        refused_by=("sdpa",),
    )
}
