"""``posenc kernel --tune``: races between the backends of a GPU, on every kind of call."""

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from posenc.backends import choose, races
from posenc.backends.call import Backend, Call
from posenc.backends.races import Benchmark, Kind, Run
from posenc.backends.reference import REFERENCE
from posenc.command.progress import Progress
from posenc.encoding.context import projected_at_random
from posenc.scheme import Scheme
from posenc.schemes.alibi import ALiBi
from posenc.schemes.fox import FoX
from posenc.schemes.nope import NoPE
from posenc.schemes.shaw import Shaw
from posenc.schemes.t5 import T5

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LENGTHS, DECIDING_TOKENS, CHECKED_TOKENS = (256, 1024, 4096, 16_384), 4096, 192
TOKENS, CHANNELS, SEQUENCES = 16_384, 1024, 8  # of all rows, of all heads, and the rows of few queries
LARGER_THAN_CACHES = 2**28  # bytes
# The largest relative error of a right result: 8 units in the last place, in float32 those of TF32. A kernel that
# leaves out a term has a larger one.
UNITS, TF32 = 8, 2.0**-10

SCHEMES: Mapping[str, Callable[[int, Kind], Scheme]] = {
    "plain": lambda heads, kind: NoPE(),
    "line": lambda heads, kind: ALiBi(heads, "causal" if kind.is_causal else "bidirectional"),
    "table": lambda heads, kind: T5(heads, bidirectional=not kind.is_causal).requires_grad_(False),
    "learned table": lambda heads, kind: T5(heads, bidirectional=not kind.is_causal),
    "vectors": lambda heads, kind: Shaw(kind.width, 16, values=False),
    "clock": lambda heads, kind: FoX(heads),
}
"""The scheme that adds what a kind's word says."""


def kinds(gpu: str) -> Iterator[Kind]:
    """All that are raced, those of most models first."""
    dtypes = filter(races.is_raced_in, DTYPES)
    widths = sorted(races.WIDTHS, key=lambda width: width not in (64, 128))
    ways = (True, False, False), (True, True, False), (True, False, True), (False, False, False), (False, True, False)
    for dtype, width, added, (is_causal, is_training, is_few) in itertools.product(dtypes, widths, SCHEMES, ways):
        if (added != "learned table" or is_training) and (added != "clock" or is_causal):
            yield Kind(dtype, added, is_causal, is_training, is_few, width, gpu)


def tune(words: Sequence[str], gpu: str, benchmark: Benchmark, progress: Progress) -> None:
    """Races the kinds with all these words that were not raced, and keeps each at once. ValueError if none has them."""
    selection = [kind for kind in kinds(gpu) if set(words) <= set(str(kind).split(", "))]
    if not selection:
        raise ValueError(f"--tune must be words of a kind, such as {str(next(kinds(gpu)))!r}, got {' '.join(words)!r}")
    earlier, noisy = races.stored(gpu), 0
    rest = [kind for kind in selection if str(kind) not in earlier]
    progress.begin(len(selection))
    progress.skip(len(selection) - len(rest))
    for kind in rest:
        progress.advance(0, str(kind))
        race = races.run(kind, benchmark)
        is_clear = races.store(gpu, kind, race)
        noisy += not is_clear
        progress.say(f"{kind}: {'; '.join(races.comparisons(race))}{'' if is_clear else '; it is not kept'}")
        progress.advance(1, str(kind))
    more = f", of which {noisy} were too noisy to keep: the same command runs them again" if noisy else ""
    print(f"{len(selection)} kinds of calls: {len(selection) - len(rest)} were raced before, {len(rest)} now{more}")


# -- on the device ----------------------------------------------------------------------------------------------------


