"""Rectified rotary position embedding.

    s_ij = q_i . R(-f(d)) k_j / sqrt(D),   d = p_i - p_j,   f(d) = d if d < w else w + (d - w) leak

Su Jianlin 2023 (kexue.fm/archives/9708), and the author's `rerope_patch.py` and `leaky_rerope_patch.py`. There, far
scores turn the query to w and the key to 0, or the two to (p_i + w (k - 1))/k and p_j/k: leak = 0 and 1/k. Conventions:
R(a) turns channel pair m by a base^(-2m/D); keys ahead of the query are near, however far ahead. Any real position will
do.
"""

import math
from collections.abc import Callable
from typing import Any

from .attention import Score, dot, heads
from .case import HEAD_DIM, Case, rows
from .turning import turn


def distance(d: float, window: int, leak: float) -> float:
    """f(d)."""
    return d if d < window else window + (d - window) * leak


def score(q: Any, k: Any, x: Any, y: Any, *, base: float, layout: str, window: int, leak: float) -> Score:
    """The logit, whatever it was without positions."""
    queries, keys, places, others = heads(q), heads(k), rows(x), rows(y)
    group = len(queries[0]) // len(keys[0])

    def of_pair(s: float, b: int, h: int, i: int, j: int) -> float:
        f = distance(places[b][i] - others[b][j], window, leak)
        turned = turn(keys[b][h // group][j], -f, base, layout)
        return dot(queries[b][h][i], turned) / math.sqrt(len(turned))

    return of_pair


def _scored(**how: Any) -> Callable[..., dict[str, Any]]:
    return lambda scheme, q, k, x, y: {"score": score(q, k, x, y, **how)}


CASES = {
    "re_rope": Case(
        lambda ReRoPE: ReRoPE(HEAD_DIM, 3, 313.0),
        pairs=_scored(base=313.0, layout="half", window=3, leak=0.0),
        refused_by=("sdpa",),
    ),
    "re_rope leaky": Case(
        lambda ReRoPE: ReRoPE(HEAD_DIM, 2, 77.0, "interleaved", leak=0.375),
        pairs=_scored(base=77.0, layout="interleaved", window=2, leak=0.375),
        refused_by=("sdpa",),
    ),
}
