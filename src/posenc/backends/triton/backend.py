"""The triton backend: attention with vectors by distance on a GPU, without storing products for every distance."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.backends import eligible
from posenc.backends.backend import Backend, Unless
from posenc.backends.call import Call
from posenc.backends.eligible import line_of
from posenc.backends.operands import Given
from posenc.backends.triton.operator import is_interpreted, missing, triton
from posenc.encoding.pieces import Bias, Function, Meeting, Term

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 256  # the maximum number of channels, which must fit into shared memory with a block of scores


KINDS: dict[type[Term], tuple[Unless, ...]] = eligible.KINDS | {
    Meeting: (
        *eligible.KINDS[Meeting],
        Unless("a key is multiplied with a vector", lambda piece, call: piece.side == "key"),
    ),
    Function: (
        eligible.ONE_AXIS,
        Unless(
            "a score term is a piecewise linear function of both coordinates, which the kernel supports only for few "
            "queries and without gradients",
            lambda piece, call: piece.broken is not None and not _is_step(call),
        ),
        Unless(eligible.BY_DISTANCE.reason, lambda piece, call: piece.broken is None and piece.reads_coordinates),
        Unless(
            "a score term is a function of the score that the kernel does not support",
            lambda piece, call: piece.broken is None and (piece.formula != "relu times" or piece.distance is None),
        ),
    ),
}


def _is_step(call: Call) -> bool:
    """Whether it is a step of decoding, for which there is a kernel that has no derivative of its own."""
    return call.has_few_queries and not torch.is_grad_enabled()


def _inputs(call: Call) -> str | None:
    device = call.query.device.type
    if device != "cuda" and not (device == "cpu" and is_interpreted()):
        return "it runs only on CUDA devices"
    if call.query.dtype not in DTYPES:
        return "it supports only float32, bfloat16 and float16"
    features = [piece.feature for piece in call.pieces if isinstance(piece, Meeting) and piece.feature is not None]
    joined = sum(call.query_features[name].size(-1) for name in features if name in call.query_features)
    widest = max(call.query.size(-1) + joined, call.value.size(-1))
    if widest > WIDEST:
        return f"it supports at most {WIDEST} channels, got {widest}"
    return None


FAR = 4096  # distances by which slopes are measured, so that rounding a bias near the cutoff does not matter


class _Lines(Given):
    """`Given` with short tables for biases that are linear in distance beyond a cutoff, and their "slopes" (heads or 1,
    2): by how much the bias changes from distance to distance beyond the table, to the left and to the right."""

    tails = ("constant", "linear")

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        biases = [piece for piece in self.call.pieces if isinstance(piece, Bias)]
        pasts = [bias.distance.past for bias in biases if bias.distance.tail == "linear"]
        if pasts and all(bias.distance.tail in self.tails for bias in biases):
            past = max(bias.distance.past for bias in biases)
            block = self.call.raw_block()
            r = torch.tensor([-past - FAR, -past, past, past + FAR], device=call.query.device)
            at = sum(line_of(bias.at, bias.distance, block, r) for bias in biases)
            self.tensors["slopes"] = (at[:, [0, 3]] - at[:, [1, 2]]) / FAR


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    given = _Lines(call)
    out, lse = triton(call.query, given.key.to(call.key.dtype), call.value, *given.arguments(), call.scale)
    return out, lse if call.return_lse else None


TRITON = Backend(
    "triton",
    _run,
    KINDS,
    first=(_inputs, eligible.inputs),
    last=(eligible.order, eligible.lines_known, eligible.long_tables, lambda call: missing()),
)
