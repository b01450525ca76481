"""No positional encoding: all four doors are the identity, and order reaches the model through the causal mask alone.

    x_i <- x_i,    q_i <- q_i,    s_ij <- s_ij

Haviv et al. 2022 (arXiv 2203.16634); Kazemnejad et al. 2023 (arXiv 2305.19466). There is no convention to choose.
Without a mask, attention is then permutation-equivariant.
"""

import torch
from torch import Tensor

from .attention import Matrix, Vector, matrices
from .case import Case


def add(x: Tensor | list[Matrix]) -> Tensor:
    """x itself, as a float64 tensor."""
    return torch.tensor(matrices(x), dtype=torch.float64)


def rotate(x_row: Vector, position: float) -> Vector:
    """The row itself, wherever it stands."""
    return list(x_row)


def score(s: float, b: int, h: int, i: int, j: int) -> float:
    """The logit itself."""
    return s


CASES = {"nope": Case(lambda NoPE: NoPE())}
