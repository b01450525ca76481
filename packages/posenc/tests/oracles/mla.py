"""The rotation of multi-head latent attention.

    θ_k = base^(-2k/n),   k = 0 .. n/2 - 1,   n = rope_dim, the last channels of q and k
    (x_a, x_b) <- (x_a cos pθ_k - x_b sin pθ_k,  x_a sin pθ_k + x_b cos pθ_k)

DeepSeek-V2 (arXiv 2405.04434), equations 14 to 18: q = [q^C; RoPE(q^R)], k = [k^C; RoPE(k^R)]. Pair k of the slice is
(2k, 2k + 1), as in the checkpoints, or (k, k + n/2). Any real position will do.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from .attention import Vector
from .case import HEAD_DIM, Case
from .turning import pair, turns


def by(n: int, base: float, layout: str) -> Callable[[Tensor, Any], Tensor]:
    def angles(row: Vector, position: float) -> Iterator[tuple[int, int, float]]:
        for k in range(n // 2):
            yield *pair(k, n, layout, len(row) - n), position * base ** (-2 * k / n)

    return turns(angles)


CASES = {
    "mla": Case(lambda MLA: MLA(HEAD_DIM, 4, 313.0), rotate=by(4, 313.0, "interleaved")),
    "mla half": Case(lambda MLA: MLA(HEAD_DIM, 4, 77.0, "half"), rotate=by(4, 77.0, "half")),
}
