"""Marks on tensors: what posenc has done to a tensor, to tell when it would be done again.

A mark belongs to one tensor object with unchanged contents. Views, copies, casts and concatenations have none: a mark
can show a mistake, and its absence shows nothing. In a compiled graph nothing is marked. Marks are kept beside the
tensors, not as their attributes, which pickle and copies would carry along.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from posenc.encoding.staleness import version_of

_MARKS: dict[int, tuple[Any, int, Any]] = {}
"""By the id of a tensor: a weak reference, whose callback removes the entry, the tensor's version, and the mark."""


def mark(x: Tensor, what: Any) -> Tensor:
    """The tensor itself, with this mark."""
    if not torch.compiler.is_compiling():
        key = id(x)
        _MARKS[key] = (weakref.ref(x, lambda _: _MARKS.pop(key, None)), version_of(x), what)
    return x


def mark_of(x: Tensor) -> Any:
    """The tensor's mark. None if it has none, or was changed in place since."""
    if torch.compiler.is_compiling():
        return None
    _, version, what = _MARKS.get(id(x), (None, None, None))
    return what if version is not None and version == version_of(x) else None
