"""The distance beyond which keys have a negligible weight because of a decaying bias, for any queries and keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from posenc.encoding.pieces import Bias, Fold, Meeting, Piece

SKIP_BELOW = 2**-32  # a 256th of float32 rounding


def skipped_by_default(dtype: torch.dtype) -> float:
    """The default of ``skip_below``: a 256th of the rounding of the scores' dtype."""
    return 2**-61 if dtype == torch.float64 else SKIP_BELOW


def skip_threshold(skip_below: float, keys: int) -> float:
    """The threshold relative to a row's log-sum-exp below which scores may be skipped: if all ``keys`` have it, their
    weights sum to ``skip_below``. -inf if nothing may be skipped."""
    return math.log(skip_below) - math.log(keys) if skip_below > 0 else -math.inf


def horizon(
    pieces: Sequence[Piece], length: int, query_norm: float, key_norm: float, scale: float, skip_below: float
) -> Int[Tensor, " heads"]:
    """The smallest W such that keys at distance W and more have at most ``skip_below`` of a row's weight, for every
    head; ``length`` if there is none, or a piece has no known bound.

    The score of a query's own key is at least b(0) - scale |q| |k|, and no score exceeds b(-d) + scale |q| |k|.
    """
    spread = 2 * scale * query_norm * key_norm
    back = -torch.arange(length)
    bias = torch.zeros(1, length, dtype=torch.float64)
    for piece in pieces:
        if isinstance(piece, Bias) and piece.distance.axis == 0 and piece.distance.axes == 1:
            reach = length if piece.distance.reach is None else piece.distance.reach[0]
            bias = bias + piece.at(back.clamp(min=1 - reach)).detach().double().cpu()
        elif isinstance(piece, Meeting) and piece.distance.axis == 0 and piece.feature is None:
            reach = length if piece.distance.reach is None else piece.distance.reach[0]
            longest = piece.at(back.clamp(min=1 - reach)).detach().norm(dim=-1).amax(-1, keepdim=True).double().cpu()
            more = 0.0 if piece.shift is None else piece.shift.detach().norm(dim=-1, keepdim=True).double().cpu()
            met = query_norm if piece.side == "query" else key_norm
            spread = spread + 2 * scale * (met + more) * longest
        elif isinstance(piece, Fold) and piece.key is None and piece.query is not None and piece.query.size(2) == 1:
            u = piece.query.detach()[0, :, 0].norm(dim=-1, keepdim=True).double().cpu()
            spread = spread + 2 * scale * u * key_norm
        else:
            return torch.full((1,), length)
    counts = ~(bias - bias[:, :1] < skip_threshold(skip_below, length) - spread)
    last = torch.where(counts, torch.arange(length), 0).amax(-1)
    return last + 1
