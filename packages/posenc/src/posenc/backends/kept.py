"""Keeps tensors that calls to come can use again: on which stream they were made, and what CUDA graphs read of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

from posenc import compat

T = TypeVar("T")
MOST = 16  # in one store
_READ_BY_GRAPHS: list[Any] = []


def kept(
    store: dict[Any, Any] | None,
    key: Hashable,
    device: torch.device,
    make: Callable[[], T],
    may_stay: Callable[[T], bool] = lambda made: True,
) -> T:
    """What ``make()`` returns or returned before, for the same key, in the same store; None: there is none.

    ``key`` has all that the numbers depend on. What ``may_stay`` is false of is made anew each time.

    A stream uses only what it has made itself: another one might read it too early, or go on reading when its memory is
    given away. While a CUDA graph is captured nothing is stored, since it has no numbers before the graph is replayed;
    what was made before is read at each replay, so it is never freed. What is made in inference mode stays there.
    Nothing is kept where operations are traced or replaced.
    """
    if store is None or not compat.is_undisturbed():
        return make()
    stream = stream_of(device)
    key = key, device, torch.is_inference_mode_enabled()
    made: dict[int | None, T] = store.get(key, {})
    if stream is not None and torch.cuda.is_current_stream_capturing():
        if not made:
            return make()
        found = next(iter(made.values()))
        if not any(found is other for other in _READ_BY_GRAPHS):
            _READ_BY_GRAPHS.append(found)
        return found
    if stream in made:
        return made[stream]
    found = make()
    if may_stay(found):
        if len(store) >= MOST:
            store.clear()
        store.setdefault(key, made)[stream] = found
    return found


def stream_of(device: torch.device) -> int | None:
    """The number of the device's current stream; None on the CPU, which has none."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
