"""Partial RoPE.

    n = int(share d),  θ_k = base^(-2k/n),  k = 0 .. n/2 - 1
    (x_a, x_b) <- (x_a cos pθ_k - x_b sin pθ_k,  x_a sin pθ_k + x_b cos pθ_k)

transformers' modeling_phi.py (half) and modeling_glm.py (interleaved), `partial_rotary_factor`. Pair k is (k, k + n/2)
or (2k, 2k + 1); channels from n on stay. Any real position will do.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from .attention import Vector
from .case import HEAD_DIM, Case
from .turning import pair, turns


def by(share: float, base: float, layout: str) -> Callable[[Tensor, Any], Tensor]:
    def angles(row: Vector, position: float) -> Iterator[tuple[int, int, float]]:
        n = int(share * len(row))
        for k in range(n // 2):
            yield *pair(k, n, layout), position * base ** (-2 * k / n)

    return turns(angles)


CASES = {
    "partial rope": Case(lambda RoPE: RoPE(HEAD_DIM, 77.0, rotary_dim=4), rotate=by(0.7, 77.0, "half")),
    "partial rope interleaved": Case(
        lambda RoPE: RoPE(HEAD_DIM, 313.0, "interleaved", 4), rotate=by(2 / 3, 313.0, "interleaved")
    ),
}
