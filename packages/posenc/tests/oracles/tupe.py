"""Untied positional encoding.

    s_ij = (q_i . k_j + (W_Q P_i + b_Q) . (W_K P_j + b_K)) / sqrt(2 d),    P_i = norm(R[p_i])

and, where [CLS] is untied, theta_1 in the place of the second term over sqrt(2 d) where p_i = 0, theta_2 where p_j = 0
and p_i is not.

Ke et al. 2021 (arXiv 2006.15595), equations 7 to 10, and the authors' code. Conventions: norm is a layer norm with 1e-5
in the variance; theta_1 is of [CLS]'s row, its own column included. Grouped queries: the second key is the mean of
those of the heads of the group, which the paper does not have. Positions are integers within the table.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .attention import Matrix, Score, Vector, dot, matrix, vector
from .case import HEAD_DIM, HEADS, KV_HEADS, Case, rows


def normalized(row: Vector, weight: Vector, bias: Vector) -> Vector:
    """The row less its mean, over its standard deviation."""
    mean = sum(row) / len(row)
    variance = sum((x - mean) ** 2 for x in row) / len(row)
    return [(x - mean) / (variance + 1e-5) ** 0.5 * w + b for x, w, b in zip(row, weight, bias, strict=True)]


def score(
    table: Matrix,
    of_query: tuple[Tensor | Matrix, Tensor | Vector],
    of_key: tuple[Tensor | Matrix, Tensor | Vector],
    query_positions: Sequence[Sequence[int]],
    key_positions: Sequence[Sequence[int]],
    theta: Tensor | Matrix | None = None,
    *,
    head_dim: int,
    group: int,
) -> Score:
    """The logit, s being the first term over sqrt(2 d) already. ``table`` is normalised; ``theta``: (2, heads)."""
    thetas = None if theta is None else matrix(theta)
    (w_q, b_q), (w_k, b_k) = ((matrix(w), vector(b)) for w, b in (of_query, of_key))

    def projected(weight: Matrix, bias: Vector, h: int, position: int) -> Vector:
        channels = range(h * head_dim, (h + 1) * head_dim)
        return [dot(weight[channel], table[position]) + bias[channel] for channel in channels]

    def logit(s: float, b: int, h: int, i: int, j: int) -> float:
        here, there = query_positions[b][i], key_positions[b][j]
        if thetas is not None and here == 0:
            return s + thetas[0][h]
        if thetas is not None and there == 0:
            return s + thetas[1][h]
        first = h - h % group
        keys = [projected(w_k, b_k, head, there) for head in range(first, first + group)]
        mean = [sum(channel) / group for channel in zip(*keys, strict=True)]
        return s + dot(projected(w_q, b_q, h, here), mean) / (2 * head_dim) ** 0.5

    return logit


def _pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    weight, bias = vector(s.norm.weight), vector(s.norm.bias)
    table = [normalized(row, weight, bias) for row in matrix(s.embedding.weight)]
    layers = ((s.query.weight, s.query.bias), (s.key.weight, s.key.bias))
    theta = s.theta if s.untie_cls else None
    found = score(table, *layers, rows(x), rows(y), theta, head_dim=HEAD_DIM, group=HEADS // KV_HEADS)
    return {"score": found, "scale": (2 * HEAD_DIM) ** -0.5}


CASES = {
    "tupe": Case(lambda TUPE: TUPE(HEADS, HEAD_DIM, 21, 5), pairs=_pairs, integers_only=True, from_zero=True),
    "tupe, class token untied": Case(
        lambda TUPE: TUPE(HEADS, HEAD_DIM, 21, 5, untie_cls=True), pairs=_pairs, integers_only=True, from_zero=True
    ),
}
