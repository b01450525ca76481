"""The custom schemes one number at a time. Imports nothing of posenc.

Every oracle takes the numbers of a call by name (queries, keys, values and features as (batch, heads, tokens[, width]),
parameters as the scheme holds them, all as nested lists), where queries and keys are, and whether attention is causal.
Queries are the last of the keys. It gives the output and the log-sum-exp of each row, where there is one.
"""

import math
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from tests.oracles import alibi as alibi_oracle
from tests.oracles import rope as rope_oracle
from tests.oracles.attention import Visible, attend, dot, visible_from
from tests.oracles.cope import sigmoid

Numbers: TypeAlias = dict[str, Any]
Result: TypeAlias = tuple[Tensor, Tensor | None]


class Where(NamedTuple):
    """Positions as lists, a row for each sample."""

    coords: list[list[Any]]
    order: list[list[int]]
    document: list[list[int]]


def seen_from(x: Where, y: Where, causal: bool, left: int | None = None) -> Visible:
    """Who sees whom; with ``left``, no further back in the order than that."""
    by_document = visible_from(x.order, y.order, x.document, y.document, causal)

    def seen(b: int, i: int, j: int) -> bool:
        return by_document(b, i, j) and (left is None or x.order[b][i] - y.order[b][j] <= left)

    return seen


def attended(n: Numbers, x: Where, y: Where, causal: bool, **terms: Any) -> Result:
    """Attention with these terms, of the queries, keys and values of that name, unless others are given."""
    q, k, v = (terms.pop(name, n.get(name)) for name in ("query", "key", "value"))
    seen = terms.pop("visible", seen_from(x, y, causal))
    out, lse, _ = attend(q, k, v, visible=seen, **terms)
    return out, lse


def turned(x: Any, where: Where, base: float) -> Tensor:
    """RoPE in the half layout."""
    return rope_oracle.rotate_all(x, where.coords, base)


def dape(n: Numbers, x: Where, y: Where, causal: bool, *, total: int) -> Result:
    """s_ij + b_ij + W2 leaky(W1 [s_ij; b_ij] + b1) + b2, with s and b of all heads, leaky(z) = max(z, 0.01 z). Zheng et
    al. 2024 (arXiv 2405.14722), as in the authors' DAPE.py, with ALiBi's b."""
    q, k = n["query"], n["key"]
    group, slopes, factor = len(q[0]) // len(k[0]), alibi_oracle.slopes(total), len(q[0][0][0]) ** -0.5

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        bias = [m * (y.coords[b][j] - x.coords[b][i]) for m in slopes]
        both = [factor * dot(q[b][other][i], k[b][other // group][j]) for other in range(total)] + bias
        hidden = [dot(row, both) + b1 for row, b1 in zip(n["w1"], n["b1"], strict=True)]
        return s + bias[h] + dot(n["w2"][h], [max(z, 0.01 * z) for z in hidden]) + n["b2"][h]

    return attended(n, x, y, causal, score=score)


def path(n: Numbers, x: Where, y: Where, causal: bool) -> Result:
    """q_i . (H_i .. H_(j+1) k_j) / sqrt(d), H_t = I - beta_t w_t w_t^T with |w_t| = 1 and beta_t = 2 sigmoid. Yang et
    al. 2025 (arXiv 2505.16381), and the layer of flash-linear-attention. Keys are rewritten, as decoding does."""
    q, k, seen = n["query"], n["key"], seen_from(x, y, causal)
    group, factor = len(q[0]) // len(k[0]), len(q[0][0][0]) ** -0.5

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        if not seen(b, i, j):
            return s
        g, key, order = h // group, k[b][h // group][j], y.order[b]
        for t in sorted(range(len(order)), key=lambda t: order[t]):
            if order[t] > order[j] and seen(b, i, t):
                w = n["w"][b][g][t]
                length = math.sqrt(dot(w, w))
                step = 2 * sigmoid(n["beta"][b][g][t]) * dot(key, w) / length**2
                key = [c - step * a for c, a in zip(key, w, strict=True)]
        return factor * dot(q[b][h][i], key)

    return attended(n, x, y, causal, score=score)


def with_sinks(n: Numbers, x: Where, y: Where, causal: bool, *, left: int | None, base: float | None) -> Result:
    """RoPE (no base: none) in a window, and a key more that every query sees, of a logit of the head and no value."""
    keys = len(y.order[0])
    seen = seen_from(x, y, causal, left)
    q, k = (n[name] if base is None else turned(n[name], where, base) for name, where in (("query", x), ("key", y)))
    key, value = (
        [[[*tokens, [0.0] * len(tokens[0])] for tokens in sample] for sample in several] for several in (k, n["value"])
    )

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        return n["sinks"][h] if j == keys else s

    def visible(b: int, i: int, j: int) -> bool:
        return j == keys or seen(b, i, j)

    return attended(n, x, y, causal, query=q, key=key, value=value, score=score, visible=visible)
