"""Races between backends that take the same kind of call, on the machine at hand.

On a CPU, the kernel and PyTorch's attention race for calls that add nothing to the scores. Which of them is faster
depends on the processor, the precision and the build of PyTorch: on one machine PyTorch's backward pass in float16
takes 20 times as long as the kernel's, on another its matrix unit is ahead. So each kind of call is raced once, when it
is first needed, and the times are kept in the user's cache, beside the results of the kernel's self-test.

On a GPU a race has kernels to compile, for seconds, and would be in the way of what a call's stream does. So kinds are
raced only by `posenc kernel --tune`, and a call reads what was found.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from posenc.backends.sdpa import SDPA, is_triangle
from posenc.encoding.terms import AddedVector, Bias, CumulativeBias, Function, RelativeDot, Term, Value
from posenc.positions.positions import Positions
from posenc.positions.tiles import Visibility, sees_all
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

GPU = "gpu"  # in the place of a precision: the races on GPUs, which are kept in one file
RACERS = {GPU: ("sdpa", "triton", "flex", "flex_flash")}
WIDTHS = (64, 80, 96, 128, 256)  # channels that are raced on a GPU; a call is of the next kind above its own


class Kind(NamedTuple):
    """A kind of call. ``width`` is the number of channels that is raced, on a CPU not a multiple of 16 if the call's is
    none. ``on``: the number of threads of a CPU, or the name of a GPU and of what is in FlashAttention's place."""

    dtype: torch.dtype
    added: str
    is_causal: bool
    is_training: bool
    is_few: bool
    width: int
    on: str

    def __str__(self) -> str:
        words = (
            str(self.dtype).removeprefix("torch."),
            self.added,
            "causal" if self.is_causal else "both directions",
            "training" if self.is_training else "forward",
            *(["few queries"] if self.is_few else []),
            f"{self.width} channels",
            self.on,
        )
        return ", ".join(words)


class Lap(NamedTuple):
    """The seconds of a call by each backend; ``is_clear`` unless the rounds differed too much."""

    tokens: int
    seconds: Mapping[str, float]
    is_clear: bool

    @property
    def fastest(self) -> str:
        return min(self.seconds, key=self.seconds.__getitem__)

    @property
    def is_kernel(self) -> bool:
        """Whether the CPU kernel is to be taken: it was the faster one or, where the times say nothing, by default."""
        return self.seconds["native"] <= self.seconds["sdpa"] if self.is_clear else self.tokens >= DEFAULT_TOKENS

    def told(self, name: str = "") -> str:
        """The time of this backend, or of the fastest, against those of the others."""
        name = name or self.fastest
        others = sorted((seconds, other) for other, seconds in self.seconds.items() if other != name)
        against = " and ".join(f"{seconds * 1e3:.3g} of {other}" for seconds, other in others)
        noise = "" if self.is_clear else ", too noisy to tell"
        return f"{name} took {self.seconds[name] * 1e3:.3g} ms against {against} at {self.tokens:,} tokens{noise}"


Race = tuple[Lap, ...]
Once = Callable[[], None]
_RACES: dict[Kind, Race] = {}  # of this process; never stale, since neither machine nor library changes under it
_LOCK = threading.RLock()


class Track(NamedTuple):
    """Where races are run. ``enter(kind)`` returns what enters at a length: runs of the same call, by backend."""

    device: torch.device
    lengths: Sequence[int]
    deciding: int  # the tokens from which on a clear lead ends the race
    enter: Callable[[Kind], Callable[[int], Mapping[str, Once]]]
    seconds: Callable[[Once, int], float]  # of a run, of so many one after the other
    typical: Callable[[Sequence[float]], float]  # of all rounds


def kind_of(call: Call, threads: int) -> Kind:
    """The kind that a call without score terms belongs to, on a CPU."""
    width = max(call.query.size(3), call.value.size(3))
    is_whole = not (call.query.size(3) % CHANNELS or call.value.size(3) % CHANNELS)
    return Kind(
        call.query.dtype,
        "plain" if call.rotation is None else "rotated",
        call.visibility.is_causal,
        _is_trained(call),
        call.has_few_queries,
        (64 if width <= 96 else 128) - (0 if is_whole else 4),
        on_cpu(threads),
    )


