"""The cache: what a call of attention leaves for later ones.

Everything is kept with an encoding, an immutable value, and goes when it does: `Encoding.plans`, by all that a check
or a choice reads, and in each plan what its backend derives (`Call.store`). A call that passes no encoding has one made
and kept here: of each scheme the latest, which goes with the scheme or with any change of what binding reads, and
without a scheme those of the latest lengths. Whatever is kept, a store holds at most `MAX_ENTRIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from posenc import compat
from posenc.encoding.encoding import Encoding

T = TypeVar("T")
MAX_ENTRIES = 16  # of one store: layers with other windows, heads or dtypes have plans of their own
_READ_BY_GRAPHS: list[Any] = []


@dataclass
class OfScheme:
    """The latest encoding of a scheme, and all that it was made of. Neither refers to the scheme itself, whose terms
    belong to a copy that shares its tensors (`live`), so both go with it."""

    state: tuple[object, ...] = ()
    may_stay: bool | None = None  # None: not known yet
    encodings: dict[Any, Encoding] = field(default_factory=dict)


texts: dict[Any, Encoding] = {}  # of positions alone
schemes: WeakKeyDictionary[nn.Module, OfScheme] = WeakKeyDictionary()


def cached(
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
    if store is None or not compat.is_eager():
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
        if len(store) >= MAX_ENTRIES:
            store.clear()
        store.setdefault(key, made)[stream] = found
    return found


def stream_of(device: torch.device) -> int | None:
    """The number of the device's current stream; None on the CPU, which has none."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
