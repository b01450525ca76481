"""p-RoPE.

    θ_k = base^(-2k/d) for k < int(p d // 2), else 0,   k = 0 .. d/2 - 1
    (x_a, x_b) <- (x_a cos tθ_k - x_b sin tθ_k,  x_a sin tθ_k + x_b cos tθ_k)

Barbero et al. 2024 (arXiv 2410.06205), section 6; rounding and the half layout, pair k being (k, k + d/2), as in
transformers' `_compute_proportional_rope_parameters`. The interleaved layout pairs (2k, 2k + 1). Any real position will
do.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from .attention import Vector
from .case import HEAD_DIM, Case
from .turning import pair, turns


def by(share: float, base: float, layout: str) -> Callable[[Tensor, Any], Tensor]:
    def angles(row: Vector, position: float) -> Iterator[tuple[int, int, float]]:
        d = len(row)
        for k in range(int(share * d // 2)):
            yield *pair(k, d, layout), position * base ** (-2 * k / d)

    return turns(angles)


def scaling(share: float) -> dict[str, Any]:
    return {"rope_type": "proportional", "partial_rotary_factor": share}


CASES = {
    "p_rope": Case(lambda RoPE: RoPE(HEAD_DIM, 77.0, scaling=scaling(0.7)), rotate=by(0.7, 77.0, "half")),
    "p_rope interleaved": Case(
        lambda RoPE: RoPE(HEAD_DIM, 313.0, "interleaved", scaling=scaling(0.5)), rotate=by(0.5, 313.0, "interleaved")
    ),
}
