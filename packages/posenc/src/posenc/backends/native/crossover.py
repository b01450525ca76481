"""The number of tokens from which on the CPU kernel is faster than PyTorch's for attention without score terms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from posenc.backends.call import Call
from posenc.backends.native import library
from posenc.backends.native.operator import CHANNELS


class From(NamedTuple):
    """The sqrt(queries x keys) from which on the kernel is used for causal calls: without a rotation, and with one, for
    which PyTorch's attention needs rotated copies."""

    plain: float
    turned: float


AHEAD: Mapping[torch.dtype, Mapping[str, From]] = {
    torch.float32: {"v4": From(plain=512, turned=128), "v3": From(plain=512, turned=128)},
    torch.bfloat16: {"amx": From(plain=512, turned=128)},
}
"""By the dtype of queries and the level of the kernel library (`library.level`), as measured
(docs/decisions/013-bfloat16-in-the-kernel.md). Anything else uses PyTorch's attention."""


def why_ahead(call: Call) -> str | None:
    """Why the kernel is used for a call without score terms, or None to use PyTorch's attention: in a compiled graph,
    which serves all lengths, for few queries, and for what was not measured: non-causal calls, and heads whose channels
    the kernel would have to pad."""
    if torch.compiler.is_compiling() or call.pieces or call.has_few_queries or call.query.device.type != "cpu":
        return None
    widths = call.query.size(3), call.value.size(3)
    if not call.visibility.is_causal or any(width % CHANNELS for width in widths):
        return None
    figures = AHEAD.get(call.query.dtype, {})
    least = {level: of.plain if call.turn is None else of.turned for level, of in figures.items()}
    tokens = math.sqrt(call.query.size(2) * call.key.size(2))
    if tokens < min(least.values(), default=math.inf):  # without loading the library
        return None
    library.warn_if_not_built(library.missing(call.query.dtype))
    level = library.level(call.query.dtype)
    if level is None or tokens < least.get(level, math.inf):
        return None
    other = "PyTorch's attention" if call.turn is None else "a rotation and PyTorch's attention"
    return (
        f"there are no score terms, and from {least[level]:g} tokens on the kernel is faster than {other} on this "
        f"processor (level {level})"
    )
