"""Keys that cannot be seen, whatever the contents: what a score that fades with distance lets be left out."""

from __future__ import annotations

import math

import torch

SKIP_BELOW = 2**-32  # a 256th of the rounding of float32


def skipped_by_default(dtype: torch.dtype) -> float:
    """The share of a row's weight that is left out where nobody says: a 256th of the rounding of its scores."""
    return 2**-61 if dtype == torch.float64 else SKIP_BELOW


def faint(skip_below: float, keys: int) -> float:
    """How far below its row's log-sum-exp a score may lie, at most, and still count: if all ``keys`` lie as low, their
    weights sum to ``skip_below``. -inf where nothing may be left out."""
    return math.log(skip_below) - math.log(keys) if skip_below > 0 else -math.inf
