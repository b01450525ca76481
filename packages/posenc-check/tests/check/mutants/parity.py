"""Attention with a learned bias, dense and in blocks of queries, and what goes wrong on the way to the second."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc_check import Attention
from tests.check.mutants import Mutant

BLOCK = 64
REACH = 40  # distances from -REACH to REACH have a bias of their own


class Learned(nn.Module):
    """A number for each head and distance, added to the scores; ``bug`` says what the blocks do wrong."""

    def __init__(self, heads: int = 3, backend: str = "dense", bug: str = "") -> None:
        super().__init__()
        self.backend, self.bug = backend, bug
        self.table = nn.Parameter(torch.randn(heads, 2 * REACH + 1))

    def bias(self, query_positions: Tensor, key_positions: Tensor, table: Tensor) -> Tensor:
        """(rows, heads, queries, keys)"""
        distance = key_positions[:, None, :] - query_positions[:, :, None]
        return table[:, distance.clamp(-REACH, REACH) + REACH].transpose(0, 1)

    def block(
        self, query: Tensor, key: Tensor, value: Tensor, at: tuple[Tensor, Tensor], visible: Tensor, table: Tensor
    ) -> Tensor:
        """Queries of one block against all keys."""
        scores = query @ key.transpose(-1, -2) / query.size(-1) ** 0.5 + self.bias(*at, table)
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return weights.masked_fill(~visible.any(-1, keepdim=True), 0.0) @ value

    def forward(self, query: Tensor, key: Tensor, value: Tensor, at: tuple[Tensor, Tensor], visible: Tensor) -> Tensor:
        if self.backend == "dense":
            return self.block(query, key, value, at, visible, self.table)
        table = self.table
        queries, keys = query.size(2), key.size(2)
        where, whither = at
        if self.bug == "no bias":
            table = table * 0
        elif self.bug == "transposed":
            table = table.flip(-1)
        elif self.bug == "detached" or (self.bug == "detached where queries are frozen" and not query.requires_grad):
            table = table.detach()
        elif self.bug == "scaled twice":
            query = query / query.size(-1) ** 0.5
        elif self.bug == "top left":
            visible = visible & torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
        elif self.bug == "shifted as if square":
            where = whither[:, :queries]
        elif self.bug == "the last block alone is short" and queries % BLOCK:
            whither = whither + 1
        parts = [
            self.block(query[:, :, n : n + BLOCK], key, value, (where[:, n : n + BLOCK], whither), seen, table)
            for n, seen in zip(range(0, queries, BLOCK), visible.split(BLOCK, 2), strict=True)
        ]
        return torch.cat(parts, 2)


def attend_with_bias(
    made: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    visible: Tensor,
) -> Tensor:
    return made(query, key, value, (query_positions, key_positions), visible)


def attention(build: type[Learned] = Learned, **options: str) -> Attention:
    backends = ({"backend": "dense"}, {"backend": "blocks"})
    return Attention(build=build, call=attend_with_bias, options=options, causal=True, relative=True, backends=backends)


CORRECT = (attention(),)
MUTANTS = (
    *(
        Mutant(f"blocks: {bug}", attention(bug=bug), caught_by=16, pain=pain)
        for bug, pain in (
            ("no bias", 9),
            ("detached", 9),
            ("scaled twice", 10),
            ("top left", 5),
            ("shifted as if square", 11),
            ("the last block alone is short", 11),
        )
    ),
)