def benchmark_on(device: torch.device, say: Callable[[str], None]) -> Benchmark:
    """The races on a GPU, of the backends that take a call and compute it right. One that fails at a length is left out
    from there on."""

    def entries(kind: Kind) -> Callable[[int], Mapping[str, Run]]:
        racers = [backend for backend in choose.BACKENDS if backend.name in races.GPU_RACERS]

        def passing(call: Call, test: Callable[[Backend], str | None]) -> list[Backend]:
            """Those that take the call and pass the test."""
            able = [backend for backend in racers if backend.refuses(call) is None]
            for backend in able:
                try:
                    fault = test(backend)
                except Exception as error:  # of a compiler or the device: the others go on
                    fault = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                if fault is not None:
                    say(f"{kind}: {backend.name} is left out at {call.key.size(2):,} tokens: {fault}")
                    racers.remove(backend)
            return [backend for backend in able if backend in racers]

        def at(tokens: int) -> Mapping[str, Run]:
            call, parameters = call_of(kind, tokens, device)
            runs = {backend.name: races.run_of(backend, call, parameters) for backend in racers}
            return {backend.name: runs[backend.name] for backend in passing(call, lambda each: runs[each.name]())}

        call, parameters = call_of(kind, CHECKED_TOKENS, device)
        exact = _results(REFERENCE, call, parameters)
        bound = UNITS * max(torch.finfo(kind.dtype).eps, TF32)

        def fault_of(backend: Backend) -> str | None:
            """How far its output and gradients are from the reference's; None if they are right."""
            pairs = zip(_results(backend, call, parameters), exact, strict=True)
            errors = [float((x - y).norm() / y.norm()) for x, y in pairs]
            wrong = next((error for error in errors if not error <= bound), None)  # NaN too
            return None if wrong is None else f"its error is {wrong:.2g} of the result, above {bound:.2g}"

        racers = passing(call, fault_of)
        return at

    return Benchmark(device, LENGTHS, DECIDING_TOKENS, entries, partial(seconds, device))


def call_of(kind: Kind, tokens: int, device: torch.device) -> tuple[Call, list[Tensor]]:
    """A call of the kind, and what has a gradient beside its queries, keys and values."""
    heads, rows = CHANNELS // kind.width, SEQUENCES if kind.is_few else max(TOKENS // tokens, 1)
    call = races.call_of(kind, *(_noise(seed, (rows, heads, tokens, kind.width), device) for seed in range(3)))
    scheme = SCHEMES[kind.added](heads, kind).to(device)
    with torch.no_grad():
        for parameter in scheme.parameters():  # which begin at zero, where a kernel might as well leave them out
            parameter.copy_(torch.arange(parameter.numel()).sin().view_as(parameter))
    encoding = scheme(call.key_positions, dtype=torch.float32)
    if encoding.wanted:
        x = call.key.detach().transpose(1, 2).flatten(2)
        encoding = encoding.with_projected(projected_at_random(scheme.features, x))
    of_key = {name: x.detach().requires_grad_(kind.is_training) for name, x in encoding.key_features.items()}
    of_query = {name: x[:, :, -call.query.size(2) :] for name, x in of_key.items()}
    call = replace(call, score_terms=encoding.score_terms, query_features=of_query, key_features=of_key)
    learned = [x for x in (*scheme.parameters(), *of_key.values()) if x.requires_grad and kind.is_training]
    return call.with_store({}), learned


def _noise(seed: int, shape: Sequence[int], device: torch.device) -> Tensor:
    """Random numbers, since sums of waves cancel: rounding would be as large a share as what a wrong kernel adds."""
    return torch.randn(shape, generator=torch.Generator(device).manual_seed(seed), device=device)


def _results(backend: Backend, call: Call, parameters: list[Tensor]) -> list[Tensor]:
    """The output and all gradients, in float64."""
    inputs = [x for x in (call.query, call.key, call.value, *parameters) if x.requires_grad]
    out, _ = backend(call)
    gradients = torch.autograd.grad(out, inputs, _noise(3, out.shape, out.device).to(out.dtype)) if inputs else ()
    return [x.detach().double() for x in (out, *gradients)]


def seconds(device: torch.device, run: Run, count: int) -> float:
    """The median time of a run, by the device's clock. Caches are emptied before each run, and meanwhile the host
    launches its kernels."""
    flushed, times = torch.empty(LARGER_THAN_CACHES, dtype=torch.int8, device=device), []
    for _ in range(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flushed.zero_()
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)
