"""From how many tokens on the kernel for the CPU is quicker than PyTorch's, though nothing is added to the scores."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from posenc.backends.call import Call
from posenc.backends.native import processor


class From(NamedTuple):
    """The least sqrt(queries x keys) from which on the kernel is taken: of queries and keys as they are given, and of
    those that it turns by itself, where PyTorch's attention is given rotated copies. inf: never."""

    plain: float = math.inf
    turned: float = math.inf


_SINGLE = From(plain=512, turned=128)
AHEAD: Mapping[str, Mapping[torch.dtype, From]] = {
    "amx": {torch.float32: _SINGLE, torch.bfloat16: From(plain=512, turned=128)},
    "bf16": {torch.float32: _SINGLE},  # in bfloat16 not measured
    "v4": {torch.float32: _SINGLE},
    "v3": {torch.float32: _SINGLE},
}
"""By the best level of the processor (`processor.LEVELS`) and by the precision of queries; as measured, docs/log.md.
What is not here is PyTorch's."""


@functools.cache
def _level() -> str:
    """The best level of the processor at hand."""
    return processor.runnable()[0].name


def why_ahead(call: Call) -> str | None:
    """Why the kernel is taken for a call that adds nothing to the scores, or None. A graph serves every length, and
    does not ask; a few queries are PyTorch's."""
    if torch.compiler.is_compiling() or call.pieces or call.has_few_queries or call.query.device.type != "cpu":
        return None
    level = _level()
    figures = AHEAD.get(level, {}).get(call.query.dtype, From())
    least = figures.plain if call.turn is None else figures.turned
    if math.sqrt(call.query.size(2) * call.key.size(2)) < least:
        return None
    return (
        f"nothing is added to the scores, and on this processor ({level}) the kernel is quicker than PyTorch's "
        f"from {least:g} tokens on"
    )
