"""Folds score terms into query and key, so that attention's own inner product computes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.encoding.claims import coordinates
from posenc.encoding.pieces import Fold, Meeting, Piece
from posenc.lowering.block import Block
from posenc.lowering.distances import check
from posenc.lowering.forms import added_to_query, check_width, meets


def fold(pieces: Sequence[Piece], block: Block) -> tuple[Tensor, Tensor, tuple[Piece, ...]]:
    """Query and key whose inner product includes as many pieces as possible, and the remaining pieces.

    All vectors added to the query are folded. Vectors added to the key are folded only if none is added to the query,
    since their product would be an unwanted cross term. A `Meeting` along one of several axes gets extra channels, one
    for each position along the axis: one-hot in the key, and in the query its score for a key at that position. Nothing
    is folded if a piece does more than add.
    """
    query, key = block.query, block.key
    if not all(piece.adds for piece in pieces):
        return query, key, tuple(pieces)
    left, channels = [], []
    both = [piece for piece in pieces if isinstance(piece, Fold)]
    on_query = any(piece.query is not None for piece in both)
    for piece in pieces:
        if isinstance(piece, Fold) and piece.key is None:
            assert piece.query is not None
            query = query + added_to_query(piece, piece.query, block).to(query.dtype)
        elif isinstance(piece, Fold) and piece.key is not None and piece.query is None and not on_query:
            check_width(piece.key, query, piece.scheme)
            key = key + piece.key.to(key.dtype)
        elif isinstance(piece, Meeting) and (places := _places(piece, block)) is not None:
            channels.append((piece, *places))
        else:
            left.append(piece)
    for piece, low, count in channels:
        more, where = _channels(piece, block, low, count)
        query = torch.cat((query, more.to(query.dtype)), -1)
        key = torch.cat((key, where.to(key.dtype).expand(*key.shape[:3], -1)), -1)
    return query, key, tuple(left)


def _places(piece: Meeting, block: Block) -> tuple[int, int] | None:
    """The first coordinate and their number, if keys have few positions along one of several axes; else None."""
    distance = piece.distance
    several = block.key_positions.coords.dim() == 3 and distance.axis is not None and distance.reach is not None
    if piece.side == "key" or piece.feature is not None or not several or block.query.dtype == torch.float16:
        return None
    if block.scale == 0:  # all channels of the query would be 0
        return None
    assert distance.reach is not None
    bounds, period = block.key_positions.layout.bounds, 2 * distance.reach[0] - 1
    if bounds is not None and bounds[1] - bounds[0] < period:
        return int(bounds[0]), int(bounds[1] - bounds[0] + 1)
    return 0, period  # positions modulo the period, within which distances from a query are distinct


def _channels(piece: Meeting, block: Block, low: int, count: int) -> tuple[Tensor, Tensor]:
    distance = piece.distance
    assert distance.reach is not None
    check(distance, block)
    x, y = (coordinates(distance, p)[:, None] for p in (block.query_positions, block.key_positions))
    reach = distance.reach[0]
    period = 2 * reach - 1
    entries = torch.arange(1 - reach, reach, device=x.device)
    meeting = meets(piece, block) / block.scale
    vectors = block.of_heads(piece.at(entries), distance.scheme)
    check_width(vectors, meeting, distance.scheme)
    products = meeting @ vectors.to(meeting.dtype).mT
    place = torch.arange(count, device=x.device) + low
    index = (place - x[..., None] + reach - 1).remainder(period)
    more = products.gather(-1, index.expand(*products.shape[:3], count))
    return more, ((y[..., None] - low).remainder(period) == place - low).to(block.dtype)
