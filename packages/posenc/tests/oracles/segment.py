"""Segment embeddings: which part of the input a token belongs to (premise or hypothesis).

    y_i = x_i + W[t_i]        W: T x dim, learned, T = 2 in BERT

Devlin et al. 2018, BERT (arXiv 1810.04805), section 3 and Figure 2. Conventions: added as it is, without a factor, and
blind to the position; segments are numbered from 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .attention import Matrix, matrices, matrix
from .case import DIM, Case


def add(x: Tensor | list[Matrix], segments: Sequence[Sequence[int]], weight: Tensor | Matrix) -> Tensor:
    """x: (B, N, dim), segments: (B, N), weight: (T, dim) -> (B, N, dim) in float64."""
    rows, w = matrices(x), matrix(weight)
    out: list[Matrix] = []
    for b in range(len(rows)):
        out.append([])
        for i in range(len(rows[b])):
            t = segments[b][i]
            if not 0 <= t < len(w):
                raise IndexError(f"segment {t} is outside the table's 0..{len(w) - 1}")
            out[b].append([rows[b][i][c] + w[t][c] for c in range(len(rows[b][i]))])
    return torch.tensor(out, dtype=torch.float64)


CASES = {
    "segment": Case(
        lambda Segment: Segment(2, DIM),
        add=lambda x, p, scheme: add(x, p.segment.expand(2, -1).tolist(), scheme.weight),
    )
}
