"""Tables for kernels of terms that depend on the differences of two coordinates, such as those of image patches.

A bias b_h(dr, dc) is a plane of numbers for every head. The products of a query with vectors by one of the differences
are a number per difference, computed by a matrix product before the kernel runs. The kernel adds the query's number for
the key's row, and the one for its column.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from posenc.backends.call import Call
from posenc.backends.eligible import line_of
from posenc.encoding.pieces import Bias, Meeting, Piece
from posenc.lowering.block import Block
from posenc.lowering.distances import ENTRIES_PER_TOKEN
from posenc.lowering.forms import check_width, meets
from posenc.positions.layout import distance_bounds

ENTRIES_OF_PLANE = 64  # for each token: of 64 x 64 patches there are two, of 16 x 256 thirty-two
FEW_ENTRIES = 2**14


def refused_plane(call: Call) -> str | None:
    """Why the planar pieces of a call cannot be tables; None if they can."""
    pieces = [piece for piece in call.pieces if piece.is_planar]
    if not pieces:
        return None
    for positions in (call.query_positions, call.key_positions):
        coords = positions.coords
        if coords.dim() != 3 or coords.size(2) != 2 or coords.dtype != torch.int64:
            return "a score term depends on several coordinates, which are not two integers"
    reached = _reach(call, pieces)
    if reached is None:
        return "a score term depends on several coordinates, whose bounds are unknown"
    entries, tokens = reached[1] - reached[0] + 1, call.query.size(2) + call.key.size(2)
    is_plane = any(isinstance(piece, Bias) for piece in pieces)
    if (is_plane and entries**2 > max(FEW_ENTRIES, ENTRIES_OF_PLANE * tokens)) or entries > ENTRIES_PER_TOKEN * tokens:
        return "a term needs a table of all differences of two coordinates, whose range is too large"
    return None


def _reach(call: Call, pieces: Sequence[Piece]) -> tuple[int, int] | None:
    """The lowest and highest difference of any coordinate, key minus query, with an entry; None: unknown."""
    bounds = distance_bounds(call.query_positions.layout, call.key_positions.layout)
    if bounds is None:
        return None
    low, high = map(int, bounds)
    reaches = [piece.distance.reach for piece in pieces if piece.distance is not None]
    if all(reach is not None for reach in reaches):
        most = max(side - 1 for reach in reaches for side in reach or ())
        low, high = max(low, -most), min(high, most)
    return (low, high) if low <= high else (0, 0)  # all pairs beyond the reach are masked


def tables_of_plane(pieces: Sequence[Bias | Meeting], call: Call, block: Block) -> tuple[int, dict[str, Tensor]]:
    """The difference of the first entry, and the tensors of planar pieces by name: "plane" (heads, entries, entries),
    "by_row" and "by_column" (batch, heads, queries, entries), and the coordinates (rows, tokens, 2)."""
    heads = call.query.size(1)
    reached = _reach(call, pieces)
    assert reached is not None
    r = torch.arange(reached[0], reached[1] + 1, device=call.query.device)
    found: dict[str, list[Tensor]] = {"plane": [], "by_row": [], "by_column": []}
    for piece in pieces:
        distance = piece.distance
        if isinstance(piece, Bias) and distance.axis is None:
            both = torch.stack(torch.meshgrid(r, r, indexing="ij"), -1)  # all pairs of differences
            found["plane"].append(line_of(piece.at, distance, block, both).expand(heads, -1, -1))
        elif isinstance(piece, Bias):
            line = line_of(piece.at, distance, block, r)
            line = line[:, :, None] if distance.axis == 0 else line[:, None]
            found["plane"].append(line.expand(heads, len(r), len(r)))
        else:
            vectors = line_of(piece.at, distance, block, r)
            meeting = meets(piece, block)
            check_width(vectors, meeting, distance.scheme)
            products = (meeting @ vectors.mT).expand(call.query.size(0), heads, -1, -1)
            found["by_row" if distance.axis == 0 else "by_column"].append(products.to(call.dtype))
    tensors = {name: reduce(torch.add, terms) for name, terms in found.items() if terms}
    tensors["query_place"], tensors["key_place"] = call.query_positions.coords, call.key_positions.coords
    return reached[0], tensors
