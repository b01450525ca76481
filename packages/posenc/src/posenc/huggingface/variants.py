"""Variants of the catalog's schemes in single models of transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from posenc.arguments import check_choice, check_type, whole
from posenc.positions.positions import Positions
from posenc.positions.tiles import table_index
from posenc.rotation.scalings import _Scaling
from posenc.schemes.alibi import ALiBi
from posenc.schemes.learned import Learned
from posenc.schemes.sinusoidal import Sinusoidal


class OffsetLearned(Learned):
    """A learned table whose first rows are not positions: x_i <- x_i + W[p_i + offset].

    In OPT position 0 is row 2, in RoBERTa row pad_token_id + 1. ``max_positions`` is the number of rows of the table,
    of which max_positions - offset are positions.

    Errors: PositionError for a position outside the table, and as for `Learned`.
    Source: the code of OPT and of RoBERTa in transformers.
    """

    def __init__(self, max_positions: int, dim: int, offset: int) -> None:
        super().__init__(max_positions, dim)
        self.offset = whole("offset", offset, 0, self.max_positions - 1)

    def extra_repr(self) -> str:
        """The arguments, with the offset as a keyword."""
        return f"{self.max_positions}, {self.dim}, offset={self.offset}"

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        """The rows W[p + offset]."""
        check_type("positions", positions, Positions)
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        row = table_index(positions, "OffsetLearned", self.max_positions - self.offset)
        return self.weight[self.offset :][row].to(dtype)


def table_of(rows: int, dim: int, offset: int = 0) -> Learned:
    """A learned table, of which the first rows may be no positions."""
    return OffsetLearned(rows, dim, offset) if offset > 0 else Learned(rows, dim)


class OffsetSinusoidal(Sinusoidal):
    """tensor2tensor's sinusoids whose first position is not 0: x_i <- x_i + P[p_i + offset].

    In M2M100 and in fairseq's models position 0 is pad_token_id + 1. Errors: as for `Sinusoidal`.
    Source: the code of M2M100 in transformers.
    """

    def __init__(self, dim: int, offset: int) -> None:
        super().__init__(dim, layout="tensor2tensor")
        self.offset = whole("offset", offset, 0)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{self.dim}, offset={self.offset}"

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        """The vectors P[p + offset]."""
        check_type("positions", positions, Positions)
        return super().table(positions.with_coords(positions.coords + self.offset), dtype)


class CosineSinusoidal(Sinusoidal):
    """tensor2tensor's sinusoids with cosines before sines: x_i <- x_i + (cos p theta, sin p theta).

    Errors: as for `Sinusoidal`. Source: the code of MusicGen in transformers.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, layout="tensor2tensor")

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        """The vectors P[p]."""
        return super().table(positions, dtype).roll(self.dim // 2, -1)

    def linear_map(self, offset: Sequence[int | float]) -> Float64[Tensor, "dim dim"]:
        """M with P[p + offset] = M P[p]."""
        return super().linear_map(offset).roll((self.dim // 2, self.dim // 2), (0, 1))


@dataclass(frozen=True, repr=False)
class Frequencies(_Scaling):
    """The frequencies themselves, whatever the base: those of a model that were measured, or that turn the other way.

    Formula: theta'_k = theta_k and the factor as given. Errors: ValueError for another number of pairs.
    """

    theta: tuple[float, ...]
    cos_factor: float = 1.0

    def __call__(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, " pairs"], float]:
        if theta.numel() != len(self.theta):
            raise ValueError(f"Frequencies must be of {theta.numel()} pairs, got {len(self.theta)}")
        return torch.tensor(self.theta, dtype=torch.float64, device=theta.device), self.cos_factor


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
