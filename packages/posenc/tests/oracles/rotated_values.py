"""Rotated values.

    a_ij = softmax_j (R(p_i) q_i) . (R(p_j) k_j) / sqrt(d)
    o_i  = R(-p_i) sum_j a_ij R(p_j) v_j
    R(p) turns pair k of the last n channels by p base^(-2k/n),   k = 0 .. n/2 - 1,   n = rotary_dim

transformers' modeling_deepseek_v4.py. Pair k of the slice is (2k, 2k + 1), or (k, k + n/2) in the half layout. Any real
position will do.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from .attention import Vector
from .case import HEAD_DIM, Case
from .turning import pair, turns


def turned(n: int, base: float, layout: str, sense: int = 1) -> Callable[[Tensor, Any], Tensor]:
    def angles(row: Vector, position: float) -> Iterator[tuple[int, int, float]]:
        for k in range(n // 2):
            yield *pair(k, n, layout, len(row) - n), sense * position * base ** (-2 * k / n)

    return turns(angles)


def by(n: int, base: float, layout: str) -> dict[str, Callable[..., Tensor]]:
    return {"rotate": turned(n, base, layout), "turn_values": lambda v, p, sense: turned(n, base, layout, sense)(v, p)}


CASES = {
    "rotated values": Case(lambda Rotated: Rotated(HEAD_DIM, 4, 313.0), **by(4, 313.0, "interleaved")),
    "rotated values half": Case(lambda Rotated: Rotated(HEAD_DIM, 4, 77.0, "half"), **by(4, 77.0, "half")),
}
