"""Wall attention: every channel of the product is multiplied by what its gates between key and query let through.

    s_ij = sum_c q_ic k_jc prod_{t = j+1 .. i} sigmoid(g_tc) / sqrt(d)        g_tc = w_hc . x_t + b_hc, of the layer

Pai et al. 2026, as flash-linear-attention's ops/wall_attn/naive.py and layers/wall_attn.py have it. Conventions: the
key's own gate does not count, the query's does; t counts the tokens' order within the document. The authors have no
score for a key after the query; here it is the plain one.
"""

import math
from typing import Any

from torch import Tensor

from .attention import Heads, Score, heads
from .case import HEAD_DIM, HEADS, KV_HEADS, Case
from .cope import sigmoid
from .selective_rope import orders_and_documents


def score(query: Tensor | Heads, key: Tensor | Heads, gates: Tensor | Heads, orders: Any, documents: Any) -> Score:
    """The logit of queries and keys; gates (B, H, N, d) of all keys."""
    q, k, g = heads(query), heads(key), heads(gates)
    group, d = len(q[0]) // len(k[0]), len(q[0][0][0])
    (query_order, key_order), (query_document, key_document) = orders, documents

    def gated(_: float, b: int, h: int, i: int, j: int) -> float:
        total = 0.0
        for c in range(d):
            through = 1.0
            for t in range(len(key_order[b])):
                is_between = key_order[b][j] < key_order[b][t] <= query_order[b][i]
                if is_between and key_document[b][t] == key_document[b][j] == query_document[b][i]:
                    through *= sigmoid(g[b][h][t][c])
            total += q[b][h][i][c] * k[b][h // group][j][c] * through
        return total / math.sqrt(d)

    return gated


def gates_in(key: Tensor) -> Tensor:
    """Gates of each query head: its key's channels, turned round by the head's number in its group; (B, H, N, d)."""
    group = HEADS // KV_HEADS
    gates = key.repeat_interleave(group, 1)
    for n in range(1, group):
        gates[:, n::group] = key.roll(n, -1)
    return gates


CASES = {
    "wall": Case(
        lambda Wall: Wall(HEADS, HEAD_DIM),
        pairs=lambda s, q, k, x, y: {"score": score(q, k, gates_in(k), *orders_and_documents(x, y))},
        projected=lambda q, k: {"kept": gates_in(k)},
    )
}
