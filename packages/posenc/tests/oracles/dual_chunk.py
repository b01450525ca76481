"""Dual chunk attention.

    c = chunk - local,   n = floor(p_i/c) - floor(p_j/c),   s_ij = (R(a) q_i) . (R(p_j mod c) k_j) / sqrt(D)

    a = p_i mod c                   if n <= 0
        min(p_i mod c + c, chunk)   if n = 1
        min(2c - 1, chunk)          if n >= 2

An et al. 2024 (arXiv 2402.17463), section 3, and the authors' `chunkllama_attn_replace.py`. Conventions: R(a) turns
channel pair m by a base^(-2m/D). The code is for causal attention of a text from 0 on; here a chunk is floor(p/c) at
any position, and a key ahead counts as one of the query's own chunk.
"""

import math
from collections.abc import Callable
from typing import Any

from .attention import Score, dot, heads
from .case import HEAD_DIM, Case, rows
from .turning import turn


def query_place(p_i: float, p_j: float, chunk: int, local: int) -> float:
    """a."""
    c = chunk - local
    apart = math.floor(p_i / c) - math.floor(p_j / c)
    inside = p_i - c * math.floor(p_i / c)
    if apart <= 0:
        return inside
    return min(inside + c, chunk) if apart == 1 else min(2 * c - 1, chunk)


def score(q: Any, k: Any, x: Any, y: Any, *, base: float, layout: str, chunk: int, local: int) -> Score:
    """The logit, whatever it was without positions."""
    queries, keys, places, others = heads(q), heads(k), rows(x), rows(y)
    group = len(queries[0]) // len(keys[0])
    c = chunk - local

    def of_pair(s: float, b: int, h: int, i: int, j: int) -> float:
        p_i, p_j = places[b][i], others[b][j]
        query = turn(queries[b][h][i], query_place(p_i, p_j, chunk, local), base, layout)
        key = turn(keys[b][h // group][j], p_j - c * math.floor(p_j / c), base, layout)
        return dot(query, key) / math.sqrt(len(key))

    return of_pair


def _scored(**how: Any) -> Callable[..., dict[str, Any]]:
    return lambda scheme, q, k, x, y: {"score": score(q, k, x, y, **how)}


CASES = {
    "dual_chunk": Case(
        lambda DualChunk: DualChunk(HEAD_DIM, 4, 1, 313.0),
        pairs=_scored(base=313.0, layout="half", chunk=4, local=1),
        refused_by=("sdpa",),
    ),
    "dual_chunk short": Case(
        lambda DualChunk: DualChunk(HEAD_DIM, 9, 7, 77.0, "interleaved"),
        pairs=_scored(base=77.0, layout="interleaved", chunk=9, local=7),
        refused_by=("sdpa",),
    ),
}
