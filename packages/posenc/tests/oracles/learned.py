"""Learned absolute positions.

    y_i = x_i + W[p_i]        W: N_max x dim, learned

Gehring et al. 2017 (arXiv 1705.03122), section 3.1; Vaswani et al. 2017, section 3.5; BERT (arXiv 1810.04805).
Conventions: the table is added as it is, without a factor. Integer positions in 0 .. N_max - 1; any other has no row,
and a negative one does not count from the end.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .attention import Matrix, matrices, matrix
from .case import DIM, Case, rows


def add(x: Tensor | list[Matrix], positions: Sequence[Sequence[int]], weight: Tensor | Matrix) -> Tensor:
    """x: (B, N, dim), positions: (B, N), weight: (N_max, dim) -> (B, N, dim) in float64."""
    rows, w = matrices(x), matrix(weight)
    out: list[Matrix] = []
    for b in range(len(rows)):
        out.append([])
        for i in range(len(rows[b])):
            p = positions[b][i]
            if not 0 <= p < len(w):
                raise IndexError(f"position {p} is outside the table's 0..{len(w) - 1}")
            out[b].append([rows[b][i][c] + w[p][c] for c in range(len(rows[b][i]))])
    return torch.tensor(out, dtype=torch.float64)


CASES = {
    "learned": Case(
        lambda Learned: Learned(20, DIM), add=lambda x, p, scheme: add(x, rows(p), scheme.weight), integers_only=True
    )
}
