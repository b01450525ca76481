"""Schemes of the catalog as single models of transformers have them, with what their code does to them."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.arguments import check_choice, check_type, whole
from posenc.positions import Positions
from posenc.schemes.alibi import ALiBi
from posenc.schemes.learned import Learned
from posenc.visibility import table_index


class OffsetLearned(Learned):
    """A learned table whose first rows are left out: x_i <- x_i + W[p_i + offset].

    OPT's table begins two rows late; RoBERTa's after the row of its padding token, so that position 0 is row
    pad_token_id + 1. ``max_positions`` counts the rows of the table, of which max_positions - offset have a position.

    Errors: PositionError for a position outside of those, and as `Learned`.
    Source: the code of OPT and of RoBERTa in transformers.
    """

    def __init__(self, max_positions: int, dim: int, offset: int) -> None:
        super().__init__(max_positions, dim)
        self.offset = whole("offset", offset, 0, self.max_positions - 1)

    def extra_repr(self) -> str:
        """The arguments, the offset by its name."""
        return f"{self.max_positions}, {self.dim}, offset={self.offset}"

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        """The rows W[p + offset]."""
        check_type("positions", positions, Positions)
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        row = table_index(positions, "OffsetLearned", self.max_positions - self.offset)
        return self.weight[self.offset :][row].to(dtype)


class DividedALiBi(ALiBi):
    """ALiBi with slopes divided by sqrt(head_dim), since Falcon divides the sum of product and bias by it.

    Formula: (q_i . k_j - m_h (p_i - p_j)) / sqrt(d). Source: the code of Falcon in transformers, which also rounds the
    bias to bfloat16; here it is exact.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__(num_heads)
        self.head_dim = whole("head_dim", head_dim)

    @property
    def slopes(self) -> tuple[float, ...]:
        """m_h / sqrt(d) for every head."""
        return tuple(slope / math.sqrt(self.head_dim) for slope in super().slopes)

    def _bias(self, r: Tensor) -> Tensor:
        return super()._bias(r) / math.sqrt(self.head_dim)
