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
from posenc.encoding.terms import Bias, CumulativeBias, Function, RelativeDot, Term
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

CPU_RACERS, GPU_RACERS = ("sdpa", "native"), ("sdpa", "triton", "flex")
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
        seen = "causal" if self.is_causal else "both directions"
        phase = "training" if self.is_training else "forward"
        words = str(self.dtype).removeprefix("torch."), self.added, seen, phase, "few queries" * self.is_few
        return ", ".join(filter(None, (*words, f"{self.width} channels", self.on)))


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

    def comparison(self, name: str) -> str:
        """The time of this backend against those of the others."""
        others = sorted((seconds, other) for other, seconds in self.seconds.items() if other != name)
        against = " and ".join(f"{seconds * 1e3:.3g} of {other}" for seconds, other in others)
        noise = "" if self.is_clear else ", too noisy to tell"
        return f"{name} took {self.seconds[name] * 1e3:.3g} ms against {against} at {self.tokens:,} tokens{noise}"


Race = tuple[Lap, ...]  # empty: fewer than two backends take the call
Run = Callable[[], None]
_RACES: dict[Kind, Race] = {}  # of this process; never stale, since neither machine nor library changes under it
_LOCK = threading.RLock()


class Benchmark(NamedTuple):
    """How backends race on a device. ``entries(kind)`` returns the runs of one call at a length, by backend."""

    device: torch.device
    lengths: Sequence[int]
    deciding_tokens: int  # from which on a clear lead ends the race
    entries: Callable[[Kind], Callable[[int], Mapping[str, Run]]]
    seconds: Callable[[Run, int], float]  # of a run, of so many one after the other


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
    return f"{WHY}, and in a race on this machine {lap.comparison('native')}" if lap.is_kernel else None


WHY = "there are no score terms"


def _is_ahead_everywhere(*kind: Any) -> bool:
    """Asked in a graph, which does not know the number of threads."""
    race = race_of(Kind(*kind)._replace(on=on_cpu(torch.get_num_threads())))
    return race is not None and all(lap.is_kernel for lap in race if lap.tokens > LENGTHS[0])


_is_ahead_everywhere._dynamo_marked_constant = True  # type: ignore[attr-defined]


def nearest(race: Race, tokens: float) -> Lap:
    """The lap of the nearest length, by ratio. Texts longer than all have the last one: who is ahead there is so by the
    work of a pair, no longer by what a call costs at any length."""
    return min(race, key=lambda lap: abs(math.log(lap.tokens / max(tokens, 1))))


def comparisons(race: Race) -> list[str]:
    """The times of the fastest against those of the others, by length."""
    return [lap.comparison(lap.fastest) for lap in race] or ["fewer than two backends take it"]


# -- on a GPU ---------------------------------------------------------------------------------------------------------


def fastest_on_gpu(call: Call, takes: Callable[[str], bool]) -> tuple[str, str] | None:
    """The backend that was fastest, of those that take the call, in the race of its kind on this GPU, and the times;
    None if there was no race. A graph does not ask, since it serves all lengths."""
    races = races_on(gpu_name(call.query.device)) if compat.is_eager() and not is_off() else {}
    race, tokens = races.get(str(kind_on_gpu(call))) if races else None, _tokens(call)
    if not race or tokens < race[0].tokens / 2:
        return None
    lap = nearest(race, tokens)
    name = min(filter(takes, lap.seconds), key=lap.seconds.__getitem__, default=None)
    return None if name is None else (name, f"in a race on this device {lap.comparison(name)}")


@functools.cache
def races_on(gpu: str) -> Mapping[str, Race]:
    """The races on this GPU, read once by a process; those that another one runs later are for processes after it."""
    return stored(gpu)


def gpu_name(device: torch.device) -> str:
    """The name of a GPU, and what is in FlashAttention's place."""
    return ", ".join(filter(None, (torch.cuda.get_device_name(device), compat.flash_attention())))


