"""Disentangled attention.

    s_ij = (q_i . k_j + q_i . (W_K R[c] + b_K) + k_j . (W_Q R[c] + b_Q)) / sqrt(3 d),  c = clamp(b(n) + k, 0, 2k - 1)

with n = p_i - p_j, R of 2k rows, and b(n) = n, or of an even number of buckets B = k, with D distances, h = B / 2,

    b(n) = n                 where |n| <= h
    b(n) = sign(n) (h + m)   else, m the least number with (|n|/h)^(h-1) <= ((D-1)/h)^m

or of n clamped to -(D-1) .. D-1 before, as in the authors' da_utils.py (clamp="distance").

He et al. 2021 (arXiv 2006.03654), equation 4; index, scale and buckets as in the authors' code. Conventions: both terms
are at p_i - p_j, which the paper has the other way round in the second; m, a logarithm rounded up, is found in whole
numbers. Grouped queries: the key of the group meets W_Q R of the query's head.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .attention import Heads, Matrix, Score, Vector, dot, heads, matrix, vector
from .case import HEAD_DIM, HEADS, Case, rows


def bucket(n: int, buckets: int, distances: int) -> int:
    """b(n)."""
    half, far = buckets // 2, distances - 1
    if abs(n) <= half:
        return n
    m = 0
    while abs(n) ** (half - 1) * half**m > far**m * half ** (half - 1):
        m += 1
    return (half + m) if n > 0 else -(half + m)


def normalized(row: Vector, weight: Vector, bias: Vector) -> Vector:
    """The row less its mean, over its standard deviation, with 1e-7 in the variance."""
    mean = sum(row) / len(row)
    variance = sum((x - mean) ** 2 for x in row) / len(row)
    return [(x - mean) / (variance + 1e-7) ** 0.5 * w + b for x, w, b in zip(row, weight, bias, strict=True)]


def score(
    query: Tensor | Heads,
    key: Tensor | Heads,
    table: Matrix,
    of_query: tuple[Tensor | Matrix, Tensor | Vector],
    of_key: tuple[Tensor | Matrix, Tensor | Vector],
    query_positions: Sequence[Sequence[int]],
    key_positions: Sequence[Sequence[int]],
    buckets: int | None,
    distances: int,
    clamps: bool = False,
) -> Score:
    """The logit, s being the first term over sqrt(3 d) already."""
    q, k = heads(query), heads(key)
    width, group, span = len(q[0][0][0]), len(q[0]) // len(k[0]), len(table) // 2
    (w_q, b_q), (w_k, b_k) = ((matrix(w), vector(b)) for w, b in (of_query, of_key))

    def projected(weight: Matrix, bias: Vector, h: int, c: int) -> Vector:
        channels = range(h * width, (h + 1) * width)
        return [dot(weight[channel], table[c]) + bias[channel] for channel in channels]

    def logit(s: float, b: int, h: int, i: int, j: int) -> float:
        n = query_positions[b][i] - key_positions[b][j]
        n = min(max(n, 1 - distances), distances - 1) if clamps else n
        index = (n if buckets is None else bucket(n, buckets, distances)) + span
        c = min(max(index, 0), 2 * span - 1)
        to_position = dot(q[b][h][i], projected(w_k, b_k, h, c))
        to_content = dot(k[b][h // group][j], projected(w_q, b_q, h, c))
        return s + (to_position + to_content) / (3 * width) ** 0.5

    return logit


def _pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    table = matrix(s.relative.rows.weight)
    if s.normalized:
        weight, bias = vector(s.relative.norm.weight), vector(s.relative.norm.bias)
        table = [normalized(row, weight, bias) for row in table]
    layers = ((s.query.weight, s.query.bias), (s.key.weight, s.key.bias))
    found = score(q, k, table, *layers, rows(x), rows(y), s.num_buckets, s.max_distance, s.clamp == "distance")
    return {"score": found, "scale": (3 * HEAD_DIM) ** -0.5}


CASES = {
    "deberta": Case(lambda DeBERTa: DeBERTa(HEADS, HEAD_DIM, 5, 4), pairs=_pairs, integers_only=True),
    "deberta in buckets": Case(
        lambda DeBERTa: DeBERTa(HEADS, HEAD_DIM, 5, 11, num_buckets=6, normalized=True),
        pairs=_pairs,
        integers_only=True,
    ),
    "deberta with distances clamped": Case(
        lambda DeBERTa: DeBERTa(HEADS, HEAD_DIM, 5, 5, num_buckets=6, clamp="distance"),
        pairs=_pairs,
        integers_only=True,
    ),
}
