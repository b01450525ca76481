"""Attention with a linear bias that claims linear memory, and what keeps or makes more."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from posenc_check import Attention
from tests.check.mutants import Mutant

SIZE = 256  # queries in a block


class Sloped(nn.Module):
    """-slope · (i - j) with learned slopes, for a block of queries at a time, which the backward pass makes anew."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.rand(heads))

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """(rows, heads, queries, keys)"""
        distance = (query_positions[:, :, None] - key_positions[:, None, :]).to(self.slopes.dtype)
        return -self.slopes[:, None, None] * distance[:, None]

    def block(
        self, query: Tensor, key: Tensor, value: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        scores = query @ key.transpose(-1, -2) / query.size(-1) ** 0.5
        scores = scores + self.bias(query_positions, key_positions).to(scores.dtype)
        later = key_positions[:, None, None, :] > query_positions[:, None, :, None]
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ value

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        parts = []
        for start in range(0, query.size(2), SIZE):
            rows = slice(start, start + SIZE)
            given = (query[:, :, rows], key, value, query_positions[:, rows], key_positions)
            parts.append(checkpoint(self.block, *given, use_reentrant=False))
        return torch.cat(parts, 2)


class AtOnce(Sloped):
    """Every pair at once, as a mask for a fused kernel."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        return self.block(query, key, value, query_positions, key_positions)


class KeptOnTheModule(Sloped):
    """The bias of the last block, with all that it was computed from."""

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        self.last = super().bias(query_positions, key_positions)
        return self.last


def attend_in_blocks(
    made: Any, query: Tensor, key: Tensor, value: Tensor, query_positions: Tensor, key_positions: Tensor
) -> Tensor:
    return made(query, key, value, query_positions, key_positions)


def attention(build: type[Sloped], linear: bool = True) -> Attention:
    return Attention(
        build=build, call=attend_in_blocks, causal=True, relative=True, linear_memory=linear, heads=2, head_dim=8
    )


CORRECT = (attention(Sloped),)
MUTANTS = (
    Mutant("a bias for every pair", attention(AtOnce), caught_by=17, pain=10),
    Mutant("a bias kept on the module", attention(KeptOnTheModule, linear=False), caught_by=17, pain=9),
)
