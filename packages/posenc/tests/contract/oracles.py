"""The awkward schemes one number at a time. Imports nothing of posenc.

Every oracle takes the numbers of a call by name (queries, keys, values and features as (batch, heads, tokens[, width]),
parameters as the scheme holds them, all as nested lists), where queries and keys are, and whether attention is causal.
Queries are the last of the keys. It gives the output and the log-sum-exp of each row, where there is one.
"""

import math
from collections.abc import Callable
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


def mapped(x: Any, token: Callable[[list[float], int, int, int], list[float]]) -> list[Any]:
    """token(vector, b, h, n) of every token of x (batch, heads, tokens, width)."""
    x = x.tolist() if isinstance(x, Tensor) else x
    return [
        [[token(v, b, h, n) for n, v in enumerate(tokens)] for h, tokens in enumerate(sample)]
        for b, sample in enumerate(x)
    ]


def alibi(n: Numbers, x: Where, y: Where, causal: bool, *, heads: range, total: int) -> Result:
    """Some heads of all: each has the slope of its number among all heads."""
    slopes = [alibi_oracle.slopes(total)[h] for h in heads]
    return attended(n, x, y, causal, score=alibi_oracle.score(slopes, x.coords, y.coords, causal=True))


def deberta(n: Numbers, x: Where, y: Where, causal: bool) -> Result:
    """(q_i . k_j + q_i . Kr[c] + k_j . Qr[c]) / sqrt(3 d), c = clamp(p_i - p_j + k, 0, 2k - 1), Qr and Kr the table
    projected as queries and keys are. He et al. 2021, equation 4, with the index as in the authors' code."""
    q, k, table = n["query"], n["key"], n["vectors"]
    width, group, reach = len(q[0][0][0]), len(q[0]) // len(k[0]), len(n["vectors"]) // 2
    factor = (3 * width) ** -0.5

    def projected(weights: Any, head: int, row: int) -> list[float]:
        return [dot(weights[head * width + c], table[row]) for c in range(width)]

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        c = min(max(x.coords[b][i] - y.coords[b][j] + reach, 0), 2 * reach - 1)
        to_position = dot(q[b][h][i], projected(n["of_key.weight"], h // group, c))
        to_content = dot(k[b][h // group][j], projected(n["of_query.weight"], h, c))
        return s + factor * (to_position + to_content)

    return attended(n, x, y, causal, score=score, scale=factor)


def relative_2d(n: Numbers, x: Where, y: Where, causal: bool) -> Result:
    """s_ij + q_i . (R[row_j - row_i] + C[column_j - column_i]) / sqrt(d)."""
    factor = len(n["query"][0][0][0]) ** -0.5

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        for table, here, there in zip((n["rows"], n["columns"]), x.coords[b][i], y.coords[b][j], strict=True):
            s += factor * dot(n["query"][b][h][i], table[h][there - here + len(table[h]) // 2])
        return s

    return attended(n, x, y, causal, score=score)


def fox(n: Numbers, x: Where, y: Where, causal: bool) -> Result:
    """s_ij + sum of log sigmoid(gate_t) over the tokens t after j up to i. Lin et al. 2025, equation 4."""

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        query = len(y.order[b]) - len(x.order[b]) + i
        for t in range(j + 1, query + 1):
            s += math.log(sigmoid(n["gates"][b][h][t]))
        return s

    return attended(n, x, y, causal, score=score)


def turned(x: Any, where: Where, base: float, first: int = 0, sign: int = 1) -> list[Any]:
    """RoPE in the half layout on the channels from ``first`` on; ``sign`` -1 turns back."""
    return mapped(x, lambda v, b, h, i: v[:first] + rope_oracle.rotate(v[first:], sign * where.coords[b][i], base))


def mla(n: Numbers, x: Where, y: Where, causal: bool, *, base: float) -> Result:
    """Keys [up_key c_j | R(p_j) shared_j] and values up_value c_j of every head; queries [q | R(p_i) q'].
    DeepSeek-V2, equations 9 to 19, without the compression of queries."""
    heads, plain = len(n["up_key"]), len(n["up_key"][0])
    shared = turned(n["shared"], y, base)

    def up(weights: Any, h: int, c: list[float]) -> list[float]:
        return [dot(row, c) for row in weights[h]]

    latent = [sample * heads for sample in n["latent"]]  # a row of the one head for each
    key = mapped(latent, lambda c, b, h, j: up(n["up_key"], h, c) + shared[b][0][j])
    value = mapped(latent, lambda c, b, h, j: up(n["up_value"], h, c))
    return attended(n, x, y, causal, query=turned(n["query"], x, base, plain), key=key, value=value)


def dynamic_ntk(n: Numbers, x: Where, y: Where, causal: bool, *, base: float, trained: int, factor: float) -> Result:
    """RoPE whose base grows with the length of each row: base (f n/L - (f - 1))^(d/(d-2))."""
    width = len(n["query"][0][0][0])

    def grown(b: int) -> float:
        length = 1 + max((p for p, d in zip(y.coords[b], y.document[b], strict=True) if d != -1), default=-1)
        return base * max(1.0, factor * length / trained - (factor - 1)) ** (width / (width - 2))

    q = mapped(n["query"], lambda v, b, h, i: rope_oracle.rotate(v, x.coords[b][i], grown(b)))
    k = mapped(n["key"], lambda v, b, h, j: rope_oracle.rotate(v, y.coords[b][j], grown(b)))
    return attended(n, x, y, causal, query=q, key=k)


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
