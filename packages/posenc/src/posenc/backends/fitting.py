"""Sizes of a kernel that fit on a device, remembered by what is run there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")
MAX_KINDS = 256  # kinds of kernels; all are forgotten when there are more
# Nothing makes these stale: what fits depends on the device and on the compiled code, and a process changes neither.
_first: dict[Hashable, int] = {}


def run_first_fitting(
    kind: Hashable, sizes: Sequence[S], run: Callable[[S], T], is_too_large: Callable[[Exception], bool]
) -> tuple[S, T]:
    """The first of ``sizes``, from the largest on, with which ``run`` fits on the device, and what it returns. Sizes
    that do not fit are tried once for a ``kind`` of kernel. If none fits, the error of the last one is raised."""
    if len(_first) >= MAX_KINDS:
        _first.clear()
    for n in range(_first.get(kind, 0), len(sizes)):
        try:
            found = run(sizes[n])
        except Exception as error:
            if not is_too_large(error) or n + 1 == len(sizes):
                raise
            _first[kind] = n + 1
        else:
            return sizes[n], found
    raise AssertionError(f"no sizes of {kind}")
