"""RePo: RoPE at positions that the layer makes of each token.

    s_ij = sum_k q_ik . R((z_j - z_i) theta_k) k_jk / sqrt(d)        theta_k = base^(-2k/d)
    R(A): (a, b) -> (a cos A - b sin A, a sin A + b cos A)

Li et al. 2025 (arXiv 2512.14391), by the authors' code. z_t is of the layer, a real number for each head of keys.
Conventions: order, coordinates and documents have no part in it. Pair k is channels k and k + d/2, or 2k and 2k + 1.
"""

import math
from typing import Any

from torch import Tensor

from .attention import heads
from .case import HEAD_DIM, KV_HEADS, Case
from .turning import pair


def by(base: float, layout: str) -> Any:
    """The first channel of a key says where its token is."""

    def pairs(s: Any, query: Tensor, key: Tensor, x: Any, y: Any) -> dict[str, Any]:
        q, k = heads(query), heads(key)
        group, before = len(q[0]) // len(k[0]), len(k[0][0]) - len(q[0][0])

        def score(_: float, b: int, h: int, i: int, j: int) -> float:
            keys, total = k[b][h // group], 0.0
            away = keys[j][0] - keys[before + i][0]
            for n in range(HEAD_DIM // 2):
                one, two = pair(n, HEAD_DIM, layout)
                a = away * base ** (-2 * n / HEAD_DIM)
                u, v = keys[j][one], keys[j][two]
                total += q[b][h][i][one] * (u * math.cos(a) - v * math.sin(a))
                total += q[b][h][i][two] * (u * math.sin(a) + v * math.cos(a))
            return total / math.sqrt(HEAD_DIM)

        return {"score": score}

    return pairs


CASES = {
    name: Case(
        lambda RePo, base=base, layout=layout: RePo(KV_HEADS, HEAD_DIM, base, layout),
        pairs=by(base, layout),
        projected=lambda q, k: {"position": k[..., 0]},
    )
    for name, base, layout in (("re_po", 313.0, "half"), ("re_po interleaved", 77.0, "interleaved"))
}
