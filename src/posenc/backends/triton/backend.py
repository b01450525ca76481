"""The triton backend: attention with vectors by distance on a GPU, without storing products for every distance."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.backends.call import Backend, Call
from posenc.backends.eligible import unfit
from posenc.backends.operands import Given, unknown_piece
from posenc.backends.triton.operator import is_interpreted, missing
from posenc.encoding.pieces import Meeting

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 256  # the maximum number of channels, which must fit into shared memory with a block of scores


def _refuses(call: Call) -> str | None:
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
    return unfit(call) or unknown_piece(call, ("relu times",)) or missing()


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    given = Given(call)
    out, lse = torch.ops.posenc.triton(
        call.query, given.key.to(call.key.dtype), call.value, *given.arguments(), call.scale
    )
    return out, lse if call.return_lse else None


TRITON = Backend("triton", refuses=_refuses, run=_run)
