"""Forgetting attention: a score falls by what the gates between key and query forget.

    s_ij <- s_ij + sum_{t = j+1 .. i} ln sigmoid(g_t)        g_t = w_h . x_t + b_h, of the layer

Lin et al. 2025 (arXiv 2503.02130), equations 4 to 6. Conventions: the key's own gate does not count, the query's does;
t counts the tokens' order within the document, not by their index and not by coordinates. A key after the query, which
no causal mask lets it see, gets the same sum with the other sign.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .attention import Heads, Score, heads, matrices
from .case import HEADS, KV_HEADS, Case
from .cope import sigmoid


def score(
    gates: Tensor | list[list[list[float]]],
    query_order: Sequence[Sequence[int]],
    key_order: Sequence[Sequence[int]],
    query_document: Sequence[Sequence[int]],
    key_document: Sequence[Sequence[int]],
) -> Score:
    """The logit less what is forgotten; gates (B, H, N) of all keys."""
    g = matrices(gates)

    def forgotten(b: int, h: int, after: int, up_to: int, document: int) -> float:
        total = 0.0
        for t in range(len(key_order[b])):
            if key_document[b][t] == document and after < key_order[b][t] <= up_to:
                total += math.log(sigmoid(g[b][h][t]))
        return total

    def with_clock(s: float, b: int, h: int, i: int, j: int) -> float:
        here, there = query_order[b][i], key_order[b][j]
        if query_document[b][i] != key_document[b][j]:
            return s  # nobody sees it
        if there <= here:
            return s + forgotten(b, h, there, here, key_document[b][j])
        return s - forgotten(b, h, here, there, key_document[b][j])

    return with_clock


def gates_in(key: Tensor | Heads) -> Any:
    """A gate for each query head, cut from the channels of the keys: (B, H, N)."""
    group = HEADS // KV_HEADS
    if isinstance(key, Tensor):
        return key[..., :group].transpose(2, 3).flatten(1, 2)
    return [[[token[c] for token in head] for head in sample for c in range(group)] for sample in key]


def _pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    orders = (p.expand(2).order.tolist() for p in (x, y))
    documents = (p.expand(2).document.tolist() for p in (x, y))
    return {"score": score(gates_in(heads(k)), *orders, *documents)}


CASES = {"fox": Case(lambda FoX: FoX(HEADS), pairs=_pairs, projected=lambda q, k: {"forgotten": gates_in(k)})}
