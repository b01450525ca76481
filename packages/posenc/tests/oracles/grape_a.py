"""A penalty by distance, at a rate that is gated by the contents of key and query.

    s_ij <- s_ij - max(p_i - p_j, 0) m_h ln(1 + e^w_h) (g(u_h, k_j) + g(v_h, q_i))
    g(u, x) = ln(1 + e^(u.x / (|u| sqrt d)))

with one of the two gates, or both. Zhang et al. 2025 (arXiv 2512.07805), as in the code of model-architectures/GRAPE
(llama-mha-grape-a-*gated.py). Conventions: m_h are ALiBi's slopes; a key after the query is at no distance; key heads
are shared by groups of query heads.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .alibi import slopes
from .attention import Matrix, Score, Vector, dot, heads, matrix, vector
from .case import HEAD_DIM, HEADS, Case, rows


def softplus(x: float) -> float:
    """ln(1 + e^x), without overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def gate(direction: Vector, x: Vector) -> float:
    length = math.sqrt(dot(direction, direction))
    return softplus(dot(direction, x) / (length * math.sqrt(len(x))))


def score(
    query: Tensor,
    key: Tensor,
    w: Tensor | Vector,
    u: Tensor | Matrix | None,
    v: Tensor | Matrix | None,
    query_positions: Sequence[Sequence[float]],
    key_positions: Sequence[Sequence[float]],
) -> Score:
    """The logit less the distance times its rate."""
    q, k, w = heads(query), heads(key), vector(w)
    of_keys, of_queries = (None if x is None else matrix(x) for x in (u, v))
    group, m = len(q[0]) // len(k[0]), slopes(len(w))

    def lowered(s: float, b: int, h: int, i: int, j: int) -> float:
        away = max(query_positions[b][i] - key_positions[b][j], 0)
        g = 0.0 if of_keys is None else gate(of_keys[h], k[b][h // group][j])
        g += 0.0 if of_queries is None else gate(of_queries[h], q[b][h][i])
        return s - away * m[h] * softplus(w[h]) * g

    return lowered


def _case(gates: str) -> Case:
    def pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
        return {"score": score(q, k, s.w, s.u, s.v, rows(x), rows(y))}

    return Case(lambda GRAPEA: GRAPEA(HEADS, HEAD_DIM, gates), pairs=pairs, refused_by=("sdpa",))


CASES = {"grape_a": _case("key"), "grape_a query": _case("query"), "grape_a both": _case("both")}
