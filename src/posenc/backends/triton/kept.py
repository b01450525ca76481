"""Lists of numbers that kernels read, on the device: copied there once, and found again by other layers and the
backward pass."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from torch import Tensor

KEPT = 256


@runtime_checkable
class Listed(Protocol):
    """Something with its ``numbers`` in one tensor, that can be made of a copy of them."""

    numbers: Tensor

    def at(self, numbers: Tensor) -> Any:
        """The same with these numbers."""


L = TypeVar("L", bound=Listed)
Asked: TypeAlias = tuple[Hashable, ...]
_LOCK = threading.Lock()  # the backward pass has a thread for every device
_KEPT: dict[Asked, Any] = {}  # the latest, on devices
# What CUDA graphs read when they are replayed: numbers on devices, and pinned ones that a graph copies itself. A graph
# does not say how long it lives, so these are kept for good: as many as there are different ones, however often each is
# captured.
_CAPTURED: dict[Asked, Any] = {}
_SOURCES: dict[Asked, Any] = {}


def on_device(device: torch.device, make: Callable[..., L], *asked: Hashable) -> L:
    """``make(*asked, is_pinned)`` on a device, the current one. It is cached, and on the CPU not copied."""
    if device.type == "cpu":
        return make(*asked, False)
    key = (make.__name__, *asked, device)
    is_captured = torch.cuda.is_current_stream_capturing()
    with _LOCK:
        found: L | None = _CAPTURED.get(key) or _KEPT.get(key)
        if found is None:
            made = _SOURCES.get(key) or make(*asked, True)
            if is_captured:  # memory of the graph, which holds the numbers only while it is replayed
                _SOURCES[key] = made
                found = made.at(made.numbers.to(device, non_blocking=True))
                return found
            found = _KEPT[key] = made.at(_copied(made.numbers, device))
            if len(_KEPT) > KEPT:
                del _KEPT[next(iter(_KEPT))]
        if is_captured:
            _CAPTURED[key] = found
    assert found is not None
    if not is_captured:  # should it be forgotten, its memory is not reused before this stream is done
        found.numbers.record_stream(torch.cuda.current_stream(device))
    return found


def _copied(numbers: Tensor, device: torch.device) -> Tensor:
    """A copy that every stream may read, made without waiting for any other. It has a thread and a stream of its own:
    a CUDA graph, as in compiled code, has a memory pool for a thread or a stream, and takes back what that gave."""

    def copy() -> Tensor:
        stream = _stream(device)
        with torch.cuda.stream(stream):
            made = numbers.to(device, non_blocking=True)
        stream.synchronize()
        return made

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy).result()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)  # from another pool of streams than graphs are captured on
