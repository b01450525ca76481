"""Marks on tensors: what posenc has done to a tensor, to tell when it would be done again.

A mark belongs to one tensor object with unchanged contents. Views, copies, casts and concatenations have none: a mark
can show a mistake, and its absence shows nothing. In a compiled graph nothing is marked, and in inference mode neither,
where tensors do not tell whether they were changed. Marks are kept beside the tensors, not as their attributes, which
pickle and copies would carry along.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

_MARKS: dict[int, tuple[Any, int, Any]] = {}
"""By the id of a tensor: a weak reference, whose callback removes the entry, the tensor's version, and the mark."""


def mark(x: Tensor, what: Any) -> Tensor:
    """The tensor itself, with this mark."""
    if not torch.compiler.is_compiling() and not x.is_inference():
        key = id(x)
        _MARKS[key] = (weakref.ref(x, lambda _: _MARKS.pop(key, None)), x._version, what)
    return x


def mark_of(x: Tensor) -> Any:
    """The tensor's mark. None if it has none, or was changed in place since."""
    if torch.compiler.is_compiling() or id(x) not in _MARKS:
        return None
    marked, version, what = _MARKS[id(x)]
    return what if marked() is x and version == x._version else None
