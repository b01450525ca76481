"""Self-Extend.

    s_ij = q_i . R(-f_ij) k_j / sqrt(D),   f_ij = p_i - p_j                                       if p_i - p_j < w
                                           floor(p_i/G) + w - floor(w/G) - floor(p_j/G)           otherwise

Jin et al. 2024 (arXiv 2401.01325), section 3, and the authors' code (datamllab/LongLM), which shifts by w - w/G in one
branch and by w - floor(w/G) in another. Conventions: R(a) turns channel pair m by
a base^(-2m/D); keys ahead of the query are near, however far ahead.
"""

import math
from collections.abc import Callable
from typing import Any

from .attention import Score, dot, heads
from .case import HEAD_DIM, Case, rows
from .turning import turn


def distance(p_i: float, p_j: float, group: int, window: int) -> float:
    """f_ij."""
    if p_i - p_j < window:
        return p_i - p_j
    return math.floor(p_i / group) + window - window // group - math.floor(p_j / group)


def score(q: Any, k: Any, x: Any, y: Any, *, base: float, layout: str, group: int, window: int) -> Score:
    """The logit, whatever it was without positions."""
    queries, keys, places, others = heads(q), heads(k), rows(x), rows(y)
    shared = len(queries[0]) // len(keys[0])

    def of_pair(s: float, b: int, h: int, i: int, j: int) -> float:
        f = distance(places[b][i], others[b][j], group, window)
        key = turn(keys[b][h // shared][j], -f, base, layout)
        return dot(queries[b][h][i], key) / math.sqrt(len(key))

    return of_pair


def _scored(**how: Any) -> Callable[..., dict[str, Any]]:
    return lambda scheme, q, k, x, y: {"score": score(q, k, x, y, **how)}


CASES = {
    "self_extend": Case(
        lambda SelfExtend: SelfExtend(HEAD_DIM, 2, 3, 313.0),
        pairs=_scored(base=313.0, layout="half", group=2, window=3),
        refused_by=("sdpa",),
    ),
    "self_extend interleaved": Case(
        lambda SelfExtend: SelfExtend(HEAD_DIM, 3, 4, 77.0, "interleaved"),
        pairs=_scored(base=77.0, layout="interleaved", group=3, window=4),
        refused_by=("sdpa",),
    ),
}
