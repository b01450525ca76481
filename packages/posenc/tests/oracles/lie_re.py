"""LieRE: R(p) = exp(sum_a p_a A_a), with A_a skew-symmetric and block-diagonal.

    s_ij = q_i^T R(p_i)^T R(p_j) k_j / sqrt(d)

Ostmeier et al. 2024 (arXiv 2406.10322), as the authors' code has it; the exponential by its series. Conventions: A is
the upper triangle of the learned numbers less its transpose; block n is the channels n b .. n b + b - 1, and channels
past the last whole block are not turned. Generators are those of each head of keys, or of all of them.
"""

from typing import Any

from torch import Tensor

from .attention import Matrix
from .case import HEAD_DIM, KV_HEADS, Case
from .matrices import scores, skew


def generator(blocks: list[Matrix]) -> Matrix:
    """The blocks along the diagonal, each made skew-symmetric."""
    size = len(blocks[0])
    n = size * len(blocks)
    out = [[0.0] * n for _ in range(n)]
    for at, block in enumerate(blocks):
        for i, row in enumerate(skew(block)):
            for j, value in enumerate(row):
                out[at * size + i][at * size + j] = value
    return out


def _pairs(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    learned = s.generators.detach()
    by_head = (learned.transpose(0, 1) if s.num_heads is not None else learned[None]).tolist()
    generators = [[generator(blocks) for blocks in axes] for axes in by_head]
    return scores(q, k, x, y, generators, s.head_dim // s.block * s.block)


CASES = {
    "lie_re": Case(lambda LieRE: LieRE(HEAD_DIM, 2, 3), pairs=_pairs, axes=2),
    "lie_re per head": Case(lambda LieRE: LieRE(HEAD_DIM, 2, 2, KV_HEADS), pairs=_pairs, axes=2),
    "lie_re of four": Case(lambda LieRE: LieRE(HEAD_DIM, 2, 4), pairs=_pairs, axes=2),
}
