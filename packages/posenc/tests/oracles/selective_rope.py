"""Selective RoPE: the angle between key and query is a sum over the tokens between them.

    s_ij = sum_k q_ik . R(A_ijk) k_jk / sqrt(d)        A_ijk = -theta_k sum_{t = j+1 .. i} phi_tk
    R(A): (a, b) -> (a cos A - b sin A, a sin A + b cos A)        theta_k = base^(-2k/d)

Movahedi et al. 2026 (arXiv 2511.17388), with the sums as in the authors' modules/rotary.py. phi_t is of the layer, d/2
numbers for each head of keys. Conventions: the key's own phi does not count, the query's does; t counts the tokens'
order within the document. The angle to a key after the query has the other sign. Pair k is channels k and k + d/2, or
2k and 2k + 1.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from torch import Tensor

from .attention import Heads, Score, heads
from .case import HEAD_DIM, KV_HEADS, Case


def between(
    said: Callable[[int, int, int], float],
    query_order: Sequence[Sequence[int]],
    key_order: Sequence[Sequence[int]],
    query_document: Sequence[Sequence[int]],
    key_document: Sequence[Sequence[int]],
) -> Callable[[int, int, int, int], float]:
    """The angle from query i to key j in a key head: less the sum of what is said after the key, up to the query."""

    def angle(b: int, h: int, i: int, j: int) -> float:
        here, there = query_order[b][i], key_order[b][j]
        if query_document[b][i] != key_document[b][j]:
            return 0.0  # nobody sees it
        first, last = min(here, there), max(here, there)
        total = 0.0
        for t in range(len(key_order[b])):
            if key_document[b][t] == key_document[b][j] and first < key_order[b][t] <= last:
                total += said(b, h, t)
        return -total if there <= here else total

    return angle


def score(
    query: Tensor | Heads,
    key: Tensor | Heads,
    said: Callable[[int, int, int, int], float],
    orders: Sequence[Any],
    documents: Sequence[Any],
    layout: str,
) -> Score:
    """The logit of raw queries and keys; ``said`` (b, key head, t, pair) is the angle that a token turns a pair by."""
    q, k = heads(query), heads(key)
    group, d = len(q[0]) // len(k[0]), len(q[0][0][0])
    of_pairs = [between(partial(said, pair=pair), *orders, *documents) for pair in range(d // 2)]
    angle = cache(lambda b, g, i, j, pair: of_pairs[pair](b, g, i, j))  # of all query heads that share the key's

    def turned(_: float, b: int, h: int, i: int, j: int) -> float:
        total = 0.0
        for pair in range(d // 2):
            one, two = (pair, pair + d // 2) if layout == "half" else (2 * pair, 2 * pair + 1)
            a = angle(b, h // group, i, j, pair)
            x, y = k[b][h // group][j][one], k[b][h // group][j][two]
            total += q[b][h][i][one] * (x * math.cos(a) - y * math.sin(a))
            total += q[b][h][i][two] * (x * math.sin(a) + y * math.cos(a))
        return total / math.sqrt(d)

    return turned


def orders_and_documents(x: Any, y: Any) -> tuple[list[Any], list[Any]]:
    """Of queries and keys, for two samples."""
    both = [p.expand(2) for p in (x, y)]
    return [p.order.tolist() for p in both], [p.document.tolist() for p in both]


def by(base: float, layout: str) -> Any:
    """A pair of channels of the key says how far the pair is turned: its first numbers."""

    def pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
        key = heads(k)

        def said(b: int, g: int, t: int, pair: int) -> float:
            return key[b][g][t][pair] * base ** (-2 * pair / HEAD_DIM)

        return {"score": score(q, k, said, *orders_and_documents(x, y), layout)}

    return pairs


CASES = {
    "selective_rope": Case(
        lambda SelectiveRoPE: SelectiveRoPE(KV_HEADS, HEAD_DIM, 313.0),
        pairs=by(313.0, "half"),
        projected=lambda q, k: {"turned": k[..., : HEAD_DIM // 2]},
    ),
    "selective_rope interleaved": Case(
        lambda SelectiveRoPE: SelectiveRoPE(KV_HEADS, HEAD_DIM, 77.0, "interleaved"),
        pairs=by(77.0, "interleaved"),
        projected=lambda q, k: {"turned": k[..., : HEAD_DIM // 2]},
    ),
}
