"""`Positions` as a pytree, for torch.compile, export and FSDP."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from posenc import compat
from posenc.positions.layout import Layout
from posenc.positions.positions import Positions
from posenc.positions.validation import check_cast


def _flatten(positions: Positions) -> tuple[list[Tensor], tuple[bool, bool]]:
    tensors = (positions.coords, positions.order, positions.document, positions.segment)
    return [x for x in tensors if x is not None], (positions.segment is not None, positions._is_shard)


def _unflatten(tensors: Any, kept: Any) -> Positions:
    """The tensors may have changed, so the layout is dropped."""
    coords, order, document, *segment = tensors
    has_segment, is_shard = kept
    check_cast(coords)
    tokens = order.shape[1] if isinstance(order, Tensor) else 0
    fields = {"coords": coords, "order": order, "document": document, "segment": segment[0] if has_segment else None}
    made: Positions = object.__new__(Positions)
    return made._set(**fields, _layout=Layout(tokens), _is_read=False, _is_shard=is_shard)


compat.register_pytree(Positions, _flatten, _unflatten, "posenc.Positions")
