"""The awkward schemes one number at a time. Imports nothing of posenc.

Every oracle takes the numbers of a call by name (queries, keys, values and features as (batch, heads, tokens[, width]),
parameters as the scheme holds them, all as nested lists), where queries and keys are, and whether attention is causal.
Queries are the last of the keys. It gives the output and the log-sum-exp of each row, where there is one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from tests.oracles import alibi as alibi_oracle
from tests.oracles import cope as cope_oracle
from tests.oracles import rope as rope_oracle
from tests.oracles import shaw as shaw_oracle
from tests.oracles import transformer_xl as transformer_xl_oracle
from tests.oracles.attention import Score, Visible, attend, dot, visible_from
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


def network(x: list[float], w1: Any, b1: Any, w2: Any, b2: Any) -> list[float]:
    """W2 relu(W1 x + b1) + b2."""
    hidden = [max(0.0, dot(row, x) + b) for row, b in zip(w1, b1, strict=True)]
    return [dot(row, hidden) + b for row, b in zip(w2, b2, strict=True)]


def alibi(n: Numbers, x: Where, y: Where, causal: bool, *, heads: range, total: int) -> Result:
    """Some heads of all: each has the slope of its number among all heads."""
    slopes = [alibi_oracle.slopes(total)[h] for h in heads]
    return attended(n, x, y, causal, score=alibi_oracle.score(slopes, x.coords, y.coords, causal=True))


def shaw(n: Numbers, x: Where, y: Where, causal: bool) -> Result:
    """Shaw et al. 2018, equations 3 and 4."""
    value_term = shaw_oracle.value_term(n["values"], x.coords, y.coords)
    score = shaw_oracle.score(n["query"], n["keys"], x.coords, y.coords)
    return attended(n, x, y, causal, score=score, value_term=value_term)


def alibi_and_shaw(n: Numbers, x: Where, y: Where, causal: bool, *, total: int) -> Result:
    """Both terms, and the values of the second; keys after the query are rewarded."""
    biased = alibi_oracle.score(alibi_oracle.slopes(total), x.coords, y.coords, causal=True)
    met = shaw_oracle.score(n["query"], n["schemes.1.keys"], x.coords, y.coords)
    value_term = shaw_oracle.value_term(n["schemes.1.values"], x.coords, y.coords)

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        return met(biased(s, b, h, i, j), b, h, i, j)

    return attended(n, x, y, causal, score=score, value_term=value_term)


def transformer_xl(n: Numbers, x: Where, y: Where, causal: bool, *, base: float) -> Result:
    """Dai et al. 2019, section 3.3."""
    terms = transformer_xl_oracle.terms(
        n["query"], n["key"], n["projection"], n["u"], n["v"], x.coords, y.coords, base=base
    )
    return attended(n, x, y, causal, score=transformer_xl_oracle.score(terms))


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


def swin(n: Numbers, x: Where, y: Where, causal: bool, *, sides: tuple[int, int]) -> Result:
    """s_ij + B[row_j - row_i, column_j - column_i]. Liu et al. 2021, equation 4; key less query."""
    height, width = sides

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        down, right = (there - here for here, there in zip(x.coords[b][i], y.coords[b][j], strict=True))
        return s + n["vectors"][(down + height - 1) * (2 * width - 1) + right + width - 1][h]

    return attended(n, x, y, causal, score=score)


def swin2(n: Numbers, x: Where, y: Where, causal: bool, *, sides: tuple[int, int]) -> Result:
    """cos(q_i, k_j) exp(min(tau, ln 100)) + 16 sigmoid(network(log-spaced differences)). Liu et al. 2022, section 3."""

    def spaced(difference: float, side: int) -> float:
        r = 8.0 * difference / (side - 1)
        return math.copysign(math.log2(abs(r) + 1) / 3, r)

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        apart = [there - here for here, there in zip(x.coords[b][i], y.coords[b][j], strict=True)]
        at = [spaced(a, side) for a, side in zip(apart, sides, strict=True)]
        bias = network(at, n["w1"], n["b1"], n["w2"], [0.0] * len(n["w2"]))[h]
        return s * math.exp(min(n["tau"][h], math.log(100))) + 16 * sigmoid(bias)

    def unit(v: list[float], *_: int) -> list[float]:
        return [c / math.sqrt(dot(v, v)) for c in v]

    q, k = mapped(n["query"], unit), mapped(n["key"], unit)
    return attended(n, x, y, causal, query=q, key=k, score=score, scale=1.0)


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


def inkling(n: Numbers, x: Where, y: Where, causal: bool) -> Result:
    """s_ij + r_i . B[p_i - p_j], and s_ij alone where B has no such row."""

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        back = x.coords[b][i] - y.coords[b][j]
        return s + dot(n["r"][b][h][i], n["vectors"][back]) if 0 <= back < len(n["vectors"]) else s

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


def m_rope(n: Numbers, x: Where, y: Where, causal: bool, *, base: float, axes: Sequence[int]) -> Result:
    """RoPE whose pair k turns by the coordinate along axes[k]. Qwen2-VL, section 2.1."""

    def rotate(v: list[float], coords: list[float]) -> list[float]:
        pairs, out = len(axes), list(v)
        for k in range(pairs):
            angle = coords[axes[k]] * base ** (-k / pairs)
            out[k] = v[k] * math.cos(angle) - v[k + pairs] * math.sin(angle)
            out[k + pairs] = v[k] * math.sin(angle) + v[k + pairs] * math.cos(angle)
        return out

    q = mapped(n["query"], lambda v, b, h, i: rotate(v, x.coords[b][i]))
    k = mapped(n["key"], lambda v, b, h, j: rotate(v, y.coords[b][j]))
    return attended(n, x, y, causal, query=q, key=k)


def pope(n: Numbers, x: Where, y: Where, causal: bool, *, base: float) -> Result:
    """sum_c softplus(q_ic) softplus(k_jc) cos((p_j - p_i) base^(-c/d) + delta_c) / sqrt(d)."""
    q, k = n["query"], n["key"]
    width, group = len(q[0][0][0]), len(q[0]) // len(k[0])

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        s = 0.0
        for c in range(width):
            lengths = math.log1p(math.exp(q[b][h][i][c])) * math.log1p(math.exp(k[b][h // group][j][c]))
            phase = min(max(n["delta"][h // group][c], -2 * math.pi), 0.0)
            s += lengths * math.cos((y.coords[b][j] - x.coords[b][i]) * base ** (-c / width) + phase)
        return s / math.sqrt(width)

    return attended(n, x, y, causal, score=score)


def rerope(n: Numbers, x: Where, y: Where, causal: bool, *, base: float, window: int) -> Result:
    """q_i . R(-min(p_i - p_j, w)) k_j / sqrt(d): distances from the window on are the window."""
    q, k = n["query"], n["key"]
    width, group = len(q[0][0][0]), len(q[0]) // len(k[0])

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        distance = min(x.coords[b][i] - y.coords[b][j], window)
        return dot(q[b][h][i], rope_oracle.rotate(k[b][h // group][j], -distance, base)) / math.sqrt(width)

    return attended(n, x, y, causal, score=score)


def rotated_values(n: Numbers, x: Where, y: Where, causal: bool, *, base: float, first: int) -> Result:
    """o_i = R(-p_i) sum_j a_ij R(p_j) v_j on the trailing channels, with queries and keys turned too."""
    q, k, v = turned(n["query"], x, base, first), turned(n["key"], y, base, first), turned(n["value"], y, base, first)
    out, lse = attended(n, x, y, causal, query=q, key=k, value=v)
    return torch.tensor(turned(out, x, base, first, sign=-1), dtype=torch.float64), lse


def dynamic_ntk(n: Numbers, x: Where, y: Where, causal: bool, *, base: float, trained: int, factor: float) -> Result:
    """RoPE whose base grows with the length of each row: base (f n/L - (f - 1))^(d/(d-2))."""
    width = len(n["query"][0][0][0])

    def grown(b: int) -> float:
        length = 1 + max((p for p, d in zip(y.coords[b], y.document[b], strict=True) if d != -1), default=-1)
        return base * max(1.0, factor * length / trained - (factor - 1)) ** (width / (width - 2))

    q = mapped(n["query"], lambda v, b, h, i: rope_oracle.rotate(v, x.coords[b][i], grown(b)))
    k = mapped(n["key"], lambda v, b, h, j: rope_oracle.rotate(v, y.coords[b][j], grown(b)))
    return attended(n, x, y, causal, query=q, key=k)


def cope(n: Numbers, x: Where, y: Where, causal: bool) -> Result:
    """Golovneva et al. 2024, section 4."""
    row = cope_oracle.row(n["query"], n["embedding"], x.order, y.order, position_scale=1.0, causal=causal)
    return attended(n, x, y, causal, row=row)


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


def stick_breaking(n: Numbers, x: Where, y: Where, causal: bool) -> Result:
    """o_i = sum_j A_ij v_j, A_ij = sigmoid(s_ij) times 1 - sigmoid(s_it) of every t between j and i, i itself too.
    Tan et al. 2025, section 2, with the query's own key."""
    q, k, v = n["query"], n["key"], n["value"]
    group, seen, factor = len(q[0]) // len(k[0]), seen_from(x, y, causal), len(q[0][0][0]) ** -0.5

    def row(query: list[float], b: int, h: int, i: int) -> list[float]:
        out, left = [0.0] * len(v[0][0][0]), 1.0
        for j in sorted(range(len(y.order[b])), key=lambda j: -y.order[b][j]):
            if seen(b, i, j):
                share = sigmoid(factor * dot(query, k[b][h // group][j]))
                out = [o + left * share * c for o, c in zip(out, v[b][h // group][j], strict=True)]
                left *= 1 - share
        return out

    return torch.tensor(mapped(q, row), dtype=torch.float64), None


def softcap(n: Numbers, x: Where, y: Where, causal: bool, *, total: int) -> Result:
    """cap tanh((s_ij + ALiBi) / cap)."""
    biased: Score = alibi_oracle.score(alibi_oracle.slopes(total), x.coords, y.coords, causal=True)
    cap = n["schemes.1.cap"]

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        return cap * math.tanh(biased(s, b, h, i, j) / cap)

    return attended(n, x, y, causal, score=score)


def fire(n: Numbers, x: Where, y: Where, causal: bool, *, length: float) -> Result:
    """s_ij + network(psi(p_i - p_j) / psi(max(L, p_i))), psi(r) = ln(|c| r + 1). Li et al. 2024, equation 7."""
    c, threshold = abs(n["c"]), abs(n["multiple"] * length)

    def score(s: float, b: int, h: int, i: int, j: int) -> float:
        here, away = x.coords[b][i], max(0, x.coords[b][i] - y.coords[b][j])
        ratio = math.log(c * away + 1) / math.log(c * max(threshold, here) + 1)
        return s + network([ratio], n["w1"], n["b1"], n["w2"], n["b2"])[h]

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
