"""The positional convolution of wav2vec 2.0.

    y_i = x_i + gelu(b + sum_t W_t x_(i + t - floor(K/2))),   W_t = g_t V_t / |V|_t

Baevski et al. 2020 (arXiv 2006.11477), with the weight norm of fairseq (dim=2). Conventions: i counts the tokens of one
document by their order; tokens outside of it are zeros; padding (document -1) is as it was. gelu is exact.
"""

import math
from typing import Any

import torch
from torch import Tensor


def add(x: Tensor, order: list[Any], document: list[Any], v: Tensor, g: Tensor, b: Tensor, groups: int) -> Tensor:
    """x (B, N, dim); order and document (B, N); v (dim, dim/groups, K), g (K), b (dim)."""
    rows, weight, bias = x.tolist(), v.tolist(), b.tolist()
    out = x.double().tolist()
    dim, each, width = v.shape
    norm = [math.sqrt(sum(weight[o][c][t] ** 2 for o in range(dim) for c in range(each))) for t in range(width)]
    for n in range(len(rows)):
        for i, d in enumerate(document[n]):
            if d == -1:
                continue
            text = sorted((j for j, other in enumerate(document[n]) if other == d), key=lambda j: order[n][j])
            for o in range(dim):
                total = bias[o]
                for t in range(width):
                    place = text.index(i) + t - width // 2
                    if 0 <= place < len(text):
                        first = o // (dim // groups) * each
                        for c in range(each):
                            total += float(g[t]) * weight[o][c][t] / norm[t] * rows[n][text[place]][first + c]
                out[n][i][o] += total * (1 + math.erf(total / math.sqrt(2))) / 2
    return torch.tensor(out, dtype=torch.float64)
