"""The native backend: posenc's CPU kernel for terms by distance, one parallel loop over independent tasks."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from posenc.backends.call import Backend, Call
from posenc.backends.native import operator
from posenc.backends.native.bounds import bounds_of
from posenc.backends.native.library import missing, multiplies_bfloat16
from posenc.backends.operands import FUNCTIONS, Given, unknown_piece
from posenc.backends.plane import is_planar, refused_plane
from posenc.backends.tiled.backend import TILED
from posenc.encoding.pieces import Bias, Distance, Function, Meeting, Piece


def _refuses(call: Call) -> str | None:
    if call.query.device.type != "cpu":
        return "it runs only on the CPU"
    of_line = [piece for piece in call.pieces if not is_planar(piece)]
    if sum(isinstance(piece, Function) and piece.broken is not None for piece in of_line) > 1:
        return "there is more than one piecewise linear function of both coordinates"
    by_tiles = tuple(_for_tiles(piece) for piece in of_line)
    lines = replace(call, pieces=by_tiles)
    if len(by_tiles) < len(call.pieces) and any(isinstance(piece, Function) for piece in by_tiles):
        return "a function of the score is combined with terms of several coordinates"
    return (
        refused_plane(call)
        or TILED.refuses(lines)
        or unknown_piece(lines, FUNCTIONS, keys_meet=True)
        or missing(call.dtype)
    )


def _for_tiles(piece: Piece) -> Piece:
    """The piece for the tiled backend's checks: the kernel supports biases of -inf, and looks up a piecewise linear
    function like a bias."""
    if isinstance(piece, Bias):
        return replace(piece, hides=False)
    if isinstance(piece, Function) and piece.broken is not None:
        return Bias(piece.broken.away, Distance(piece.scheme))
    return piece


def _given(call: Call) -> Given:
    given = Given(call)
    if call.key_norms is not None and given.key is call.key:  # a vector added to the key changes its norm
        given.tensors["key_norms"] = call.key_norms.to(call.dtype)
    return given


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    key, rest = call.key, None if call.kept is None else call.kept.get("native")
    if rest is None:
        given = _given(call)
        key, rest = given.key, (*_arguments(call, given), call.scale, call.skip_below)
        if call.kept is not None and key is call.key and given.is_of_positions:
            call.kept["native"] = rest
    out, lse = torch.ops.posenc.native(*_operands(call, key), *rest)
    return out.to(call.query.dtype), lse if call.return_lse else None


def _arguments(call: Call, given: Given) -> tuple[object, ...]:
    """Those of the operator that are given, with cos and sin where the kernel rotates."""
    if call.turn is None:
        return given.arguments()
    for side, x, turn in (("query", call.query, call.turn.query), ("key", call.key, call.turn.key)):
        for name in ("cos", "sin"):
            angle = getattr(turn, name).to(call.dtype)
            given.tensors[f"{side}_{name}"] = angle.expand(-1, -1, x.size(2), -1)
    return given.arguments([call.turn.query.first, operator.LAYOUTS.index(call.turn.query.layout)])


def keeps_bfloat16(call: Call) -> bool:
    """Whether the kernel multiplies in bfloat16: if the processor supports it, and no key is multiplied with vectors.
    Otherwise half precision is converted to float32."""
    meets = any(isinstance(p, Meeting) and p.side == "key" and not is_planar(p) for p in call.pieces)
    return call.query.dtype == torch.bfloat16 and not meets and multiplies_bfloat16()


def _operands(call: Call, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value in the kernel's dtype."""
    dtype = torch.bfloat16 if keeps_bfloat16(call) else call.dtype
    return call.query.to(dtype), key.to(dtype), call.value.to(dtype)


@torch.no_grad()
def leaves_out(call: Call) -> bool:
    """Whether the kernel skips keys below ``skip_below`` in this call without reading them."""
    given = _given(call)
    query, key, _ = _operands(call, given.key)
    return len(bounds_of(query, key, given.tensors, given.function, call.scale, call.skip_below)) > 0


NATIVE = Backend("native", refuses=_refuses, run=_run, turns=True)
