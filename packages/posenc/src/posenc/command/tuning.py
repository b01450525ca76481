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
from posenc.backends.races import Kind, Once, Track
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
# An error of this share of the result is no rounding, by units in the last place, in float32 of TF32: a kernel that
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
"""What has a kind's word added to its scores."""


def kinds(on: str) -> Iterator[Kind]:
    """All that are raced, those of most models first."""
    widths = sorted(races.WIDTHS, key=lambda width: width not in (64, 128))
    asked = (True, False, False), (True, True, False), (True, False, True), (False, False, False), (False, True, False)
    for dtype, width, added, (is_causal, is_training, is_few) in itertools.product(DTYPES, widths, SCHEMES, asked):
        if (added != "learned table" or is_training) and (added != "clock" or is_causal):
            yield Kind(dtype, added, is_causal, is_training, is_few, width, on)


def tune(words: Sequence[str], on: str, track: Track, progress: Progress) -> None:
    """Races the kinds with all these words that were not raced, and keeps each at once. ValueError if none has them."""
    asked = [kind for kind in kinds(on) if all(word in str(kind) for word in words)]
    if not asked:
        raise ValueError(f"--tune must be words of a kind, such as {str(next(kinds(on)))!r}, got {' '.join(words)!r}")
    done = races.stored(races.GPU)
    left = [kind for kind in asked if str(kind) not in done]
    progress.begin(len(asked))
    progress.skip(len(asked) - len(left))
    for kind in left:
        progress.advance(0, str(kind))
        race = races.run(kind, track)
        races.store(races.GPU, kind, race)
        told = "; ".join(lap.told() for lap in race) or "fewer than two backends take it"
        progress.say(f"{kind}: {told}")
        progress.advance(1, str(kind))
    races.races_on_gpus.cache_clear()
    print(f"{len(asked)} kinds of calls: {len(asked) - len(left)} were raced before, {len(left)} now")


# -- on the device ----------------------------------------------------------------------------------------------------


def track_on(device: torch.device, say: Callable[[str], None]) -> Track:
    """The races on a GPU, of the backends that take a call and compute it right."""

    def enter(kind: Kind) -> Callable[[int], Mapping[str, Once]]:
        checked, right = call_of(kind, CHECKED_TOKENS, device), []
        for backend in choose.BACKENDS:
            if backend.name in races.RACERS[races.GPU] and backend.refuses(checked[0]) is None:
                fault = _fault(backend, *checked)
                if fault is None:
                    right.append(backend)
                else:
                    say(f"{kind}: {backend.name} is left out: {fault}")

        def at(tokens: int) -> Mapping[str, Once]:
            call, parameters = call_of(kind, tokens, device)
            return {each.name: races.once_of(each, call, parameters) for each in right if each.refuses(call) is None}

        return at

    return Track(device, LENGTHS, DECIDING_TOKENS, enter, partial(seconds, device), statistics.median)


def call_of(kind: Kind, tokens: int, device: torch.device) -> tuple[Call, list[Tensor]]:
    """A call of the kind, and what has a gradient beside its queries, keys and values."""
    heads, rows = CHANNELS // kind.width, SEQUENCES if kind.is_few else max(TOKENS // tokens, 1)
    call = races.call_of(kind, tokens, (rows, heads), device)
    query, key, value = (
        _noise(n, x).requires_grad_(kind.is_training) for n, x in enumerate((call.query, call.key, call.value))
    )
    scheme = SCHEMES[kind.added](heads, kind).to(device)
    with torch.no_grad():
        for parameter in scheme.parameters():  # which begin at zero, where a kernel might as well leave them out
            parameter.copy_(torch.arange(parameter.numel()).sin().view_as(parameter))
    encoding = scheme(call.key_positions, dtype=torch.float32)
    if encoding.wanted:
        x = key.detach().transpose(1, 2).flatten(2)
        encoding = encoding.with_projected(projected_at_random(scheme.features, x))
    of_key = {name: x.detach().requires_grad_(kind.is_training) for name, x in encoding.key_features.items()}
    of_query = {name: x[:, :, -call.query.size(2) :] for name, x in of_key.items()}
    terms = {"score_terms": encoding.score_terms, "query_features": of_query, "key_features": of_key}
    call = replace(call, query=query, key=key, value=value, **terms)
    learned = [*scheme.parameters(), *of_key.values()] if kind.is_training else []
    return call.with_store({}), [x for x in learned if x.requires_grad]


def _noise(seed: int, like: Tensor) -> Tensor:
    """Of which few sums cancel, as those of waves do, so that an error is one of a backend."""
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.randn(like.shape, generator=generator, device=like.device).to(like.dtype)


def _fault(backend: Backend, call: Call, parameters: list[Tensor]) -> str | None:
    """How far the output and all gradients are from the reference's, or why there are none; None if they are right."""
    inputs = [*(x for x in (call.query, call.key, call.value) if x.requires_grad), *parameters]
    bound = UNITS * max(torch.finfo(call.query.dtype).eps, TF32)

    def found(backend: Backend) -> list[Tensor]:
        out, _ = backend(call)
        gradients = torch.autograd.grad(out, inputs, _noise(3, out)) if inputs else ()
        return [x.detach().double() for x in (out, *gradients)]

    exact = found(REFERENCE)
    try:
        errors = [float((x - y).norm() / y.norm()) for x, y in zip(found(backend), exact, strict=True)]
    except Exception as error:  # of a compiler or the device: the others go on
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    wrong = [f"{error:.2g}" for error in errors if not error <= bound]  # NaN too
    return f"its error is {wrong[0]} of the result, above {bound:.2g}" if wrong else None


def seconds(device: torch.device, once: Once, count: int) -> float:
    """The median time of a run by the device's clock. Before each the caches are emptied; the host goes ahead then."""
    flushed, times = torch.empty(LARGER_THAN_CACHES, dtype=torch.int8, device=device), []
    for _ in range(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flushed.zero_()
        begin.record()
        once()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)
