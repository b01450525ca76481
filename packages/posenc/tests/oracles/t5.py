"""Buckets of relative distances.

    s_ij + b[bucket(p_i - p_j), h]        b: (buckets, H), learned

    bucket(n), of B buckets with e = B // 2 and D the largest distance told apart:
      n < 0           0
      n < e           n
      otherwise       min(B - 1, e + m),  m = floor((B - e) ln(n / e) / ln(D / e))
    bidirectional: bucket(|n|) of B / 2 buckets, and B / 2 more where n < 0

    documents: p is one coordinate of several, n is rounded toward 0, and b is multiplied by a factor

Raffel et al. 2020 (arXiv 1910.10683), section 2.1 (32 buckets, logarithmic up to 128), and the authors' code, which is
`_relative_position_bucket` of Mesh TensorFlow's transformer layers. Conventions: n is query minus key, so the key lies
n back; the bias is added and is not divided by sqrt(d) (nor are the products of T5: scale = 1). The floor is taken
without a logarithm: m is the number of times that (n/e)^(B-e) holds a factor D/e, compared in integers. Integer
positions.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .attention import Matrix, Score, matrix
from .case import HEADS, Case, rows


def bucket(distance: int, num_buckets: int, max_distance: int, *, bidirectional: bool) -> int:
    """The bucket of a key that lies so far back."""
    if bidirectional:
        half = num_buckets // 2
        return bucket(abs(distance), half, max_distance, bidirectional=False) + (half if distance < 0 else 0)
    exact = num_buckets // 2
    if distance < exact:
        return max(distance, 0)
    power = num_buckets - exact
    m = 0
    while m < power and distance**power * exact ** (m + 1) >= max_distance ** (m + 1) * exact**power:
        m += 1
    return min(num_buckets - 1, exact + m)


def score(
    table: Tensor | Matrix,
    query_positions: Sequence[Sequence[float]],
    key_positions: Sequence[Sequence[float]],
    max_distance: int,
    *,
    bidirectional: bool,
    factor: float = 1.0,
) -> Score:
    """s_ij + factor b[bucket, h]; table: (buckets, H)."""
    rows = matrix(table)

    def biased(s: float, b: int, h: int, i: int, j: int) -> float:
        distance = int(query_positions[b][i] - key_positions[b][j])
        return s + factor * rows[bucket(distance, len(rows), max_distance, bidirectional=bidirectional)][h]

    return biased


def _pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    x, y = (rows(p) if s.axes == 1 else [[token[s.axis] for token in row] for row in rows(p)] for p in (x, y))
    return {"score": score(s.weight, x, y, s.max_distance, bidirectional=s.bidirectional, factor=s.factor)}


CASES = {
    "t5": Case(lambda T5: T5(HEADS), pairs=_pairs, integers_only=True),
    "t5 odd": Case(lambda T5: T5(HEADS, 7, 13), pairs=_pairs, integers_only=True),
    "t5 bidirectional": Case(  # a bucket begins at 4 exactly
        lambda T5: T5(HEADS, 8, 8, bidirectional=True), pairs=_pairs, integers_only=True
    ),
    "t5 of a document": Case(
        lambda T5: T5(HEADS, 8, 8, True, axis=1, axes=3, factor=0.3), pairs=_pairs, integers_only=True, axes=3
    ),
    "t5 of real boxes": Case(
        lambda T5: T5(HEADS, 8, 8, True, axis=1, axes=2, factor=-1.7), pairs=_pairs, axes=2, real_only=True
    ),
    "t5 bidirectional odd": Case(lambda T5: T5(HEADS, 10, 20, bidirectional=True), pairs=_pairs, integers_only=True),
}
