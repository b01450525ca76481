"""Races between the CPU kernel and PyTorch's attention, for calls that add nothing to the scores.

Which of them is faster depends on the processor, the precision and the build of PyTorch: on one machine PyTorch's
backward pass in float16 takes 20 times as long as the kernel's, on another its matrix unit is ahead. So each kind of
call is raced once on the machine at hand, when it is first needed, and the times are kept in the user's cache, beside
the results of the kernel's self-test.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc import compat
from posenc.backends.call import Backend, Call, DeferredRotation
from posenc.backends.native import build, library
from posenc.backends.native.backend import NATIVE
from posenc.backends.native.build import UnavailableError
from posenc.backends.native.operator import CHANNELS
from posenc.backends.sdpa import SDPA
from posenc.positions.positions import Positions
from posenc.positions.tiles import Visibility
from posenc.rotation.phases import PairRotation

SWITCH = "POSENC_RACES"
LENGTHS = (16, 64, 128, 256, 1024)
DECIDING_TOKENS = 256  # from here on a clear lead ends the race: longer texts take seconds where PyTorch is slow
CLEAR_RATIO = 1.5
ROUNDS = 7, 60  # at least and at most
SECONDS_OF_ROUNDS = 0.03  # several turns of the system's scheduler, should something else run
SECONDS_OF_TIMING = 1e-4
NOISY_RATIO = 2.0  # the middle over the fastest of all rounds; above it the times say nothing
DEFAULT_TOKENS = 256  # from here on the kernel is taken where times say nothing: it was the faster one everywhere


class Kind(NamedTuple):
    """A kind of call. ``width`` is the number of channels that is raced, not a multiple of 16 if the call's is none."""

    dtype: torch.dtype
    is_rotated: bool
    is_causal: bool
    is_training: bool
    is_few: bool
    width: int
    threads: int

    def __str__(self) -> str:
        words = (
            str(self.dtype).removeprefix("torch."),
            "rotated" if self.is_rotated else "plain",
            "causal" if self.is_causal else "both directions",
            "training" if self.is_training else "forward",
            *(["few queries"] if self.is_few else []),
            f"{self.width} channels",
            f"{self.threads} thread{'s' * (self.threads > 1)}",
        )
        return ", ".join(words)


class Lap(NamedTuple):
    """The seconds of a call of each, in the fastest round; ``is_clear`` unless the rounds differed too much."""

    tokens: int
    pytorch: float
    kernel: float
    is_clear: bool

    @property
    def is_kernel(self) -> bool:
        """Whether the kernel is to be taken: it was the faster one or, where the times say nothing, by default."""
        return self.kernel <= self.pytorch if self.is_clear else self.tokens >= DEFAULT_TOKENS

    def __str__(self) -> str:
        seconds = f"{self.kernel * 1e3:.3g} ms against {self.pytorch * 1e3:.3g}"
        return f"{seconds} at {self.tokens} tokens{'' if self.is_clear else ', too noisy to tell'}"


Race = tuple[Lap, ...]
_RACES: dict[Kind, Race] = {}  # of this process; never stale, since neither machine nor library changes under it
_LOCK = threading.RLock()


def kind_of(call: Call, threads: int) -> Kind:
    """The kind that a call without score terms belongs to."""
    width = max(call.query.size(3), call.value.size(3))
    is_whole = not (call.query.size(3) % CHANNELS or call.value.size(3) % CHANNELS)
    tensors = (call.query, call.key, call.value)
    return Kind(
        call.query.dtype,
        call.rotation is not None,
        call.visibility.is_causal,
        torch.is_grad_enabled() and any(x.requires_grad for x in tensors),
        call.has_few_queries,
        (64 if width <= 96 else 128) - (0 if is_whole else 4),
        threads,
    )


