"""What scalings share: mscale, and functions of theta (pairs,), stretched frequencies and ramps between two of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def ntk(theta: Tensor, stretch: Any) -> Tensor:
    """theta_k stretch^(-2k/(d-2)): the first pair is unchanged, the last is divided by ``stretch``."""
    k = torch.arange(theta.numel(), dtype=theta.dtype, device=theta.device)
    return theta * torch.pow(stretch, -k / (theta.numel() - 1))


def blend(theta: Tensor, others: Tensor, kept: Tensor) -> Tensor:
    """kept theta + (1 - kept) others."""
    return kept * theta + (1 - kept) * others


def turns(theta: Tensor, length: int) -> Tensor:
    """The number of full rotations of each pair over the length: L/wavelength = L theta/(2 pi)."""
    return length * theta / (2 * math.pi)


def ends(theta: Tensor, length: int, fast: float, slow: float, truncate: bool = True) -> tuple[Tensor, Tensor]:
    """The indices of the pairs that turn ``fast`` and ``slow`` times over the length: low and high of `YaRN`.

    The base is computed from the first two pairs.
    """
    per_index = torch.log(theta[0] / theta[1])  # 2 ln base / d
    low, high = (math.log(length / (2 * math.pi * n)) / per_index for n in (fast, slow))
    if truncate:
        low, high = low.floor(), high.ceil()
    return low.clamp(min=0), high.clamp(max=2 * theta.numel() - 1)


def mscale(log_factor: Any, m: float) -> Any:
    """0.1 m ln s + 1, as in YaRN and DeepSeek's code, for ln s, a number or a tensor."""
    return 0.1 * m * log_factor + 1


def by_index(theta: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """1 - clip((k - low) / (high - low), 0, 1): from 1 for pairs up to low to 0 for those from high on.

    Where low is not below high, it is 1 up to low and 0 beyond.
    """
    k = torch.arange(theta.numel(), dtype=theta.dtype, device=theta.device)
    return 1 - ((k - low) / torch.where(low < high, high - low, 0.001)).clamp(0, 1)