def on_cpu(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)}"


def _is_trained(call: Call) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in (call.query, call.key, call.value))


def _tokens(call: Call) -> float:
    return call.key.size(2) if call.has_few_queries else math.sqrt(call.query.size(2) * call.key.size(2))


def kernel_is_ahead(call: Call) -> str | None:
    """Why the kernel is used for a call without score terms that needs no mask, or None to use PyTorch's attention."""
    if call.score_terms or call.query.device.type != "cpu" or compat.is_exporting():
        return None
    if torch.compiler.is_compiling():  # a graph serves all lengths
        return WHY if not call.has_few_queries and _is_ahead_everywhere(*kind_of(call, 0)) else None
    kind = kind_of(call, torch.get_num_threads())
    tokens, race = _tokens(call), race_of(kind)
    if race is None:
        return f"{WHY}, and from {DEFAULT_TOKENS} tokens on the kernel is taken" if tokens >= DEFAULT_TOKENS else None
    lap = nearest(race, tokens)
    return f"{WHY}, and in a race on this machine {lap.told('native')}" if lap.is_kernel else None


WHY = "there are no score terms"


def _is_ahead_everywhere(*kind: Any) -> bool:
    """Asked in a graph, which does not know the number of threads."""
    race = race_of(Kind(*kind)._replace(on=on_cpu(torch.get_num_threads())))
    return race is not None and all(lap.is_kernel for lap in race if lap.tokens > LENGTHS[0])


_is_ahead_everywhere._dynamo_marked_constant = True  # type: ignore[attr-defined]


def nearest(race: Race, tokens: float) -> Lap:
    """The lap of the nearest length, by ratio."""
    return min(race, key=lambda lap: abs(math.log(lap.tokens / max(tokens, 1))))


# -- on a GPU ---------------------------------------------------------------------------------------------------------


def fastest_on_gpu(call: Call, takes: Callable[[str], bool]) -> tuple[str, str] | None:
    """The backend that was fastest, of those that take the call, in the race of its kind on this GPU, and the times;
    None if there was no race. A graph does not ask, since it serves all lengths."""
    kind = kind_on_gpu(call) if compat.is_eager() and not is_off() and races_on_gpus() else None
    race = races_on_gpus().get(str(kind)) if kind is not None else None
    if race is None or _tokens(call) < race[0].tokens / 2:
        return None
    lap = nearest(race, _tokens(call))
    name = min(filter(takes, lap.seconds), key=lap.seconds.__getitem__, default=None)
    return None if name is None else (name, f"in a race on this device {lap.told(name)}")


@functools.cache
def races_on_gpus() -> Mapping[str, Race]:
    """All races on GPUs, read once by a process; those that another one runs later are for processes after it."""
    return stored(GPU)


def kind_on_gpu(call: Call) -> Kind | None:
    """The kind that a call belongs to; None if that is not raced. Queries and keys are rotated before."""
    width = next((n for n in WIDTHS if n >= max(call.query.size(3), call.value.size(3))), None)
    words = {None if term.is_planar else _word(term) for term in (*call.score_terms, *call.values)} or {"plain"}
    words = {"vectors"} if "vectors" in words and None not in words else words
    (added, *others), is_few, is_training = words, call.has_few_queries, _is_trained(call)
    is_whole = is_triangle(call) or sees_all(call.query_positions, call.key_positions, call.visibility)
    is_other = call.attn_mask is not None or call.dropout_p > 0 or call.return_lse or (is_few and is_training)
    if width is None or added is None or others or is_other or not is_whole:
        return None
    if added == "table" and torch.is_grad_enabled() and learns(call):
        added, is_training = "learned table", True
    is_causal = is_few or is_triangle(call)
    return Kind(call.query.dtype, added, is_causal, is_training, is_few, width, on_gpu(call.query.device))


def on_gpu(device: torch.device) -> str:
    return ", ".join(filter(None, (torch.cuda.get_device_name(device), compat.flash_attention())))


