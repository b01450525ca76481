"""The tiled backend: any combination of pieces by distance, in linear memory, for any layout of the positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc import compat
from posenc.backends.backend import Backend
from posenc.backends.call import Call
from posenc.backends.eligible import (
    KINDS,
    LONG,
    distances_of,
    inputs,
    is_spread,
    lines_known,
    name_of,
    order,
    reach_of,
)
from posenc.backends.operands import Given
from posenc.backends.tiled import fused, near_kernels
from posenc.backends.tiled import operator as operator
from posenc.backends.unseen import cleared, in_sight
from posenc.encoding.pieces import Bias, Clock, Distance, Function, Meeting
from posenc.lowering.block import Block
from posenc.positions.tiles import Tiling, distances, tiles

MOSTLY_NEAR = 8  # up to this many times W keys, most pairs are near (docs/decisions/008-near-and-far.md)


def _long_lines(call: Call) -> str | None:
    """Why a table of all distances, which is needed unless terms are linear from somewhere on, cannot be stored."""
    return LONG if distances_of(call) and is_spread(call) and _learned(call, width_of(call)) is None else None


def width_of(call: Call) -> int | None:
    """W, the distance from which on every term of the call is linear in distance; None if there is none."""
    if compat.why_not_fused(call.query) is not None:
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
    return torch.compiler.is_compiling() or MOSTLY_NEAR * width < call.key.size(2)


class _Lines(Given):
    """`Given` with tables that all begin and end at the same distances, and any function of the score."""

    def __init__(self, call: Call, lowest: int, highest: int) -> None:
        self.distances = torch.arange(lowest, highest + 1, device=call.query.device)
        self.lowest, self.apply, self.is_last = lowest, "", 0
        super().__init__(call)

    def _entries(self, distances: Sequence[Distance]) -> tuple[int, Tensor]:
        return self.lowest, self.distances

    def _function(self, piece: Function, block: Block) -> None:
        self.apply = " ".join(name_of(f) for f in (piece.apply, piece.derivative) if f is not None)
        self.is_last = self._is_last(piece)
        if piece.distance is not None:
            heads, scheme, dtype = self.call.query.size(1), piece.distance.scheme, self.call.dtype
            each = [block.of_heads(c.to(dtype), scheme).expand(heads, -1) for c in piece.coefficients(self.distances)]
            self.tensors["coefficients"] = torch.stack(each)

    def lines(self) -> dict[str, Tensor]:
        """The tensors as fields of `Lines`."""
        tensors = dict(self.tensors)
        if "bias" in tensors:
            tensors["bias"] = tensors["bias"][..., 0].expand(self.call.query.size(1), -1)
        return tensors


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    call = cleared(in_sight(call))
    assert call.layouts is not None
    width = _width_to_run(call)
    given = _Lines(call, *(reach_of(call) if width is None else (-width - 1, width + 1)))
    lines, offset = given.lines(), _Offset()
    operands = [call.query, given.key.to(call.key.dtype), call.value]
    if width is not None:
        operands[0] = _shifted(call, lines)
        offset = _taken_off(lines, width, len(_sloped(call)) > 0)
    near = [lines[name] for name in ("bias", "vectors", "values") if name in lines]
    if width is not None and _is_exact(call, lines, near):
        operands = [x.to(call.dtype) for x in operands]
    keeps_right = width is not None and len(near) > 0 and _looks_right(call)
    lowest = given.lowest if width is None else -width
    out, lse, *_ = torch.ops.posenc.tiled(
        *operands,
        [x.contiguous() for x in lines.values()],
        " ".join(lines),
        Tiling(*call.layouts, call.visibility).flat(),
        [int(width is None), width or 0, lowest, given.is_last, int(keeps_right)],
        given.apply,
        call.scale,
        call.skip_below,
    )
    out, lse = offset.put_back(call, lines.get("meeting"), out, lse)
    return out.to(call.query.dtype), lse if call.return_lse else None


def _width_to_run(call: Call) -> int | None:
    """W if far pairs are run apart from near ones."""
    width = _learned(call, width_of(call))
    return width if width is not None and (has_far_keys(call, width) or is_spread(call)) else None


def _is_exact(call: Call, lines: dict[str, Tensor], near: Sequence[Tensor]) -> bool:
    """Whether the fused kernel is not to run in half precision. On the CPU, for gradients of tables: they include far
    pairs, for which it rounds the output, and would be off by 1e-3. On a GPU, where every kernel does so, for what is
    added to the scores, which it rounds too: a bias of 100 would be off by 0.25."""
    if fused.on_gpu(call.query):
        return "slopes" in lines or "query_clock" in lines
    return torch.is_grad_enabled() and any(line.requires_grad for line in near)


def _shifted(call: Call, lines: dict[str, Tensor]) -> Tensor:
    """The query with the vector that is added to it, since the fused kernel takes no other; vectors by distance are
    multiplied with the query as it was."""
    shift = lines.pop("shift", None)
    if shift is None:
        return call.query
    if "vectors" in lines and "meeting" not in lines:
        lines["meeting"] = call.query.to(call.dtype) * call.scale
    return (call.query + shift[:, None]).to(call.query.dtype)


@dataclass
class _Offset:
    """What terms give all pairs far to the left, and what lines are relative to: a bias (heads, 1), and vectors of
    queries and values (heads or 1, 1, width)."""

    bias: Tensor | None = None
    vectors: Tensor | None = None
    values: Tensor | None = None

    def put_back(self, call: Call, meeting: Tensor | None, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp, given those without it."""
        if self.values is not None:
            sees = (lse > -torch.inf)[..., None]
            out = torch.addcmul(out.to(call.dtype), self.values, sees.to(call.dtype))
        if self.bias is not None:
            lse = lse + self.bias
        if self.vectors is not None and meeting is not None:
            lse = lse + (meeting @ self.vectors.mT)[..., 0]
        elif self.vectors is not None:
            lse = lse + (call.query.to(call.dtype) @ self.vectors.mT)[..., 0] * call.scale
        return out, lse


