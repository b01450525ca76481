"""Transformer-XL's relative attention, in four terms.

    s_ij = [ q_i.k_j  +  q_i.W_R R_r  +  u.k_j  +  v.W_R R_r ] / sqrt(d),        r = p_i - p_j
             content     content-dependent  global      global
                         position bias      content     position
    R_r  = [ sin(r w_0) .. sin(r w_{D/2-1}) | cos(r w_0) .. cos(r w_{D/2-1}) ],   w_k = base^(-2k/D),  D = d_model

and, with segments, [ (q_i + w) . e[0 or 1] ] / sqrt(d), 1 where the segments of i and j differ: XLNet's r_s_bias and
seg_embed (Yang et al. 2019, arXiv 1906.08237, section 2.5).

Dai et al. 2019 (arXiv 1901.02860), section 3.3; channels as in the authors' mem_transformer.py. Conventions: r is query
minus key and signed, so a bidirectional model tells left from right; all four terms are divided by sqrt(d). W_R is
(H, d, d_model), one projection a head and no bias; u and v are (H, d). Grouped queries: u meets the key of its group.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

from torch import Tensor

from .attention import Heads, Matrix, Score, Vector, dot, heads, matrices, matrix
from .case import HEAD_DIM, HEADS, Case, rows

Terms: TypeAlias = Callable[[int, int, int, int], tuple[float, float, float, float]]  # (b, h, i, j) -> the four


def sinusoid(distance: float, dim: int, base: float = 10000.0) -> Vector:
    """R_r = [sin | cos]."""
    angles = [distance * base ** (-2.0 * k / dim) for k in range(dim // 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


def terms(
    query: Tensor | Heads,
    key: Tensor | Heads,
    w_r: Tensor | list[Matrix],
    u: Tensor | Matrix,
    v: Tensor | Matrix,
    query_positions: Sequence[Sequence[float]],
    key_positions: Sequence[Sequence[float]],
    *,
    base: float = 10000.0,
    scale: float | None = None,
) -> Terms:
    """The four terms in the order above, each already multiplied by scale (1/sqrt(d) unless given)."""
    q, k, projection, u_rows, v_rows = heads(query), heads(key), matrices(w_r), matrix(u), matrix(v)
    group = len(q[0]) // len(k[0])
    factor = 1.0 / math.sqrt(len(q[0][0][0])) if scale is None else scale

    @cache
    def relative_key(h: int, r: float) -> Vector:
        sines = sinusoid(r, len(projection[h][0]), base)
        return [dot(weights, sines) for weights in projection[h]]

    def four(b: int, h: int, i: int, j: int) -> tuple[float, float, float, float]:
        content, position = k[b][h // group][j], relative_key(h, query_positions[b][i] - key_positions[b][j])
        return (
            factor * dot(q[b][h][i], content),
            factor * dot(q[b][h][i], position),
            factor * dot(u_rows[h], content),
            factor * dot(v_rows[h], position),
        )

    return four


def score(terms: Terms) -> Score:
    """The logit with the last three terms added; s already is the first."""

    def with_positions(s: float, b: int, h: int, i: int, j: int) -> float:
        _, content_position, global_content, global_position = terms(b, h, i, j)
        return s + content_position + global_content + global_position

    return with_positions


def of_segments(s: Any, query: Tensor, x: Any, y: Any, score: Score) -> Score:
    """The logit with the term of segments added."""
    q, w, e = heads(query), matrix(s.biases.segment), matrices(s.segment)
    here, there = (p.expand(2).segment.tolist() for p in (x, y))

    def with_segments(s: float, b: int, h: int, i: int, j: int) -> float:
        met = [a + c for a, c in zip(q[b][h][i], w[h], strict=True)]
        term = dot(met, e[0 if here[b][i] == there[b][j] else 1][h])
        return score(s, b, h, i, j) + term / math.sqrt(len(met))

    return with_segments


def _pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    weights = (s.projection, s.content_bias, s.position_bias)
    found = score(terms(q, k, *weights, rows(x), rows(y), base=s.base))
    return {"score": found if s.segment is None else of_segments(s, q, x, y, found)}


CASES = {
    "transformer_xl": Case(lambda TransformerXL: TransformerXL(HEADS, HEAD_DIM, dim=10, base=313.0), pairs=_pairs),
    "transformer_xl with segments": Case(
        lambda TransformerXL: TransformerXL(HEADS, HEAD_DIM, dim=4, base=313.0, segments=True), pairs=_pairs
    ),
}
