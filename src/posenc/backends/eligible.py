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
    """Why a call cannot be run from its tiles by a backend that lays out no line of distances; None where it can."""
    if call.attn_mask is not None or call.dropout_p:
        return "it takes no attn_mask and no dropout"
    if call.is_forward_mode:
        return "it has no forward-mode derivative"
    if call.scale <= 0:
        return "it hides keys before it scales, so the scale must be positive"
    if 0 in (*call.query.shape, *call.key.shape, *call.value.shape):
        return "there is nothing to attend to"
    if call.layouts is None:
        return "the layout of the positions is not known: use positions.with_layout(), or positions made by name"
    reason = _refused_piece(call)
    if reason is not None:
        return reason
    if goes_by_distance(call) and not _has_distances(call):
        return "a term goes by distance, and coordinates are not known to rise by one with the tokens"
    return None


def _refused_piece(call: Call) -> str | None:
    functions = [n for n, piece in enumerate(call.pieces) if isinstance(piece, Function)]
    for n, piece in enumerate(call.pieces):
        if isinstance(piece, Row):
            return "a score term needs whole rows of scores"
        if isinstance(piece, Bias) and piece.hides:
            return "a score term hides keys by itself"
        distance = getattr(piece, "distance", None)
        if distance is not None and distance.axis != 0:
            return "a score term goes by several coordinates"
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
                return "a score term that is a function of the score stands between others"
            if not all(_is_named(f) for f in (piece.apply, piece.derivative) if f is not None):
                return "a score term's function is not one of a module, so that an operator cannot find it by its name"
    if any(isinstance(p, Fold) and p.key is not None for p in call.pieces):
        if any(isinstance(p, Fold) and p.query is not None for p in call.pieces):
            return "vectors are added to the query and to the key, and their product is a term that nobody asked for"
        if functions[:1] == [0] and len(call.pieces) > 1:
            return "a score term must see the score before a vector is added to the key"
    if functions[:1] == [0] and any(isinstance(p, Fold) for p in call.pieces):
        return "a score term must see the score before a vector is added to the query"
    if sum(isinstance(p, Clock) for p in call.pieces) > 1:
        return "there is more than one clock"
    return None


def name_of(function: Callable[..., Any]) -> str:
    """A function of a module by its name, "module:function"."""
    return f"{function.__module__}:{function.__qualname__}"


def by_name(name: str) -> Callable[..., Any]:
    """The inverse of `name_of`. ValueError where there is none of that name."""
    module, _, qualname = name.partition(":")
    found: Any = reduce(getattr, qualname.split("."), importlib.import_module(module))
    return found


def _is_named(function: Callable[..., object]) -> bool:
    try:
        return by_name(name_of(function)) is function
    except (AttributeError, ImportError):
        return False


# What torch.compiler.assume_constant_result does, which imports the whole compiler: a graph keeps what these say.
_is_named._dynamo_marked_constant = name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def goes_by_distance(call: Call) -> bool:
    return any(getattr(term, "distance", None) is not None for term in (*call.pieces, *call.values))


def _has_distances(call: Call) -> bool:
    assert call.layouts is not None
    return all(span.line is not None for layout in call.layouts for row in layout.rows or () for span in row)


def is_spread(call: Call) -> bool:
    """Whether the distances of pairs reach over more than a table of them may hold, as on both sides of a gap."""
    assert call.layouts is not None
    query, key = call.layouts
    if query.run is not None and key.run is not None:
        return False  # of unbroken texts there are as many as tokens
    most = ENTRIES_PER_TOKEN * (call.query.size(2) + call.key.size(2))
    spread = [layout.bounds[1] - layout.bounds[0] for layout in (query, key) if layout.bounds is not None]
    if len(spread) == 2 and sum(spread) < most:
        return False
    least, greatest = reach_of(call)
    return greatest - least >= most


def reach_of(call: Call) -> tuple[int, int]:
    """The least and the greatest distance of any pair that may be seen."""
    assert call.layouts is not None
    query, key = (layout.run for layout in call.layouts)
    # The spans of a grid are no lines.
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
    """The same without a comparison of lengths, which a compiler may not know."""
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
    """What a term gives at these distances, (heads or 1, distances[, width]), in the precision of scores."""
    reach = None if distance.reach is None else distance.reach[0] - 1
    entries = r if reach is None else r.clamp(-reach, reach)  # checked: only pairs that nothing may see lie further
    return block.of_heads(at(entries), distance.scheme).to(block.dtype)  # type: ignore[operator]
