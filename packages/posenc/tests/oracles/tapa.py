"""Token-aware phase attention: the product of some channels, times a cosine whose phase is the product of the others.

    s_ij <- s_ij - q_i.k_j / sqrt(d) + a_ij cos(2 pi |p_i - p_j|^alpha f_ij)
    a_ij = q_i[:n] . k_j[:n] / sqrt(n),   f_ij = q_i[n:] . k_j[n:] / sqrt(d - n)

Wang et al. 2025 (arXiv 2509.12635), equation 12, for s_ij = q_i.k_j / sqrt(d). Conventions: n is theta D of the paper;
key heads are shared by groups of query heads.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .attention import Score, dot, heads
from .case import HEAD_DIM, Case, rows


def score(
    query: Tensor,
    key: Tensor,
    n: int,
    alpha: float,
    query_positions: Sequence[Sequence[float]],
    key_positions: Sequence[Sequence[float]],
) -> Score:
    """The logit with its product replaced."""
    q, k = heads(query), heads(key)
    group = len(q[0]) // len(k[0])

    def replaced(s: float, b: int, h: int, i: int, j: int) -> float:
        one, other = q[b][h][i], k[b][h // group][j]
        d = len(one)
        away = abs(query_positions[b][i] - key_positions[b][j]) ** alpha
        phase = dot(one[n:], other[n:]) / math.sqrt(d - n)
        modulated = dot(one[:n], other[:n]) / math.sqrt(n) * math.cos(2 * math.pi * away * phase)
        return s - dot(one, other) / math.sqrt(d) + modulated

    return replaced


def _case(n: int, alpha: float, *given: Any) -> Case:
    def pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
        return {"score": score(q, k, n, alpha, rows(x), rows(y))}

    return Case(lambda TAPA: TAPA(HEAD_DIM, *given), pairs=pairs, refused_by=("sdpa",))


CASES = {"tapa": _case(HEAD_DIM // 2, 0.1), "tapa uneven": _case(2, 0.7, 2, 0.7)}