def kernel_is_ahead(call: Call) -> str | None:
    """Why the kernel is used for a call without score terms that needs no mask, or None to use PyTorch's attention."""
    if call.score_terms or call.query.device.type != "cpu" or compat.is_exporting():
        return None
    if torch.compiler.is_compiling():  # a graph serves all lengths
        return WHY if not call.has_few_queries and _is_ahead_everywhere(*kind_of(call, 0)) else None
    kind = kind_of(call, torch.get_num_threads())
    tokens = call.key.size(2) if kind.is_few else math.sqrt(call.query.size(2) * call.key.size(2))
    race = race_of(kind)
    if race is None:
        return f"{WHY}, and from {DEFAULT_TOKENS} tokens on the kernel is taken" if tokens >= DEFAULT_TOKENS else None
    lap = nearest(race, tokens)
    return f"{WHY}, and in a race on this machine the kernel took {lap}" if lap.is_kernel else None


WHY = "there are no score terms"


def _is_ahead_everywhere(*kind: Any) -> bool:
    """Asked in a graph, which does not know the number of threads."""
    race = race_of(Kind(*kind)._replace(threads=torch.get_num_threads()))
    return race is not None and all(lap.is_kernel for lap in race if lap.tokens > LENGTHS[0])


_is_ahead_everywhere._dynamo_marked_constant = True  # type: ignore[attr-defined]


def nearest(race: Race, tokens: float) -> Lap:
    """The lap of the nearest length, by ratio."""
    return min(race, key=lambda lap: abs(math.log(lap.tokens / max(tokens, 1))))


def race_of(kind: Kind) -> Race | None:
    """The race of this kind, run now if it never was on this machine. None where races are turned off, or operations
    are traced, replaced or profiled."""
    found = _RACES.get(kind)
    if found is not None or os.environ.get(SWITCH, "1").lower() in library.OFF:
        return found
    with _LOCK, compat.outside_compilation() if torch.compiler.is_compiling() else nullcontext():
        if kind in _RACES:
            return _RACES[kind]
        before = stored(precision_of(kind.dtype)).get(str(kind))
        if before is not None:
            _RACES[kind] = before
        elif _is_undisturbed():
            _RACES[kind] = _run(kind)
            if all(lap.is_clear for lap in _RACES[kind]):  # else the next process tries again
                _store(kind)
        return _RACES.get(kind)


def _is_undisturbed() -> bool:
    """Whether times are those of any other program: no switch, tracer or profiler makes calls slower."""
    is_watched = sys.gettrace() is not None or sys.getprofile() is not None or torch.is_anomaly_enabled()
    is_switched = torch.are_deterministic_algorithms_enabled() or not torch.backends.cuda.flash_sdp_enabled()
    return compat.can_bypass_dispatch(()) and not (is_watched or is_switched)


# -- the race ---------------------------------------------------------------------------------------------------------


def _run(kind: Kind) -> Race:
    """Races at one length after the other."""
    laps: list[Lap] = []
    # Neither the caller's autocast, inference mode and hooks nor its random numbers have a part in it. Checkpointing
    # has such hooks, which would run the layer again, in which this race is.
    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(kind.is_training),
        torch.autocast("cpu", enabled=False),
        compat.without_saved_tensors_hooks(),
    ):
        for tokens in LENGTHS:
            laps.append(_lap(kind, tokens))
            ratio = laps[-1].pytorch / laps[-1].kernel
            if tokens >= DECIDING_TOKENS and not 1 / CLEAR_RATIO < ratio < CLEAR_RATIO:
                break
    return tuple(laps)


def _lap(kind: Kind, tokens: int) -> Lap:
    call = _call(kind, tokens)
    calls = [_once(backend, call) for backend in (SDPA, NATIVE)]
    for once in calls:  # what is made at the first call
        once()
    counts = [max(1, math.ceil(SECONDS_OF_TIMING / _seconds(once, 1))) for once in calls]
    times: list[list[float]] = [[], []]
    end = time.perf_counter() + SECONDS_OF_ROUNDS
    while len(times[0]) < ROUNDS[0] or (len(times[0]) < ROUNDS[1] and time.perf_counter() < end):
        for found, once, n in zip(times, calls, counts, strict=True):
            found.append(_seconds(once, n))
    # The fastest, since other processes only add to a time.
    pytorch, kernel = map(min, times)
    return Lap(tokens, pytorch, kernel, all(statistics.median(found) < NOISY_RATIO * min(found) for found in times))