def kind_on_gpu(call: Call) -> Kind | None:
    """The kind that a call belongs to; None if that is not raced. Queries and keys are rotated before."""
    terms, dtype = (*call.score_terms, *call.values), call.query.dtype
    added = "plain" if not terms else _word(terms[0]) if len(terms) == 1 else None
    width = next((n for n in WIDTHS if n >= max(call.query.size(3), call.value.size(3))), None)
    is_few, is_training, is_causal = call.has_few_queries, _is_trained(call), is_triangle(call)
    is_other = (
        call.attn_mask is not None or call.dropout_p > 0 or call.return_lse or (is_few and is_training)
        or call.query.size(1) != call.key.size(1) or not is_raced_in(dtype)
        or not (is_causal or sees_all(call.query_positions, call.key_positions, call.visibility))
    )  # fmt: skip
    if width is None or added is None or is_other:
        return None
    if added == "table" and torch.is_grad_enabled() and learns(call):
        added, is_training = "learned table", True
    return Kind(dtype, added, is_few or is_causal, is_training, is_few, width, gpu_name(call.query.device))


def is_raced_in(dtype: torch.dtype) -> bool:
    """TF32 is not a part of a kind, so with it no race is run or decides."""
    return dtype != torch.float32 or not compat.multiplies_in_tf32()


def _word(term: Term) -> str | None:
    """What a term adds, if calls with such terms are raced."""
    match term:
        case CumulativeBias():
            return "clock"
        case Bias(is_planar=False, distance=distance):
            is_line = distance.tail == "linear" and distance.past == 0
            return "line" if is_line else "table" if distance.tail == "constant" else None
        case RelativeDot(is_planar=False, side="query", feature=None, through=None, distance=distance):
            return "vectors" if distance.tail == "constant" else None
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
        if before:
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


def run(kind: Kind, benchmark: Benchmark) -> Race:
    """Races at one length after the other, while there are two backends."""
    laps: list[Lap] = []
    # Neither the caller's autocast, inference mode and hooks nor its random numbers have a part in it. Checkpointing
    # has such hooks, which would run the layer again, in which this race is.
    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(kind.is_training),
        torch.autocast(benchmark.device.type, enabled=False),
        compat.without_saved_tensors_hooks(),
    ):
        entries = benchmark.entries(kind)
        for tokens in benchmark.lengths:
            runs = entries(tokens)
            if len(runs) < 2:
                break
            laps.append(_lap(tokens, runs, benchmark))
            first, second, *_ = sorted(laps[-1].seconds.values())
            if tokens >= benchmark.deciding_tokens and second >= CLEAR_RATIO * first:
                break
    return tuple(laps)


