"""How far a query can see where scores fade with the distance, whatever queries and keys hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from posenc.encoding.pieces import Bias, Fold, Meeting, Piece

SKIP_BELOW = 2**-32  # a 256th of the rounding of float32


def skipped_by_default(dtype: torch.dtype) -> float:
    """The share of a row's weight that is left out where nobody says: a 256th of the rounding of its scores."""
    return 2**-61 if dtype == torch.float64 else SKIP_BELOW


def faint(skip_below: float, keys: int) -> float:
    """How far below its row's log-sum-exp a score may lie, at most, and still count: if all ``keys`` lie as low, their
    weights sum to ``skip_below``. -inf where nothing may be left out."""
    return math.log(skip_below) - math.log(keys) if skip_below > 0 else -math.inf


def horizon(
    pieces: Sequence[Piece], length: int, query_norm: float, key_norm: float, scale: float, skip_below: float
) -> Int[Tensor, " heads"]:
    """The least W for which keys W places back and further weigh no more than ``skip_below`` of a row, for every head;
    ``length`` where there is none, or a piece is not known to have one.

    Its own key gives a row a score of b(0) - scale |q| |k| or more, and no key gives more than b(-d) + scale |q| |k|.
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
    counts = ~(bias - bias[:, :1] < faint(skip_below, length) - spread)
    last = torch.where(counts, torch.arange(length), 0).amax(-1)
    return last + 1
