"""Lists of numbers that kernels read, on the device: copied there once, and found again by other layers and the
backward pass."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from torch import Tensor

KEPT = 256
DRIVER = "libcuda.so.1"
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


@runtime_checkable
class Listed(Protocol):
    """Something with its ``numbers`` in one tensor, that can be made of a copy of them."""

    numbers: Tensor

    def at(self, numbers: Tensor) -> Any:
        """The same with these numbers."""


class _There(NamedTuple):
    """A list on a device, and the streams that the allocator knows to read it."""

    made: Any
    streams: set[int]


L = TypeVar("L", bound=Listed)
Asked: TypeAlias = tuple[Hashable, ...]
_LOCK = threading.Lock()  # the backward pass has a thread for every device
_KEPT: dict[Asked, _There] = {}  # the latest
# What CUDA graphs read when they are replayed. A graph does not say how long it lives, so these are kept for good: as
# many as there are different ones, however often each is captured.
_CAPTURED: dict[Asked, _There] = {}


def on_device(device: torch.device, make: Callable[..., L], *asked: Hashable) -> L:
    """``make(*asked)`` on a device, the current one. It is cached, and on the CPU not copied."""
    if device.type == "cpu":
        return make(*asked)
    key = (make.__name__, *asked, device)
    with _LOCK:
        there = _CAPTURED.get(key) or _KEPT.get(key)
        if there is None:
            made = make(*asked)
            there = _KEPT[key] = _There(made.at(_copied(made.numbers, device)), set())
            if len(_KEPT) > KEPT:
                del _KEPT[next(iter(_KEPT))]
        if torch.cuda.is_current_stream_capturing():
            _CAPTURED[key] = there
        else:
            _read_on(torch.cuda.current_stream(device), there)
    found: L = there.made
    return found


def _read_on(stream: torch.cuda.Stream, there: _There) -> None:
    """Sees to it that, should the list be forgotten, its memory is not reused before this stream is done. A stream that
    the allocator knows once counts until the memory is freed."""
    if stream.cuda_stream not in there.streams:
        there.made.numbers.record_stream(stream)
        there.streams.add(stream.cuda_stream)


def _copied(numbers: Tensor, device: torch.device) -> Tensor:
    """A copy that every stream may read, made at once and without waiting for any other stream, also while graphs are
    captured. It has a thread and a stream of its own: a CUDA graph, as in compiled code, has a memory pool for a thread
    or a stream, and takes back what that gave."""

    def copy() -> Tensor:
        _relax()
        stream = _stream(device)
        with torch.cuda.stream(stream):
            made = numbers.to(device)
        stream.synchronize()
        return made

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy).result()


def _relax() -> None:
    """Lets this thread allocate and copy while others capture: what it does is no part of their graphs. PyTorch has no
    function for this; without NVIDIA's driver, only threads that capture are restricted."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(DRIVER).cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(RELAXED)))


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)  # from another pool of streams than graphs are captured on