def _lap(tokens: int, runs: Mapping[str, Run], benchmark: Benchmark) -> Lap:
    for run in runs.values():  # what is made at the first call
        run()
    counts = {name: max(1, math.ceil(SECONDS_OF_TIMING / benchmark.seconds(run, 1))) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    end, rounds = time.perf_counter() + SECONDS_OF_ROUNDS, 0
    while rounds < ROUNDS[0] or (rounds < ROUNDS[1] and time.perf_counter() < end):
        for name, run in runs.items():
            times[name].append(benchmark.seconds(run, counts[name]))
        rounds += 1
    is_clear = all(statistics.median(each) < NOISY_RATIO * min(each) for each in times.values())
    # The fastest round, since other processes only add to a time.
    return Lap(tokens, {name: min(each) for name, each in times.items()}, is_clear)


def _seconds(run: Run, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


def call_of(kind: Kind, *inputs: Tensor) -> Call:
    """A call of the kind without score terms, with these queries, keys and values."""
    query, key, value = (x.to(kind.dtype).requires_grad_(kind.is_training) for x in inputs)
    tokens, device = key.size(2), key.device
    positions, rotation = Positions.arange(tokens, device=device), None
    of_query = positions
    if kind.added == "rotated":
        pairs = kind.width // 2
        theta = 10_000.0 ** (-torch.arange(pairs, device=device) / pairs)
        angles = torch.arange(tokens, device=device)[:, None] * theta
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


def run_of(backend: Backend, call: Call, parameters: Iterable[Tensor] = ()) -> Run:
    """A run of the call and, where something has a gradient, of its backward pass."""
    inputs = [x for x in (call.query, call.key, call.value, *parameters) if x.requires_grad]

    def run() -> None:
        out, _ = backend(call)
        if inputs:
            torch.autograd.grad(out, inputs, out)

    return run


def _entries(kind: Kind) -> Callable[[int], Mapping[str, Run]]:
    def at(tokens: int) -> Mapping[str, Run]:
        numbers = torch.arange(tokens * kind.width, device="cpu").view(1, 1, tokens, kind.width)
        heads = torch.arange(max(4, torch.get_num_threads()), device="cpu").view(1, -1, 1, 1) + 1.0
        call = call_of(kind, *(((numbers * heads + n) * 0.7).sin() for n in range(3)))
        return {backend.name: run_of(backend, call) for backend in (SDPA, NATIVE)}

    return at


CPU = Benchmark(torch.device("cpu"), LENGTHS, DECIDING_TOKENS, _entries, _seconds)


# -- what is kept -----------------------------------------------------------------------------------------------------


def precision_of(dtype: torch.dtype) -> str:
    """The precision of the library that calls of this dtype use."""
    is_converted = dtype == torch.float16 or (dtype == torch.bfloat16 and not library.multiplies_bfloat16())
    return library.REALS[torch.float32 if is_converted else dtype]


def path_of(place: str) -> Path | None:
    """The file of the races with the library of this precision, or on the GPU of this name; None without a library or a
    cache. Its name has the digest of all that a race measures."""
    here = Path(__file__).parent
    sources = [Path(__file__), here / "sdpa.py"]  # the kernel's sources are in its identity
    if place in build.PRECISIONS:
        binary = library.find(place)
        if isinstance(binary, UnavailableError):
            return None
        parts = [library.identity(binary.record)]
    else:
        sources += [here / "flex.py", here / "blockwise.py", here.parent / "command" / "tuning.py"]
        sources += sorted((*here.glob("triton/*.py"), *here.parent.glob("lowering/*.py")))
        packages = (importlib.metadata.distributions(name=name) for name in ("triton", "flash-attn-4"))
        parts = [place, torch.__version__, *(package.version for each in packages for package in each)]
    with contextlib.suppress(UnavailableError):
        parts += [path.read_text(encoding="utf-8") for path in sources]
        return library.cache() / f"races-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}.json"
    return None


def stored(place: str) -> dict[str, Race]:
    """The races in the cache, by the words of their kinds; none if they cannot be read."""
    path, racers = path_of(place), CPU_RACERS if place in build.PRECISIONS else GPU_RACERS
    try:
        found = json.loads((path and build.content(path)) or b"{}")
        races = {str(kind): tuple(_lap_of(lap, racers) for lap in race) for kind, race in found.items()}
    except (UnavailableError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    if path is not None and races:
        with contextlib.suppress(OSError):
            os.utime(path)  # it is in use
    return races


def _lap_of(lap: Sequence[Any], racers: Sequence[str]) -> Lap:
    """ValueError, TypeError or AttributeError for what is not a lap."""
    tokens, seconds, is_clear = lap
    if not isinstance(tokens, int) or tokens < 1 or len(seconds) < 2 or not seconds.keys() <= set(racers):
        raise ValueError(f"a lap must have tokens and seconds of two of {racers}, got {lap}")
    if not all(isinstance(x, float) and 0 < x < math.inf for x in seconds.values()):
        raise ValueError(f"the seconds of a lap must be above 0, got {lap}")
    return Lap(tokens, seconds, bool(is_clear))


def store(place: str, kind: Kind, race: Race) -> bool:
    """Keeps a race beside the others, unless it was too noisy: then it returns False, and it is to be run again."""
    is_clear, path = all(lap.is_clear for lap in race), path_of(place)
    if path is not None and is_clear:
        with build.lock(path.with_name(".races")), contextlib.suppress(OSError):  # a full disk
            build.write(path, json.dumps(stored(place) | {str(kind): race}))
    return is_clear