def _taken_off(lines: dict[str, Tensor], width: int, is_sloped: bool) -> _Offset:
    """Makes lines at the distances -W - 1 .. W + 1 relative to what they give far to the left, and shortens them to
    -W .. W. A bias that is linear there gives slopes, (2, heads)."""
    offset = _Offset()
    if "bias" in lines:
        bias, slopes, offset.bias = _straightened(lines.pop("bias"), width, is_sloped)
        # Not by |=, after which the caller's lines are the old ones in graphs before torch 2.9.
        lines.update({name: x for name, x in (("bias", bias), ("slopes", slopes)) if x is not None})
    if "vectors" in lines:
        lines["vectors"], offset.vectors = _relative(lines["vectors"])
    if "values" in lines:
        lines["values"], offset.values = _relative(lines["values"])
    return offset


def _sloped(call: Call) -> list[Bias]:
    """The biases with a linear tail."""
    return [piece for piece in call.pieces if isinstance(piece, Bias) and piece.distance.tail == "linear"]


def _learned(call: Call, width: int | None) -> int | None:
    """The width, or None if a linear tail is learned, since the gradient of its slope needs every pair."""
    if width is None or not torch.is_grad_enabled():
        return width
    for bias in _sloped(call):
        ends = torch.arange(bias.distance.past, bias.distance.past + 2, device=call.query.device)
        if bias.at(ends).requires_grad:
            return None
    return width


def _straightened(bias: Tensor, width: int, is_sloped: bool) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """From a bias at the distances -W - 1 .. W + 1: the near entries -W .. W minus the intercept far to the left; the
    slopes (2, heads), or None; and the intercept, (heads, 1)."""
    slopes = None
    first = bias[:, 1:2]
    if is_sloped:
        slopes = torch.stack((bias[:, 0] - bias[:, 1], bias[:, -1] - bias[:, -2])).detach()
        first = first - slopes[0][:, None] * width
    return (bias[:, 1:-1] - first if width else None), slopes, first


def _relative(line: Tensor) -> tuple[Tensor, Tensor]:
    """From vectors at the distances -W - 1 .. W + 1: those at -W .. W minus the first, and the first."""
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


def kernels_of(call: Call) -> str | None:
    """What computes the pairs of a call on a GPU, in words; None on the CPU."""
    if not fused.on_gpu(call.query):
        return None
    width, reason = _width_to_run(call), compat.why_not_fused(call.query)
    if width is None:
        return f"all pairs in blocks, since {reason or 'most are near'}"
    is_masked = len(_sloped(call)) > 0 or any(isinstance(piece, Clock) for piece in call.pieces)
    far = fused.kernel_of(call.query, is_masked).name
    if width == 0:
        return f"by {far}"
    widest = max(call.query.size(-1), call.value.size(-1))
    on_keys = any(isinstance(piece, Meeting) and piece.side == "key" for piece in call.pieces)
    is_near = not on_keys and near_kernels.why_not(call.query, widest) is None
    return f"far pairs by {far}, near pairs {'by the kernels of triton' if is_near else 'in blocks'}"


TILED = Backend("tiled", _run, KINDS, first=(inputs,), last=(order, lines_known, _long_lines))
