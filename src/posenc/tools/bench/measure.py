"""Times competitors in interleaved rounds, until every ratio to the baseline is known precisely enough."""

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.own import place_of
from posenc.tools.bench.settings import Settings
from posenc.tools.kit.memory import peak_bytes
from posenc.tools.kit.others import now, others
from posenc.tools.kit.turns import FEWEST, orders, ratios

Work: TypeAlias = Callable[[], tuple[Tensor, ...]]
"""What is timed: it gives the tensors that its user is left with."""

Make: TypeAlias = Callable[[], Work]
"""Sets up a competitor, outside of all timing. Raises `LeftOutError` where it cannot take part."""

Clock: TypeAlias = Callable[[Work], float]
"""The seconds of one call."""

# A timing repeats a call until it lasts this long, or the clock and the interpreter would be what is measured.
SHORTEST = 5e-3
# Rounds end when every interval is narrower than this share of its median.
NARROW = 0.1


class LeftOutError(Exception):
    """A competitor cannot take part; the message has the reason."""


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


def race(
    makes: Mapping[str, Make],
    *,
    rounds: int,
    budget: float,
    clock: Clock,
    memory: torch.device | None = None,
    seed: int | str = 0,
) -> dict[str, Any]:
    """Times all competitors in turns, each round in an order of its own that ``seed`` draws; the first of ``makes`` is
    the baseline.

    Each is set up and called once or twice before the first round, which is when it compiles. There are ``rounds``
    rounds or more: twice as many, and twice as many again, until every ratio is known to a tenth, or until they have
    lasted ``budget`` seconds. With ``memory``, the device, the peak of a call is taken too, beyond what it began with
    and what it gave.

    Gives ``rounds``, ``orders``, of each round the competitors by their place in ``results``, ``others``, how many
    cores other processes kept busy meanwhile (None where that is not known), ``baseline`` and, by the competitors'
    names, ``results``: the seconds of a call in each round, ``ratio`` to the baseline and ``peak_bytes``; or, for one
    that cannot take part, ``left_out`` and why.
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
        return {"rounds": 0, "orders": [], "others": None, "baseline": baseline, "results": results | gone}
    places, drawn = list(results), orders(tuple(works), seed)
    ran: list[list[int]] = []
    begin, known, look = now(), False, max(rounds, FEWEST)
    while len(ran) < rounds or not (known or time.perf_counter() - begin.wall > budget):
        order = next(drawn)
        for name in order:
            results[name]["seconds"].append(clock(partial(_repeated, works[name], calls[name])) / calls[name])
        ran.append([places.index(name) for name in order])
        if len(ran) == look:  # asked after every round, rounds would end where the interval happens to be narrow
            look *= 2
            spreads = [ratios(results[name]["seconds"], results[baseline]["seconds"]) for name in works]
            known = all(high - low < NARROW * median for median, low, high in spreads)
    for name in works:
        results[name]["ratio"] = list(ratios(results[name]["seconds"], results[baseline]["seconds"]))
    busy = others(begin, now(), os.cpu_count() or 1)
    return {"rounds": len(ran), "orders": ran, "others": busy, "baseline": baseline, "results": results}


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
