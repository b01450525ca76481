"""Softmax attention, one number at a time.

    s_ij  = scale * sum_c q_ic k_jc        scale = 1/sqrt(d) unless given
    s_ij <- score(s_ij, b, h, i, j)        a bias, a factor, a query-dependent term
    s_i: <- row(s_i:, b, h, i, visible)    for schemes that must see the whole row (CoPE)
    a_ij  = exp(s_ij) / sum_t exp(s_it)    over the visible keys t alone
    o_i   = sum_j a_ij (v_j + w_ij)        w_ij = value_term(b, h, i, j)

Vaswani et al. 2017, "Attention Is All You Need" (arXiv 1706.03762), Eq. 1. Grouped queries: query head h reads key and
value head h // (H / Hk). A score of -inf leaves its key no weight. A query that sees nothing gives zeros, and a
log-sum-exp of -inf.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Vector: TypeAlias = list[float]
Matrix: TypeAlias = list[Vector]
Heads: TypeAlias = list[list[Matrix]]  # (batch, heads, tokens, channels)
Score: TypeAlias = Callable[[float, int, int, int, int], float]  # (s, b, h, i, j) -> s
Row: TypeAlias = Callable[[Vector, int, int, int, list[bool]], Vector]  # (logits, b, h, i, visible) -> logits
ValueTerm: TypeAlias = Callable[[int, int, int, int], Vector]  # (b, h, i, j) -> w_ij
Visible: TypeAlias = Callable[[int, int, int], bool]  # (b, i, j) -> may query i see key j?


def vector(values: Tensor | Vector) -> Vector:
    """The edge: one axis of numbers, as Python floats."""
    return values.detach().double().tolist() if isinstance(values, Tensor) else values


def matrix(values: Tensor | Matrix) -> Matrix:
    """The edge: two axes of numbers, as Python floats."""
    return values.detach().double().tolist() if isinstance(values, Tensor) else values


def matrices(values: Tensor | list[Matrix]) -> list[Matrix]:
    """The edge: three axes of numbers (one matrix per head, or one per sample), as Python floats."""
    return values.detach().double().tolist() if isinstance(values, Tensor) else values


def heads(values: Tensor | Heads) -> Heads:
    """The edge: (batch, heads, tokens, channels), as Python floats."""
    return values.detach().double().tolist() if isinstance(values, Tensor) else values


def dot(a: Vector, b: Vector) -> float:
    """sum_c a_c b_c, added from the left; the two must be of one length."""
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += x * y
    return total


def attend(
    query: Tensor | Heads,
    key: Tensor | Heads,
    value: Tensor | Heads,
    *,
    score: Score | None = None,
    row: Row | None = None,
    value_term: ValueTerm | None = None,
    visible: Visible | None = None,
    scale: float | None = None,
    normalised: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output (B, H, M, dv), log-sum-exp (B, H, M) and logits (B, H, M, N), in float64. Not ``normalised``: logits are
    the logarithms of the weights, which are not divided by their sum.

    The logits are those after `score` and `row` and before the mask: what the mask alone hides keeps a finite number.
    """
    q, k, v = heads(query), heads(key), heads(value)
    num_heads, num_kv_heads = len(q[0]), len(k[0])
    assert num_heads % num_kv_heads == 0, f"{num_heads} query heads do not share {num_kv_heads} key heads evenly"
    group = num_heads // num_kv_heads
    factor = 1.0 / math.sqrt(len(q[0][0][0])) if scale is None else scale

    output: Heads = []
    lse: list[Matrix] = []
    logits: Heads = []
    for b in range(len(q)):
        output.append([])
        lse.append([])
        logits.append([])
        for h in range(num_heads):
            keys, values = k[b][h // group], v[b][h // group]
            output[b].append([])
            lse[b].append([])
            logits[b].append([])
            for i in range(len(q[b][h])):
                seen = [visible is None or visible(b, i, j) for j in range(len(keys))]
                s = [factor * dot(q[b][h][i], keys[j]) for j in range(len(keys))]
                if score is not None:
                    s = [score(s[j], b, h, i, j) for j in range(len(keys))]
                if row is not None:
                    s = row(s, b, h, i, seen)
                logits[b][h].append(s)

                out = [0.0] * len(values[0])
                log_total = -math.inf
                largest = max((s[j] for j in range(len(keys)) if seen[j]), default=-math.inf)
                if largest != -math.inf:
                    total = sum(math.exp(s[j] - largest) for j in range(len(keys)) if seen[j])
                    log_total = largest + math.log(total)
                    for j in range(len(keys)):
                        if seen[j]:
                            alpha = math.exp(s[j] - largest) / total if normalised else math.exp(s[j])
                            added = [0.0] * len(out) if value_term is None else value_term(b, h, i, j)
                            for c in range(len(out)):
                                out[c] += alpha * (values[j][c] + added[c])
                output[b][h].append(out)
                lse[b][h].append(log_total)
    double = torch.float64
    return torch.tensor(output, dtype=double), torch.tensor(lse, dtype=double), torch.tensor(logits, dtype=double)


def visible_from(
    query_order: Sequence[Sequence[int]],
    key_order: Sequence[Sequence[int]],
    query_document: Sequence[Sequence[int]],
    key_document: Sequence[Sequence[int]],
    causal: bool,
) -> Visible:
    """Key j is visible to query i when both are of one document, not padding (-1) and, if causal, j is not later.

    "Later" is read off the order, never off the index: order_j <= order_i, a token sees itself.
    """

    def visible(b: int, i: int, j: int) -> bool:
        if query_document[b][i] == -1 or query_document[b][i] != key_document[b][j]:
            return False
        return not causal or key_order[b][j] <= query_order[b][i]

    return visible
