"""The native backend: what goes by distance, on the CPU, in one loop over tasks that share nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.backends.call import Backend, Call
from posenc.backends.given import Given, unknown_piece
from posenc.backends.native import operator as operator  # which registers it
from posenc.backends.native.library import REALS, missing
from posenc.backends.tiled import TILED


def _refuses(call: Call) -> str | None:
    if call.query.device.type != "cpu":
        return "it runs on the CPU alone"
    if call.query.dtype not in REALS:
        return "it computes in float32 and float64 alone"
    return TILED.refuses(call) or unknown_piece(call) or missing(call.query.dtype)


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    call.check()
    given = Given(call)
    rest = (*given.arguments(), call.scale, call.skip_below)
    out, lse = torch.ops.posenc.native(call.query, given.key, call.value, *rest)
    return out, lse if call.return_lse else None


NATIVE = Backend("native", refuses=_refuses, run=_run)
