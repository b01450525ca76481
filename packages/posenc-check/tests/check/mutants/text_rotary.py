"""Rotations as people write them: Llama's cos and sin, GPT-J's table, NeoX's share of the channels, Meta's complex."""

from typing import Any

import torch
from torch import Tensor

# rows of the tables


def rates(dim: int, base: float) -> Tensor:
    """base^(-2c/dim), in float32 as they all do."""
    return 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


# -- bugs -------------------------------------------------------------------------------------------------------------


CORRECT: tuple[Any, ...] = ()
MUTANTS: tuple[Any, ...] = ()
