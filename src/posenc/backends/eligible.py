"""Whether a call can be computed tile by tile from its layouts, as the native, triton and tiled backends do."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from posenc.arguments import one_or
from posenc.backends.call import Call
from posenc.encoding.pieces import Bias, Clock, Distance, Fold, Function, Row
from posenc.lowering.block import Block
from posenc.lowering.forms import ENTRIES_PER_TOKEN
from posenc.positions.layout import Span
from posenc.positions.tiles import distances, tiles


def unfit(call: Call) -> str | None:
    """Why a backend that needs no table of all distances cannot run a call from its tiles; None if it can."""
    if call.attn_mask is not None or call.dropout_p:
        return "it does not support attn_mask and dropout"
    if call.is_forward_mode:
        return "it has no forward-mode derivative"
    if call.scale <= 0:
        return "it masks before it scales, so the scale must be positive"
    if 0 in (*call.query.shape, *call.key.shape, *call.value.shape):
        return "an input is empty"
    if call.layouts is None:
        return "the layout of the positions is unknown: use positions.with_layout(), or a constructor of Positions"
    reason = _refused_piece(call)
    if reason is not None:
        return reason
    if goes_by_distance(call) and not _has_distances(call):
        return "a term depends on distance, and coordinates are not known to increase by one with the tokens"
    return None


def _refused_piece(call: Call) -> str | None:
    functions = [n for n, piece in enumerate(call.pieces) if isinstance(piece, Function)]
    for n, piece in enumerate(call.pieces):
        if isinstance(piece, Row):
            return "a score term needs whole rows of scores"
        if isinstance(piece, Bias) and piece.hides:
            return "a score term masks keys"
        distance = getattr(piece, "distance", None)
        if distance is not None and distance.axis != 0:
            return "a score term depends on several coordinates"
        if (
            isinstance(piece, Fold)
            and piece.query is not None
            and not (piece.query.dim() == 4 and piece.query.size(0) == piece.query.size(2) == 1)
        ):
            return "a vector added to the query differs from token to token"
        if isinstance(piece, Fold) and piece.key is not None and not one_or(piece.key.size(1), call.key.size(1)):
            return "a vector added to the key differs from query head to query head"
        if isinstance(piece, Function):
            if piece.reads_coordinates:
                return "a score term is a function of both coordinates"
            if len(functions) > 1 or n not in (0, len(call.pieces) - 1):
                return "a score term that is a function of the score is between other terms"
            if not all(_is_named(f) for f in (piece.apply, piece.derivative) if f is not None):
                return "a score term's function is not at module level, so an operator cannot find it by name"
    if any(isinstance(p, Fold) and p.key is not None for p in call.pieces):
        if any(isinstance(p, Fold) and p.query is not None for p in call.pieces):
            return "vectors are added to both query and key, and their product is an unwanted cross term"
        if functions[:1] == [0] and len(call.pieces) > 1:
            return "a score term needs the score before a vector is added to the key"
    if functions[:1] == [0] and any(isinstance(p, Fold) for p in call.pieces):
        return "a score term needs the score before a vector is added to the query"
    if sum(isinstance(p, Clock) for p in call.pieces) > 1:
        return "there is more than one cumulative feature"
    return None


def name_of(function: Callable[..., Any]) -> str:
    """The name of a module-level function, "module:function"."""
    return f"{function.__module__}:{function.__qualname__}"


def by_name(name: str) -> Callable[..., Any]:
    """The inverse of `name_of`."""
    module, _, qualname = name.partition(":")
    found: Any = reduce(getattr, qualname.split("."), importlib.import_module(module))
    return found


def _is_named(function: Callable[..., object]) -> bool:
    try:
        return by_name(name_of(function)) is function
    except (AttributeError, ImportError):
        return False


# Same as torch.compiler.assume_constant_result, which would import the whole compiler.
_is_named._dynamo_marked_constant = name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def goes_by_distance(call: Call) -> bool:
    return any(getattr(term, "distance", None) is not None for term in (*call.pieces, *call.values))


def _has_distances(call: Call) -> bool:
    assert call.layouts is not None
    return all(span.line is not None for layout in call.layouts for row in layout.rows or () for span in row)


def is_spread(call: Call) -> bool:
    """Whether the range of distances is too large for a table, as on both sides of a gap."""
    assert call.layouts is not None
    query, key = call.layouts
    if query.run is not None and key.run is not None:
        return False  # contiguous texts have as many distances as tokens
    most = ENTRIES_PER_TOKEN * (call.query.size(2) + call.key.size(2))
    spread = [layout.bounds[1] - layout.bounds[0] for layout in (query, key) if layout.bounds is not None]
    if len(spread) == 2 and sum(spread) < most:
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
    assert reached is not None or not goes_by_distance(call)
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
        highest = torch.sym_min(highest, level + call.visibility.furthest)
    return lowest, highest


def line_of(at: object, distance: Distance, block: Block, r: Tensor) -> Tensor:
    """The values of a term at these distances, (heads or 1, distances[, width]), in the scores' dtype."""
    reach = None if distance.reach is None else distance.reach[0] - 1
    entries = r if reach is None else r.clamp(-reach, reach)  # was checked, so only masked pairs are clamped
    return block.of_heads(at(entries), distance.scheme).to(block.dtype)  # type: ignore[operator]