def _word(term: Term) -> str | None:
    match term:
        case RelativeDot() | AddedVector() | Value():
            return "vectors"
        case CumulativeBias():
            return "clock"
        case Bias():
            return "line" if term.distance.tail == "linear" and term.distance.past == 0 else "table"
    return None


def learns(call: Call) -> bool:
    """Whether a number per distance has a gradient, which one distance shows as well as all."""
    r = torch.zeros(1, dtype=torch.int64, device=call.query_positions.device)
    lines = [term.at(r) for term in call.score_terms if isinstance(term, Bias)]
    for term in call.score_terms:
        if isinstance(term, Function) and term.distance is not None:
            lines += term.coefficients(r)
    return any(line.requires_grad for line in lines)


# -- on a CPU ---------------------------------------------------------------------------------------------------------


def race_of(kind: Kind) -> Race | None:
    """The race of this kind on a CPU, run now if it never was on this machine. None where races are turned off, or
    operations are traced, replaced or profiled."""
    found = _RACES.get(kind)
    if found is not None or is_off():
        return found
    with _LOCK, compat.outside_compilation() if torch.compiler.is_compiling() else nullcontext():
        if kind in _RACES:
            return _RACES[kind]
        before = stored(precision_of(kind.dtype)).get(str(kind))
        if before is not None:
            _RACES[kind] = before
        elif _is_undisturbed():
            _RACES[kind] = run(kind, CPU)
            store(precision_of(kind.dtype), kind, _RACES[kind])
        return _RACES.get(kind)


def is_off() -> bool:
    return os.environ.get(SWITCH, "1").lower() in library.OFF


def _is_undisturbed() -> bool:
    """Whether times are those of any other program: no switch, tracer or profiler makes calls slower."""
    is_watched = sys.gettrace() is not None or sys.getprofile() is not None or torch.is_anomaly_enabled()
    is_switched = torch.are_deterministic_algorithms_enabled() or not torch.backends.cuda.flash_sdp_enabled()
    return compat.can_bypass_dispatch(()) and not (is_watched or is_switched)


# -- the race ---------------------------------------------------------------------------------------------------------


def run(kind: Kind, track: Track) -> Race:
    """Races at one length after the other; less than two backends have no race."""
    laps: list[Lap] = []
    # Neither the caller's autocast, inference mode and hooks nor its random numbers have a part in it. Checkpointing
    # has such hooks, which would run the layer again, in which this race is.
    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(kind.is_training),
        torch.autocast(track.device.type, enabled=False),
        compat.without_saved_tensors_hooks(),
    ):
        entered = track.enter(kind)
        for tokens in track.lengths:
            laps.append(_lap(tokens, entered(tokens), track))
            if len(laps[-1].seconds) < 2:
                return tuple(laps[:-1])
            first, second, *_ = sorted(laps[-1].seconds.values())
            if tokens >= track.deciding and second >= CLEAR_RATIO * first:
                break
    return tuple(laps)


