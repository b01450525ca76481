"""Rotations as ONNX's own operator."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from posenc import compat

_open = 0  # contexts of all threads: PyTorch's own flag is global too, and a graph could not read a ContextVar
_LOCK = threading.Lock()


@contextmanager
def onnx_operators() -> Iterator[None]:
    """A context in which programs are exported with ONNX's operator ``RotaryEmbedding``, of opset 23.

    A rotation of pairs by the same angles in all heads becomes one operator; any other has plain operations, as it has
    without the context. Pass ``opset_version=23`` or later to `torch.onnx.export`, which then also writes attention as
    ``Attention``. What is not exported does not change. It holds for what any thread exports until the last is left.
    """
    global _open
    with _LOCK:
        _open += 1
    try:
        yield
    finally:
        with _LOCK:
            _open -= 1


def is_taken(cos: Float[Tensor, "rows heads tokens pairs"]) -> bool:
    """Whether the operator rotates by these angles here."""
    return _open > 0 and compat.is_exporting() and cos.size(1) == 1


def rotary_embedding(
    x: Float[Tensor, "batch heads tokens channels"],
    cos: Float[Tensor, "rows 1 tokens pairs"],
    sin: Float[Tensor, "rows 1 tokens pairs"],
    is_interleaved: bool,
) -> Float[Tensor, "batch heads tokens channels"]:
    """The first channels of x rotated by the operator, in the dtype of the angles. These are repeated for every row of
    x: onnxruntime refuses ``position_ids`` of one row for several."""
    cos, sin = (angle[:, 0].expand(x.size(0), x.size(2), -1) for angle in (cos, sin))
    width = 2 * cos.size(-1)
    partial = 0 if width == x.size(-1) else width
    rotated: Tensor = torch.ops.onnx.RotaryEmbedding.opset23(  # as in torch.onnx.ops, which dynamo does not trace
        x.to(cos.dtype), cos, sin, interleaved=is_interleaved, rotary_embedding_dim=partial
    )
    return rotated.to(x.dtype)
