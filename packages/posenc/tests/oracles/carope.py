"""CARoPE: angles are sums of powers of the tokens' own frequencies.

    s_ij = sum_k q_ik . R(A_ijk) k_jk / sqrt(d)        A_ijk = -sum_{t = j+1 .. i} f_t^k,   k = 0 .. d/2 - 1
    f_t  = 1 / (softplus(w_h . x_t) + 1)

Veisi et al. 2025 (arXiv 2507.23083), section 2. w_h . x_t is of the layer, a number for each head of keys. Conventions
are those of Selective RoPE's oracle; the first pair is turned by f^0 = 1 at every token.
"""

import math
from typing import Any

from torch import Tensor

from .attention import heads
from .case import HEAD_DIM, KV_HEADS, Case
from .selective_rope import orders_and_documents, score


def frequency(projected: float) -> float:
    """f of a token."""
    return 1 / (math.log1p(math.exp(projected)) + 1)


def by(layout: str) -> Any:
    def pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
        key = heads(k)

        def said(b: int, g: int, t: int, pair: int) -> float:
            return frequency(key[b][g][t][0]) ** pair

        return {"score": score(q, k, said, *orders_and_documents(x, y), layout)}

    return pairs


CASES = {
    "carope" if layout == "half" else "carope interleaved": Case(
        lambda CARoPE, layout=layout: CARoPE(KV_HEADS, HEAD_DIM, layout),
        pairs=by(layout),
        projected=lambda q, k: {"frequency": k[..., 0]},
    )
    for layout in ("half", "interleaved")
}
