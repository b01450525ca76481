"""Tolerances that follow from the precision: how far apart two correct results may be because numbers are rounded."""

import math

import torch
from torch import Tensor


def largest(size: Tensor | float) -> float:
    """The largest finite absolute value of a tensor, at least 1; a number is itself."""
    if not isinstance(size, Tensor):
        return size
    finite = size.detach().double().abs()
    finite = finite[finite.isfinite()]
    return max(1.0, finite.max().item()) if finite.numel() else 1.0


def of_sums(dtype: torch.dtype, terms: float, size: Tensor | float = 1.0, score: float = 1.0) -> float:
    """The tolerance for sums over ``terms`` numbers in all, whose results or terms are as large as ``size``.

    Rounding is off by u = eps/2 relatively. The errors of n additions, of either sign, grow with sqrt(n) u. A score s
    before a softmax is off by s u, which makes its weight off by as much relatively; ``score`` is the largest. 8 is for
    the operations in between.
    """
    return 8 * torch.finfo(dtype).eps / 2 * (score + math.sqrt(terms)) * largest(size)


def of_angles(dtype: torch.dtype, angle: float, size: Tensor | float = 1.0) -> float:
    """The tolerance for numbers as large as ``size`` that are rotated by up to ``angle``, in radians: the frequency and
    its product with the position are rounded, eps/2 each, and so are the cosine and the sine."""
    return torch.finfo(dtype).eps * (angle + 1) * largest(size)
