"""Schemes that could bend the contract and are not in the library, written against it as a user would write them.

They are here to try the contract, not to be used: no initialisation, no checks, no documentation of their own.
"""

import math

import torch
from torch import Tensor, nn

from posenc import Positions
from posenc.encoding import Rotation, RowFunction, RowScore
from posenc.forms import Block
from posenc.phases import PairRotation, frequencies, phases
from posenc.scheme import Scheme


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=torch.float64))


class TrialCoPE(Scheme):
    """Counts along the row."""

    def __init__(self, num_positions: int, head_dim: int) -> None:
        super().__init__()
        self.embedding = weight(num_positions, head_dim)

    def score(self) -> RowScore:
        return RowScore(self._bind)

    def _bind(self, block: Block) -> RowFunction:
        met = block.query @ self.embedding.mT
        order = block.key_positions.order

        def counted(scores: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor, visible: Tensor | None) -> Tensor:
            gates = scores.sigmoid()
            gates = gates if visible is None else gates.masked_fill(~visible, 0.0)
            later = (order[:, None, :] >= order[:, :, None]).to(gates.dtype)  # [b, j, t]: t not before j
            count = torch.einsum("bhit,bjt->bhij", gates, later).clamp(max=self.embedding.size(0) - 1)
            low, part = count.floor().long(), count - count.floor()
            high = count.ceil().long()
            return scores + (1 - part) * met[b, h, i, low] + part * met[b, h, i, high]

        return counted


class TrialYaRN(Scheme):
    """A logit scale: a rotation that also lengthens, so the rotate door needs nothing new."""

    def __init__(self, head_dim: int, factor: float, original_length: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.head_dim, self.factor, self.length, self.base = head_dim, factor, original_length, base

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Rotation:
        def turning(times: float) -> float:
            return self.head_dim * math.log(self.length / (times * 2 * math.pi)) / (2 * math.log(self.base))

        low, high = max(math.floor(turning(32)), 0), min(math.ceil(turning(1)), self.head_dim - 1)
        theta = frequencies(self.head_dim, self.base)
        ramp = ((torch.arange(len(theta)) - low) / max(high - low, 0.001)).clamp(0, 1).double()
        angle = phases(positions.scalar("YaRN"), (1 - ramp) * theta + ramp * theta / self.factor)[:, None]
        long = 0.1 * math.log(self.factor) + 1
        turn = PairRotation((long * angle.cos()).to(dtype), (long * angle.sin()).to(dtype), "half", self.head_dim)
        return Rotation(turn, turn)
