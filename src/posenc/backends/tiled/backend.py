"""The tiled backend: any combination of pieces by distance, in linear memory, for any layout of the positions."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from posenc.backends.backend import Backend
from posenc.backends.call import Call
from posenc.backends.eligible import (
    KINDS,
    LONG,
    distances_of,
    inputs,
    is_spread,
    line_of,
    lines_known,
    name_of,
    order,
    reach_of,
)
from posenc.backends.tiled import operator as operator
from posenc.encoding.pieces import Bias, Clock, Fold, Function, Meeting
from posenc.lowering.forms import check_width, meets
from posenc.positions.tiles import Tiling, distances, tiles

BANDS = 8  # up to this many band widths of keys, most pairs are near (measured: docs/log.md)


def _long_lines(call: Call) -> str | None:
    """Why a table of all distances, which is needed unless terms are linear from somewhere on, cannot be stored."""
    return LONG if distances_of(call) and is_spread(call) and _learned(call, width_of(call)) is None else None


def width_of(call: Call) -> int | None:
    """W, the distance from which on every term of the call is linear in distance; None if there is none."""
    if call.query.device.type != "cpu":  # no fused kernel here returns its log-sum-exp
        return None
    width = 0
    for piece in (*call.pieces, *call.values):
        if isinstance(piece, Function) or (isinstance(piece, Meeting) and piece.side == "key"):
            return None  # differs from key to key even at large distances
        distance = piece.distance
        if distance is None:
            continue
        if distance.tail is None or distance.reach is not None:
            return None
        # The pair at distance 0 is near, unless the term is linear from there on.
        width = max(width, distance.past if distance.tail == "linear" else max(1, distance.past))
    return width


def has_far_keys(call: Call, width: int) -> bool:
    """Whether there are enough keys beyond W that the fused kernel saves more than its calls cost. True in a compiled
    graph, which serves all lengths."""
    return torch.compiler.is_compiling() or BANDS * width < call.key.size(2)


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    assert call.layouts is not None
    block = call.raw_block()
    heads, dtype, device = call.query.size(1), call.dtype, call.query.device
    width = _learned(call, width_of(call))
    if width is not None and not has_far_keys(call, width) and not is_spread(call):
        width = None
    lowest, highest = reach_of(call) if width is None else (-width - 1, width + 1)
    r = torch.arange(lowest, highest + 1, device=device)

    lines: dict[str, list[Tensor]] = {"bias": [], "vectors": [], "key_vectors": [], "values": [], "shift": []}
    features: list[tuple[Tensor, Tensor]] = []
    key, function = call.key, None
    clocks: dict[str, Tensor] = {}
    for piece in call.pieces:
        if isinstance(piece, Bias):
            lines["bias"].append(line_of(piece.at, piece.distance, block, r).expand(heads, -1))
        elif isinstance(piece, Meeting):
            line = line_of(piece.at, piece.distance, block, r)
            feature = call.query if piece.feature is None else meets(piece, block)
            check_width(line, feature, piece.distance.scheme)
            if piece.feature is not None:
                features.append((feature, line.expand(heads, -1, -1)))
                continue
            lines["vectors" if piece.side == "query" else "key_vectors"].append(line)
            if piece.shift is not None:
                v = block.of_heads(piece.shift.to(dtype), piece.distance.scheme)
                lines["bias"].append((line @ v[..., None])[..., 0].expand(heads, -1) * call.scale)
        elif isinstance(piece, Fold) and piece.key is not None:
            check_width(piece.key, call.query, piece.scheme)
            key = (key + piece.key.to(dtype)).to(key.dtype)
        elif isinstance(piece, Fold) and piece.query is not None:
            check_width(piece.query, call.query, piece.scheme)
            lines["shift"].append(block.of_heads(piece.query[0, :, 0].to(dtype), piece.scheme).expand(heads, -1))
        elif isinstance(piece, Clock):
            clocks = {f"{s}_clock": block.feature(piece.feature, s).expand(-1, heads, -1) for s in ("query", "key")}
        elif isinstance(piece, Function):
            function = piece
    lines["values"] = [line_of(term.vectors, term.distance, block, r) for term in call.values]
    bias, vectors, key_vectors, values, shift = (reduce(torch.add, line) if line else None for line in lines.values())

    slopes = far_bias = far_vectors = far_values = None
    if width is not None:
        is_sloped = any(isinstance(piece, Bias) and piece.distance.tail == "linear" for piece in call.pieces)
        bias, slopes, far_bias = _straightened(bias, width, is_sloped)
        vectors, far_vectors = _counted(vectors)
        values, far_values = _counted(values)
        lowest = -width
    query, meeting = call.query, None  # None: the scaled query
    far_features: list[tuple[Tensor, Tensor]] = []
    is_folded = shift is not None and width is not None  # the fused kernel uses its own query
    if shift is not None and is_folded:
        query, shift = (call.query + shift[:, None]).to(call.query.dtype), None
    if features or (is_folded and vectors is not None):
        if width is not None:
            counted = [(x, *_counted(line)) for x, line in features]
            features = [(x, line) for x, line, _ in counted if line is not None]
            far_features = [(x, far) for x, _, far in counted if far is not None]
        if vectors is not None:
            features.insert(0, (call.query.to(dtype) * call.scale, vectors.expand(heads, -1, -1)))
        meeting, vectors = (torch.cat(part, -1) for part in zip(*features, strict=True))
    coefficients, apply, is_last = None, "", False
    if function is not None:
        apply = " ".join(name_of(f) for f in (function.apply, function.derivative) if f is not None)
        is_last = len(call.pieces) > 1 and call.pieces[-1] is function
        if function.distance is not None:
            distance = function.distance
            given = [block.of_heads(c.to(dtype), distance.scheme).expand(heads, -1) for c in function.coefficients(r)]
            coefficients = torch.stack(given)
    near = [line for line in (bias, vectors, values) if line is not None]
    keeps_right = width is not None and bool(near) and _looks_right(call)
    value = call.value
    if width is not None and torch.is_grad_enabled() and any(line.requires_grad for line in near):
        # The gradient of a table includes distant pairs, for which the fused kernel rounds the output to the inputs'
        # dtype: in half precision its relative error would be 1e-3.
        query, key, value = (x.to(dtype) for x in (query, key, value))
    tables = {"bias": bias, "vectors": vectors, "meeting": meeting, "key_vectors": key_vectors, "values": values}
    tables.update(clocks, coefficients=coefficients, shift=shift)
    present = {name: x for name, x in tables.items() if x is not None}
    out, lse, *_ = torch.ops.posenc.tiled(
        query,
        key,
        value,
        [x.contiguous() for x in present.values()],
        slopes,
        " ".join(present),
        Tiling(*call.layouts, call.visibility).flat(),
        [int(width is None), width or 0, lowest, int(is_last), int(keeps_right)],
        apply,
        call.scale,
        call.skip_below,
    )
    if far_values is not None:
        sees = (lse > -torch.inf)[..., None]
        out = torch.addcmul(out.to(dtype), far_values, sees.to(dtype))
    if far_bias is not None:
        lse = lse + far_bias
    if far_vectors is not None:
        lse = lse + (call.query.to(dtype) @ far_vectors.mT)[..., 0] * call.scale
    for feature, far in far_features:
        lse = lse + (feature @ far.mT)[..., 0]
    return out.to(call.query.dtype), lse if call.return_lse else None


def _learned(call: Call, width: int | None) -> int | None:
    """The width, or None if a linear tail is learned, since the gradient of its slope needs every pair."""
    if width is None or not torch.is_grad_enabled():
        return width
    for piece in call.pieces:
        if isinstance(piece, Bias) and piece.distance.tail == "linear":
            past = piece.distance.past
            ends = torch.arange(past, past + 2, device=call.query.device)
            if piece.at(ends).requires_grad:
                return None
    return width


def _straightened(
    bias: Tensor | None, width: int, is_sloped: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """From a bias at the distances -W - 1 .. W + 1: the near entries -W .. W minus the intercept far to the left; the
    slopes (2, heads), or None; and the intercept, (heads, 1)."""
    if bias is None:
        return None, None, None
    slopes = None
    first = bias[:, 1:2]
    if is_sloped:
        slopes = torch.stack((bias[:, 0] - bias[:, 1], bias[:, -1] - bias[:, -2])).detach()
        first = first - slopes[0][:, None] * width
    return (bias[:, 1:-1] - first if width else None), slopes, first


def _counted(line: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """From vectors at the distances -W - 1 .. W + 1: those at -W .. W minus the first, and the first."""
    if line is None:
        return None, None
    return line[:, 1:-1] - line[:, 1:2], line[:, 1:2]


def _looks_right(call: Call) -> bool:
    """Whether a query attends to a key of a higher coordinate, as causal tokens of equal order do."""
    assert call.layouts is not None
    query, key = (layout.run for layout in call.layouts)
    if query is None or key is None or query.line is None or key.line is None:
        found = distances(list(tiles(*call.layouts, call.visibility, call.query.size(0))))
        return found is None or found[1] > 0
    ahead = (key.line - key.order) - (query.line - query.order)
    return call.visibility.furthest is None or ahead + call.visibility.furthest > 0


TILED = Backend("tiled", _run, KINDS, first=(inputs,), last=(order, lines_known, _long_lines))
