"""Times competitors in interleaved rounds, until every ratio to the baseline is known precisely enough."""

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.command.memory import peak_bytes
from posenc.schemes.user_code import error_location
from posenc_lab.bench.settings import Settings
from posenc_lab.kit.interleaving import MIN_VALUES, orders, ratios

Work: TypeAlias = Callable[[], tuple[Tensor, ...]]
"""A timed call; it returns the tensors that its user keeps."""

Make: TypeAlias = Callable[[], Work]
"""Sets up a competitor, which is not timed. Raises `LeftOutError` if it cannot take part."""

Clock: TypeAlias = Callable[[Work], float]
"""The seconds of one call."""

STAT = Path("/proc/stat")
MIN_SECONDS = 5e-3  # seconds of a timing, which repeats the call; less would measure the clock and the interpreter
MAX_RELATIVE_WIDTH = 0.1  # rounds end once every interval is narrower than this share of its median


class LeftOutError(Exception):
    """A competitor cannot take part; the message has the reason."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of a timed attention: queries, keys, values, and the gradient of the output. In training, the first
    three require gradients."""

    query: Tensor
    key: Tensor
    value: Tensor
    gradient: Tensor
    training: bool

    @classmethod
    def draw(cls, settings: Settings, queries: int, keys: int, training: bool) -> "Inputs":
        """Fixed Gaussian inputs."""
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
    """Times all competitors in interleaved rounds, each in a random order drawn with ``seed``; the first of ``makes``
    is the baseline.

    Each competitor is set up and called once or twice before the first round, so that it is compiled. There are at
    least ``rounds`` rounds; their number is doubled until every ratio is known to a tenth, or until they have lasted
    ``budget`` seconds. With ``memory``, a device, the peak memory of a call is measured, beyond its inputs and outputs.

    Returns ``rounds``; ``orders``, the indices in ``results`` of the competitors of each round; ``others``, the number
    of cores that other processes kept busy, None if unknown; ``baseline``; and ``results`` by competitor: the seconds
    of a call in each round, ``ratio`` to the baseline and ``peak_bytes``, or, if it could not take part, ``left_out``
    with the reason.
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
            calls[name] = max(1, math.ceil(MIN_SECONDS / max(clock(work), 1e-6)))
            works[name] = work
        except LeftOutError as error:
            results[name] = {"left_out": str(error)}
        except Exception as error:  # an error of a library or a compiler leaves out only that competitor
            place = f" at {error_location(error)}" if error_location(error) else ""
            words = next(iter(str(error).strip().splitlines()), "")
            results[name] = {"left_out": f"failed{place} with {type(error).__name__}: {words}"}
    baseline = next(iter(makes))
    if baseline not in works:
        gone = {name: {"left_out": f"{baseline}, which it is compared with, was left out"} for name in works}
        return {"rounds": 0, "orders": [], "others": None, "baseline": baseline, "results": results | gone}
    places, drawn = list(results), orders(tuple(works), seed)
    ran: list[list[int]] = []
    begin, known, look = now(), False, max(rounds, MIN_VALUES)
    while len(ran) < rounds or not (known or time.perf_counter() - begin.wall > budget):
        order = next(drawn)
        for name in order:
            results[name]["seconds"].append(clock(partial(_repeated, works[name], calls[name])) / calls[name])
        ran.append([places.index(name) for name in order])
        if len(ran) == look:  # a check after every round would stop at intervals that are narrow by chance
            look *= 2
            spreads = [ratios(results[name]["seconds"], results[baseline]["seconds"]) for name in works]
            known = all(high - low < MAX_RELATIVE_WIDTH * median for median, low, high in spreads)
    for name in works:
        results[name]["ratio"] = list(ratios(results[name]["seconds"], results[baseline]["seconds"]))
    busy = others(begin, now(), os.cpu_count() or 1)
    return {"rounds": len(ran), "orders": ran, "others": busy, "baseline": baseline, "results": results}


def beyond(work: Work, device: torch.device) -> int:
    """The peak memory of a call beyond its inputs and outputs."""
    given: list[int] = []

    def call() -> None:
        given.append(sum(x.numel() * x.element_size() for x in work()))

    return max(0, peak_bytes(call, device) - given[0])


def _repeated(work: Work, times: int) -> tuple[Tensor, ...]:
    for _ in range(times - 1):
        work()
    return work()


# --- how busy other processes keep the machine ----------------------------------------------------------------------


class Moment(NamedTuple):
    """The time, and the CPU seconds of all processes and of this one."""

    wall: float
    every: float | None
    """None if unknown."""
    own: float


def now() -> Moment:
    user, system = os.times()[2:4]  # of terminated children
    return Moment(time.perf_counter(), _every(), time.process_time() + user + system)


def others(begin: Moment, end: Moment, cores: int) -> float | None:
    """The mean number of cores kept busy by other processes or by the host of a virtual machine; None if unknown.

    The system counts in ticks, so one tick of each core is subtracted; short times say little.
    """
    if begin.every is None or end.every is None or end.wall <= begin.wall:
        return None
    every, own = end.every - begin.every, end.own - begin.own
    slack = cores * _tick()
    if every < own - slack:  # some sandboxes report zeros
        return None
    return max(0.0, every - own - slack) / (end.wall - begin.wall)


def _every() -> float | None:
    try:
        words = STAT.read_text(encoding="utf-8").split("\n", 1)[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words[1:9])  # guest time is part of user
    return (user + nice + system + irq + softirq + steal) * _tick()


def _tick() -> float:
    """The seconds of a clock tick."""
    return 1 / os.sysconf("SC_CLK_TCK")
