"""The distance beyond which keys have a negligible weight because of a decaying bias, for any queries and keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from posenc.encoding.pieces import Piece

SKIP_BELOW = 2**-32  # a 256th of float32 rounding


def skipped_by_default(dtype: torch.dtype) -> float:
    """The default of ``skip_below``: a 256th of the rounding of the scores' dtype."""
    return 2**-61 if dtype == torch.float64 else SKIP_BELOW


def skip_threshold(skip_below: float, keys: int) -> float:
    """The threshold relative to a row's log-sum-exp below which scores may be skipped: if all ``keys`` have it, their
    weights sum to ``skip_below``. -inf if nothing may be skipped."""
    return math.log(skip_below) - math.log(keys) if skip_below > 0 else -math.inf


def differences(
    pieces: Sequence[Piece], r: Tensor, query_norm: float | Tensor, key_norm: float | Tensor, scale: float
) -> tuple[Tensor, Tensor] | None:
    """For keys at distances r (distances,), of which the first is 0: the bias of each less that of the query's own key,
    (heads or 1, distances), and by how much their scores are greater otherwise at most, (heads or 1, 1). None: unknown.

    Norms may be (heads, 1). The score of a query's own key is at least b(0) - scale |q| |k|, and no score exceeds
    b(r) + scale |q| |k|.
    """
    spread = torch.as_tensor(2 * scale * query_norm * key_norm, dtype=torch.float64)
    bias = torch.zeros(1, len(r), dtype=torch.float64)
    for piece in pieces:
        limits = piece.limits(r, query_norm, key_norm, scale)
        if limits is None:
            return None
        bias, spread = bias + limits[0], spread + limits[1]
    return bias - bias[:, :1], spread


def horizon(
    pieces: Sequence[Piece], length: int, query_norm: float, key_norm: float, scale: float, skip_below: float
) -> Int[Tensor, " heads"]:
    """The smallest W such that keys at distance W and more have at most ``skip_below`` of a row's weight, for every
    head; ``length`` if there is none, or a piece has no known bound.

    See `differences`.
    """
    found = differences(pieces, -torch.arange(length), query_norm, key_norm, scale)
    if found is None:
        return torch.full((1,), length)
    bias, spread = found
    counts = ~(bias < skip_threshold(skip_below, length) - spread)
    last = torch.where(counts, torch.arange(length), 0).amax(-1)
    return last + 1
