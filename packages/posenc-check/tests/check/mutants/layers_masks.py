"""Masks of PyTorch's own multi-head attention, and memories."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc_check import Layer
from tests.check.mutants import Mutant

HEADS, HEAD_DIM = 4, 8


class Encoder(nn.Module):
    """PyTorch's multi-head attention with ALiBi to both sides, as a float mask for each row and head."""

    causal = False

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, HEADS, batch_first=True)

    def bias(self, places: Tensor) -> Tensor:
        """(rows, heads, tokens, tokens)"""
        slopes = 0.5 ** torch.arange(1, HEADS + 1)
        return -slopes[:, None, None] * (places[:, None, :, None] - places[:, None, None, :]).abs()

    def hidden(self, padding: Tensor) -> Tensor:
        """True where a token is not seen, (rows, tokens)."""
        return ~padding

    def penalty(self, hidden: Tensor) -> Tensor:
        return torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)

    def by_head(self, mask: Tensor) -> Tensor:
        """(rows × heads, tokens, tokens)"""
        return mask.flatten(0, 1)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        places = padding.cumsum(1) - 1
        mask = self.bias(places) + self.penalty(self.hidden(padding))[:, None, None]
        if self.causal:
            mask = mask + self.penalty(~torch.ones(x.size(1), x.size(1)).tril().bool())
        mask = mask.masked_fill(~padding[:, None, :, None], 0.0)  # padding sees all, and nothing is owed
        out: Tensor = self.attention(x, x, x, attn_mask=self.by_head(mask).to(x.dtype), need_weights=False)[0]
        return out


class Causal(Encoder):
    causal = True


def read(made: Any, x: Tensor, padding: Tensor | None = None) -> Tensor:
    return made(x, torch.ones(x.shape[:2]).bool() if padding is None else padding)


class MaskOfOnes(Encoder):
    """The mask of 0 and 1 is added as it is."""

    def penalty(self, hidden: Tensor) -> Tensor:
        return 1.0 - hidden.to(torch.float32)


class HeadsOfRows(Encoder):
    """What stands by rows and heads is put in the order of heads and rows."""

    def by_head(self, mask: Tensor) -> Tensor:
        return mask.transpose(0, 1).flatten(0, 1)


class Asking(nn.Module):
    """Cross-attention of a decoder to a memory of its own positions, with a learned bias by clipped distance."""

    def __init__(self) -> None:
        super().__init__()
        self.ask, self.answer = nn.Linear(32, 32), nn.Linear(32, 64)
        self.table = nn.Parameter(torch.randn(2 * 8 + 1, HEADS))

    def bias(self, positions: Tensor, memory_positions: Tensor) -> Tensor:
        distance = memory_positions[:, None, :] - positions[:, :, None]
        return self.table[distance.clamp(-8, 8) + 8].permute(0, 3, 1, 2)

    def forward(self, x: Tensor, positions: Tensor, memory: Tensor, memory_positions: Tensor) -> Tensor:
        query = self.ask(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        key, value = self.answer(memory).unflatten(-1, (2, HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT / HEAD_DIM**0.5 + self.bias(positions, memory_positions)
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


def cross(
    made: Any,
    x: Tensor,
    positions: Tensor | None = None,
    memory: Tensor | None = None,
    memory_positions: Tensor | None = None,
) -> Tensor:
    positions = torch.arange(x.size(1)).expand(x.shape[:2]) if positions is None else positions
    if memory is None or memory_positions is None:
        memory, memory_positions = x, positions
    return made(x, positions, memory, memory_positions)


class MemoryByIndex(Asking):
    """The memory is at 0, 1, 2, … wherever it is said to be."""

    def bias(self, positions: Tensor, memory_positions: Tensor) -> Tensor:
        return super().bias(positions, torch.arange(memory_positions.size(1)).expand_as(memory_positions))


class MemoryHiddenAfter(Asking):
    """The mask of self-attention: a query sees as much of the memory as there is of the text."""

    def bias(self, positions: Tensor, memory_positions: Tensor) -> Tensor:
        bias = super().bias(positions, memory_positions)
        return bias.masked_fill(~torch.ones(bias.shape[-2:]).tril().bool(), -torch.inf)


def encoder(build: Any, **claims: Any) -> Layer:
    return Layer(build=build, call=read, normalized=True, **claims)


def crossing(build: Any) -> Layer:
    return Layer(build=build, call=cross, relative=True, normalized=True)


CORRECT = (encoder(Encoder, directed=False), encoder(Causal, causal=True), crossing(Asking))
MUTANTS = (
    Mutant("a mask of ones and zeros added", encoder(MaskOfOnes), caught_by=7, pain=3),
    Mutant("masks by heads and rows", encoder(HeadsOfRows), caught_by=19, pain=18),
    Mutant("a memory counted by index", crossing(MemoryByIndex), caught_by=6, pain=18),
    Mutant("a memory hidden by a causal mask", crossing(MemoryHiddenAfter), caught_by=9, pain=18),
)