def _lap(tokens: int, runs: Mapping[str, Once], track: Track) -> Lap:
    for once in runs.values():  # what is made at the first call
        once()
    counts = {name: max(1, math.ceil(SECONDS_OF_TIMING / track.seconds(once, 1))) for name, once in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    end, rounds = time.perf_counter() + SECONDS_OF_ROUNDS, 0
    while rounds < ROUNDS[0] or (rounds < ROUNDS[1] and time.perf_counter() < end):
        for name, once in runs.items():
            times[name].append(track.seconds(once, counts[name]))
        rounds += 1
    is_clear = all(statistics.median(found) < NOISY_RATIO * min(found) for found in times.values())
    return Lap(tokens, {name: track.typical(found) for name, found in times.items()}, is_clear)


def _seconds(once: Once, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        once()
    return (time.perf_counter() - start) / count


def call_of(kind: Kind, tokens: int, shape: tuple[int, int], device: torch.device) -> Call:
    """A call of the kind without score terms, of so many rows and heads."""
    numbers = torch.arange(tokens * kind.width, device=device).view(1, 1, tokens, kind.width)
    heads = torch.arange(math.prod(shape), device=device).view(*shape, 1, 1) + 1.0
    query, key, value = (
        ((numbers * heads + n) * 0.7).sin().to(kind.dtype).requires_grad_(kind.is_training) for n in range(3)
    )
    positions, rotation = Positions.arange(tokens, device=device), None
    of_query = positions
    if kind.added == "rotated":
        pairs = kind.width // 2
        angles = torch.arange(tokens, device=device)[:, None] * 10_000.0 ** (
            -torch.arange(pairs, device=device) / pairs
        )
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


def once_of(backend: Backend, call: Call, parameters: Iterable[Tensor] = ()) -> Once:
    """A run of the call and, where something has a gradient, of its backward pass."""
    inputs = [x for x in (call.query, call.key, call.value, *parameters) if x.requires_grad]

    def once() -> None:
        out, _ = backend(call)
        if inputs:
            torch.autograd.grad(out, inputs, out)

    return once


def _enter(kind: Kind) -> Callable[[int], Mapping[str, Once]]:
    def at(tokens: int) -> Mapping[str, Once]:
        call = call_of(kind, tokens, (1, max(4, torch.get_num_threads())), torch.device("cpu"))
        return {backend.name: once_of(backend, call) for backend in (SDPA, NATIVE)}

    return at


# The fastest round, since other processes only add to a time.
CPU = Track(torch.device("cpu"), LENGTHS, DECIDING_TOKENS, _enter, _seconds, min)


# -- what is kept -----------------------------------------------------------------------------------------------------


def precision_of(dtype: torch.dtype) -> str:
    """The precision of the library that calls of this dtype use."""
    is_converted = dtype == torch.float16 or (dtype == torch.bfloat16 and not library.multiplies_bfloat16())
    return library.REALS[torch.float32 if is_converted else dtype]


def path_of(place: str) -> Path | None:
    """The file of the races with the library of this precision, or on GPUs; None without a library or a cache."""
    here = Path(__file__).parent
    sources = [Path(__file__), here / "sdpa.py"]  # the kernel's sources are in its identity
    if place == GPU:
        sources += [here / "flex.py", *sorted((here / "triton").glob("*.py"))]
        others = (importlib.metadata.distributions(name=name) for name in ("triton", "flash-attn-4"))
        versions = [torch.__version__, *(str(found.version) for each in others for found in each)]
    else:
        found = library.find(place)
        if isinstance(found, UnavailableError):
            return None
        versions = [library.identity(found.record)]
    with contextlib.suppress(UnavailableError):
        parts = (*versions, *(path.read_text(encoding="utf-8") for path in sources))
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
        return library.cache() / f"races-{digest}.json"
    return None


def stored(place: str) -> dict[str, Race]:
    """The races in the cache, by the words of their kinds; none if they cannot be read."""
    path = path_of(place)
    try:
        found = json.loads((path and build.content(path)) or b"{}")
        races = {str(kind): tuple(_lap_of(lap, place) for lap in laps) for kind, laps in found.items()}
    except (UnavailableError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {kind: race for kind, race in races.items() if race}


def _lap_of(lap: Sequence[Any], place: str) -> Lap:
    """ValueError, TypeError or AttributeError for what is not a lap."""
    tokens, seconds, is_clear = lap
    racers = RACERS.get(place, ("sdpa", "native"))
    if not isinstance(tokens, int) or tokens < 1 or len(seconds) < 2 or not seconds.keys() <= set(racers):
        raise ValueError(f"a lap must have tokens and seconds of two of {racers}, got {lap}")
    if not all(isinstance(x, float) and 0 < x < math.inf for x in seconds.values()):
        raise ValueError(f"the seconds of a lap must be above 0, got {lap}")
    return Lap(tokens, seconds, bool(is_clear))


def store(place: str, kind: Kind, race: Race) -> None:
    """Keeps a race beside the others, unless it was too noisy: it is run again then."""
    path = path_of(place)
    if path is None or not all(lap.is_clear for lap in race):
        return
    with build.lock(path.with_name(".races")), contextlib.suppress(OSError):  # a full disk
        build.write(path, json.dumps(stored(place) | {str(kind): race}))
