"""What the backends that compute tile by tile, native and triton, ask of a call and of its terms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import compat
from posenc.arguments import one_or
from posenc.backends.backend import Unless, never
from posenc.backends.call import Call
from posenc.encoding.pieces import Bias, Clock, Distance, Fold, Function, Meeting, Piece, Row, Term, Value
from posenc.lowering.block import Block
from posenc.lowering.distances import ENTRIES_PER_TOKEN
from posenc.positions.layout import Span, distance_bounds
from posenc.positions.tiles import distances, tiles

# -- of a call --------------------------------------------------------------------------------------------------------


def inputs(call: Call) -> str | None:
    """Why a call cannot be computed from its tiles, whatever its terms."""
    if call.attn_mask is not None or call.dropout_p:
        return "it does not support attn_mask and dropout"
    if call.is_forward_mode:
        return "it has no forward-mode derivative"
    if compat.is_transformed():
        return "its operator does not support torch.func transforms"
    if call.scale <= 0:
        return "it masks before it scales, so the scale must be positive"
    if 0 in (*call.query.shape, *call.key.shape, *call.value.shape):
        return "an input is empty"
    if call.layouts is None:
        return "the layout of the positions is unknown: use positions.with_layout(), or a constructor of Positions"
    return None


def order(call: Call) -> str | None:
    """Why terms of supported kinds cannot be computed in this order, or so many of them."""
    folds = [piece for piece in call.pieces if isinstance(piece, Fold)]
    on_key = any(piece.key is not None for piece in folds)
    changing = [n for n, piece in enumerate(call.pieces) if _changes(piece)]
    if len(changing) > 1 or any(n not in (0, len(call.pieces) - 1) for n in changing):
        return "a score term that is a function of the score is between other terms"
    if on_key and any(piece.query is not None for piece in folds):
        return "vectors are added to both query and key, and their product is an unwanted cross term"
    if on_key and changing[:1] == [0] and len(call.pieces) > 1:
        return "a score term needs the score before a vector is added to the key"
    if changing[:1] == [0] and folds:
        return "a score term needs the score before a vector is added to the query"
    if sum(isinstance(piece, Clock) for piece in call.pieces) > 1:
        return "there is more than one cumulative feature"
    return None


def _changes(piece: Piece) -> bool:
    """Whether it is a function of the score, and not a piecewise linear one of both coordinates."""
    return isinstance(piece, Function) and not piece.reads_coordinates


def lines_known(call: Call) -> str | None:
    """Why a call's distances are unknown."""
    assert call.layouts is not None
    if distances_of(call) and any(s.line is None for layout in call.layouts for row in layout.rows or () for s in row):
        return "a term depends on distance, and coordinates are not known to increase by one with the tokens"
    return None


LONG = "a term needs a table of all distances, whose range is too large"


def long_tables(call: Call) -> str | None:
    """Why the table of a term that is not constant at large distances cannot be stored."""
    is_long = any(distance.tail != "constant" for distance in distances_of(call)) and is_spread(call)
    return LONG if is_long else None


# -- of a term --------------------------------------------------------------------------------------------------------


def _differs_between_queries(piece: Fold, call: Call) -> bool:
    query = piece.query
    return query is not None and not (query.dim() == 4 and query.size(0) == query.size(2) == 1)


def _differs_between_heads(piece: Fold, call: Call) -> bool:
    return piece.key is not None and not one_or(piece.key.size(1), call.key.size(1))


NO_SEGMENTS = Unless(
    "a score term depends on segments", lambda term, call: term.distance is not None and term.distance.axis == "segment"
)
ONE_AXIS = Unless("a score term depends on several coordinates", lambda term, call: term.is_planar)
HIDES = Unless("a score term masks keys", lambda piece, call: piece.hides)
SAME_FOR_QUERIES = Unless("a vector added to the query differs from token to token", _differs_between_queries)
SAME_FOR_GROUPS = Unless("a vector added to the key differs from query head to query head", _differs_between_heads)
BY_DISTANCE = Unless("a score term is a function of both coordinates", lambda piece, call: piece.reads_coordinates)
NO_ROWS = never("a score term needs whole rows of scores")

KINDS: dict[type[Term], tuple[Unless, ...]] = {
    Bias: (HIDES, ONE_AXIS),
    Meeting: (NO_SEGMENTS, ONE_AXIS),
    Fold: (SAME_FOR_QUERIES, SAME_FOR_GROUPS),
    Clock: (),
    Function: (ONE_AXIS, BY_DISTANCE),
    Row: NO_ROWS,
    Value: (ONE_AXIS,),
}
"""What tiles can do with each kind; a backend may do more, or less."""


# -- distances --------------------------------------------------------------------------------------------------------


def distances_of(call: Call) -> list[Distance]:
    """Those of lines of distances: of all terms that are not planar, and of piecewise linear functions."""
    found = [term.distance for term in (*call.values, *call.pieces) if not term.is_planar]
    broken = [Distance(p.scheme) for p in call.pieces if isinstance(p, Function) and p.reads_coordinates]
    return [distance for distance in found if distance is not None] + broken


def is_spread(call: Call) -> bool:
    """Whether the range of distances is too large for a table, as on both sides of a gap."""
    assert call.layouts is not None
    query, key = call.layouts
    if query.run is not None and key.run is not None:
        return False  # contiguous texts have as many distances as tokens
    most = ENTRIES_PER_TOKEN * (call.query.size(2) + call.key.size(2))
    bounds = distance_bounds(query, key)
    if bounds is not None and bounds[1] - bounds[0] < most:
        return False
    least, greatest = reach_of(call)
    return greatest - least >= most


def reach_of(call: Call) -> tuple[int, int]:
    """The lowest and highest distance of any unmasked pair."""
    assert call.layouts is not None
    query, key = (layout.run for layout in call.layouts)
    # The spans of a grid have no line.
    if (
        torch.compiler.is_compiling()
        and query is not None
        and key is not None
        and query.line is not None
        and key.line is not None
    ):
        return _reach_of_runs(query, key, call)
    found = list(tiles(*call.layouts, call.visibility, call.query.size(0)))
    reached = distances(found)
    assert reached is not None or not distances_of(call)
    return reached or (0, 0)


def _reach_of_runs(query: Span, key: Span, call: Call) -> tuple[int, int]:
    """The same without comparing lengths, which may be symbolic."""
    assert query.line is not None
    assert key.line is not None
    m, n = call.query.size(2), call.key.size(2)
    apart = key.line - query.line
    lowest, highest = apart - (m - 1), apart + n - 1
    if call.visibility.furthest is not None:
        level = (key.line - key.order) - (query.line - query.order)
        highest = compat.sym_min(highest, level + call.visibility.furthest)
    return lowest, highest


def line_of(at: Callable[[Tensor], Tensor], distance: Distance, block: Block, r: Tensor) -> Tensor:
    """The values of a term at these distances, (heads or 1, distances[, width]), in the scores' dtype."""
    return block.of_heads(at(distance.clamped(r)), distance.scheme).to(block.dtype)
