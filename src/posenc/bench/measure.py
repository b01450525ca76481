"""Timing in turns: every competitor once a round, so that a machine that is busy for a while slows all of them alike.

What is compared is the ratio of two times of the same round; of the rounds' ratios the median is given, and how well
it is known.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.bench.settings import Settings
from posenc.schemes.own import place_of
from posenc.workbench.memory import peak_bytes
from posenc.workbench.others import now, others

Work: TypeAlias = Callable[[], tuple[Tensor, ...]]
"""What is timed: it gives the tensors that its user is left with."""

Make: TypeAlias = Callable[[], Work]
"""Sets up a competitor, outside of all timing. Raises `LeftOutError` where it cannot take part."""

Spread: TypeAlias = tuple[float, float, float]
"""A median, and the ends of the interval that it is known to lie in."""

Clock: TypeAlias = Callable[[Work], float]
"""The seconds of one call."""

# A timing repeats a call until it lasts this long, or the clock and the interpreter would be what is measured.
SHORTEST = 5e-3
# An interval is to hold the true median in this share of cases; rounds end when it is narrower than this share of it.
SURE, NARROW = 0.9, 0.1
FEWEST = 5  # values: all of four hold the median in 7 of 8 cases only


class LeftOutError(Exception):
    """A competitor that cannot take part; the message says why."""


@dataclass(frozen=True)
class Inputs:
    """What attention is timed on: queries, keys, values and the gradient that comes back. In training the first three
    ask for theirs."""

    query: Tensor
    key: Tensor
    value: Tensor
    gradient: Tensor
    training: bool

    @classmethod
    def draw(cls, settings: Settings, queries: int, keys: int, training: bool) -> "Inputs":
        """Gaussian ones, the same each time."""
        dtype, device = getattr(torch, settings.dtype), torch.device(settings.device)
        generator = torch.Generator(device).manual_seed(0)

        def tensor(tokens: int) -> Tensor:
            shape = (1, settings.heads, tokens, settings.head_dim)
            return torch.randn(shape, generator=generator, dtype=dtype, device=device)

        made = (tensor(queries), tensor(keys), tensor(keys))
        query, key, value = (x.requires_grad_(training) for x in made)
        return cls(query, key, value, tensor(queries), training)

    def work(self, attend: Callable[[], Tensor], parameters: tuple[Tensor, ...] = ()) -> Work:
        """The call, or the call and its backward pass to queries, keys, values and parameters."""

        def forward() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return (attend(),)

        def training() -> tuple[Tensor, ...]:
            out = attend()
            return (out, *torch.autograd.grad(out, (self.query, self.key, self.value, *parameters), self.gradient))

        return training if self.training else forward

    def plain(self) -> Work:
        """The baseline."""
        return self.work(lambda: F.scaled_dot_product_attention(self.query, self.key, self.value, is_causal=True))


def spread(values: Sequence[float]) -> Spread:
    """The median, and the interval from the k-th smallest to the k-th largest value, with the largest k that makes it
    hold the true median in 9 of 10 cases, whatever the values are drawn from. Fewer than 5 have no such interval: of
    these all, which hold it in less.

    >>> spread([4.0, 1.0, 2.0, 3.0, 5.0])
    (3.0, 1.0, 5.0)
    >>> spread([4.0, 1.0, 2.0, 3.0, 5.0, 6.0, 8.0, 7.0])
    (4.5, 2.0, 7.0)
    """
    ordered, count = sorted(values), len(values)
    # The median is below the k-th smallest if k - 1 or fewer of the values are below the median, as of coins tossed.
    left_out, outside = 0, 1
    while 2 * (outside := outside + math.comb(count, left_out + 1)) <= (1 - SURE) * 2**count:
        left_out += 1
    return statistics.median(ordered), ordered[left_out], ordered[-1 - left_out]


def ratios(seconds: Sequence[float], baseline: Sequence[float]) -> Spread:
    """Of the times of a competitor over those of the baseline, round by round.

    >>> ratios([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    (2.0, 2.0, 3.0)
    """
    return spread([mine / its for mine, its in zip(seconds, baseline, strict=True)])


def race(
    makes: Mapping[str, Make], *, rounds: int, budget: float, clock: Clock, memory: torch.device | None = None
) -> dict[str, Any]:
    """Times all competitors in turns; the first is the baseline.

    Each is set up and called once or twice before the first round, which is when it compiles. There are ``rounds``
    rounds or more: until every ratio is known to a tenth, or until they have lasted ``budget`` seconds. With
    ``memory``, the device, the peak of a call is taken too, beyond what it began with and what it gave.

    Gives ``rounds``, ``others``, how many cores other processes kept busy during them (None where that is not known),
    ``baseline`` and, by the competitors' names, ``results``: the seconds of a call in each round, ``ratio`` to the
    baseline and ``peak_bytes``; or, for one that cannot take part, ``left_out`` and why.
    """
    works: dict[str, Work] = {}
    results: dict[str, dict[str, Any]] = {}
    calls: dict[str, int] = {}
    for name, make in makes.items():
        try:
            work = make()
            clock(work)
            results[name] = {"seconds": []}
            if memory is not None:
                results[name]["peak_bytes"] = beyond(work, memory)
            calls[name] = max(1, math.ceil(SHORTEST / max(clock(work), 1e-6)))
            works[name] = work
        except LeftOutError as error:
            results[name] = {"left_out": str(error)}
        except Exception as error:  # whatever a library or a compiler throws ends that one alone, and is said
            place = f" at {place_of(error)}" if place_of(error) else ""
            words = next(iter(str(error).strip().splitlines()), "")
            results[name] = {"left_out": f"failed{place} with {type(error).__name__}: {words}"}
    baseline = next(iter(makes))
    if baseline not in works:
        gone = {name: {"left_out": f"{baseline}, which it is compared with, was left out"} for name in works}
        return {"rounds": 0, "others": None, "baseline": baseline, "results": results | gone}
    done, begin, known = 0, now(), False
    while done < rounds or not (known or time.perf_counter() - begin.wall > budget):
        for name, work in works.items():
            results[name]["seconds"].append(clock(partial(_repeated, work, calls[name])) / calls[name])
        done += 1
        for name in works:
            results[name]["ratio"] = list(ratios(results[name]["seconds"], results[baseline]["seconds"]))
        known = done >= FEWEST and all(_narrow(*results[name]["ratio"]) for name in works)
    busy = others(begin, now(), os.cpu_count() or 1)
    return {"rounds": done, "others": busy, "baseline": baseline, "results": results}


def _narrow(median: float, low: float, high: float) -> bool:
    return high - low < NARROW * median


def beyond(work: Work, device: torch.device) -> int:
    """The peak of memory during a call, beyond what it began with and what it gives."""
    given: list[int] = []

    def call() -> None:
        given.append(sum(x.numel() * x.element_size() for x in work()))

    return max(0, peak_bytes(call, device) - given[0])


def _repeated(work: Work, times: int) -> tuple[Tensor, ...]:
    for _ in range(times - 1):
        work()
    return work()