def _seconds(once: Callable[[], None], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        once()
    return (time.perf_counter() - start) / count


def _call(kind: Kind, tokens: int) -> Call:
    numbers = torch.arange(tokens * kind.width, device="cpu").view(1, 1, tokens, kind.width)
    heads = torch.arange(max(4, kind.threads), device="cpu")[:, None, None] + 1.0
    query, key, value = (
        ((numbers * heads + n) * 0.7).sin().to(kind.dtype).requires_grad_(kind.is_training) for n in range(3)
    )
    positions, rotation = Positions.arange(tokens, device="cpu"), None
    of_query = positions
    if kind.is_rotated:
        pairs = kind.width // 2
        angles = torch.arange(tokens, device="cpu")[:, None] * 10_000.0 ** (-torch.arange(pairs, device="cpu") / pairs)
        each = PairRotation(angles.cos()[None, None], angles.sin()[None, None], "half", kind.width)
        rotation = DeferredRotation(each, each)
    if kind.is_few:
        query, of_query = query.detach()[:, :, -1:].requires_grad_(kind.is_training), positions[tokens - 1 :]
        rotation = rotation and rotation.part(slice(tokens - 1, tokens), slice(0, tokens))
    call = Call(
        query, key, of_query, positions, kind.width**-0.5, value=value, score_terms=(), values=(), attn_mask=None,
        visibility=Visibility(kind.is_causal), dropout_p=0.0, return_lse=False, rotation=rotation,
    )  # fmt: skip
    return call.with_store({})


def _once(backend: Backend, call: Call) -> Callable[[], None]:
    inputs: list[Tensor] = [x for x in (call.query, call.key, call.value) if x.requires_grad]

    def once() -> None:
        out, _ = backend(call)
        if inputs:
            torch.autograd.grad(out, inputs, out)

    return once


# -- what is kept -----------------------------------------------------------------------------------------------------


def precision_of(dtype: torch.dtype) -> str:
    """The precision of the library that calls of this dtype use."""
    is_converted = dtype == torch.float16 or (dtype == torch.bfloat16 and not library.multiplies_bfloat16())
    return library.REALS[torch.float32 if is_converted else dtype]


def path_of(precision: str) -> Path | None:
    """The file of the races with the library of this precision; None without a library or a cache."""
    found = library.find(precision)
    if isinstance(found, UnavailableError):
        return None
    with contextlib.suppress(UnavailableError):
        here = [Path(__file__), Path(__file__).with_name("sdpa.py")]  # the kernel's sources are in its identity
        parts = (library.identity(found.record), *(path.read_text(encoding="utf-8") for path in here))
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
        return library.cache() / f"races-{digest}.json"
    return None


def stored(precision: str) -> dict[str, Race]:
    """The races in the cache, by the words of their kinds; none if they cannot be read."""
    path = path_of(precision)
    try:
        found = json.loads((path and build.content(path)) or b"{}")
        races = {str(kind): tuple(map(_lap_of, laps)) for kind, laps in found.items()}
    except (UnavailableError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {kind: race for kind, race in races.items() if race}


def _lap_of(numbers: Sequence[Any]) -> Lap:
    """ValueError or TypeError for what is not the numbers of a lap."""
    tokens, *seconds, is_clear = numbers
    pytorch, kernel = map(float, seconds)
    if tokens not in LENGTHS or not (0 < pytorch < math.inf and 0 < kernel < math.inf):
        raise ValueError(f"a lap must have tokens of {LENGTHS} and seconds above 0, got {numbers}")
    return Lap(tokens, pytorch, kernel, bool(is_clear))


def _store(kind: Kind) -> None:
    path = path_of(precision_of(kind.dtype))
    if path is None:
        return
    with build.lock(path.with_name(".races")), contextlib.suppress(OSError):  # a full disk
        build.write(path, json.dumps(stored(precision_of(kind.dtype)) | {str(kind): _RACES[kind]}))
