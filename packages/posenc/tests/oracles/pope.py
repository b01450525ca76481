"""PoPE.

    s_ij = sum_c softplus(q_ic) softplus(k_jc) cos((p_j - p_i) θ_c + δ_c) / sqrt(d)
    θ_c  = base^(-c/d),   c = 0 .. d - 1,   δ_c learned and clamped to [-2 pi, 0]

Gopalakrishnan et al. 2025 (arXiv 2509.10534), as x-transformers' PolarEmbedding has it. δ is (heads, d), of the query's
head, or (1, d) for all. Any real position will do.
"""

import math
from typing import Any

from torch import Tensor

from .attention import Heads, Score, heads, matrix
from .case import HEAD_DIM, HEADS, Case, rows


def score(query: Tensor | Heads, key: Tensor | Heads, delta: Any, x: Any, y: Any, base: float) -> Score:
    """The logit of raw queries and keys at positions x and y, (B, M) and (B, N)."""
    q, k, phases = heads(query), heads(key), matrix(delta)
    group, d = len(q[0]) // len(k[0]), len(q[0][0][0])

    def polar(_: float, b: int, h: int, i: int, j: int) -> float:
        total = 0.0
        for c in range(d):
            long = math.log1p(math.exp(q[b][h][i][c])) * math.log1p(math.exp(k[b][h // group][j][c]))
            held = min(max(phases[h % len(phases)][c], -2 * math.pi), 0.0)
            total += long * math.cos((y[b][j] - x[b][i]) * base ** (-c / d) + held)
        return total / math.sqrt(d)

    return polar


def by(base: float) -> Any:
    return lambda scheme, q, k, x, y: {"score": score(q, k, scheme.delta, rows(x), rows(y), base)}


BOUNDS = {"delta": (-2 * math.pi, 0.0)}
CASES = {
    "pope": Case(lambda PoPE: PoPE(HEAD_DIM, HEADS, 313.0), pairs=by(313.0), bounds=BOUNDS),
    "pope shared": Case(lambda PoPE: PoPE(HEAD_DIM, base=77.0), pairs=by(77.0), bounds=BOUNDS),
}
