"""Times of a call on a GPU, three apart: on the device between events, as a replayed graph, and of the host alone."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from posenc.tools.bench.gpu.place import Place
from posenc.tools.bench.gpu.step import Result, first_line
from posenc.tools.bench.measure import Work
from posenc.tools.kit.turns import spread

CACHE = 2**28  # bytes that are written before each timed call, larger than a GPU's caches
FEWEST, MOST = 3, 200  # timed calls
BUDGET = 0.2  # seconds of timed calls
ISSUED = 20  # calls of the host in a row: a queue of a thousand launches must not fill up
NO_GRAPHS = "the CPU has no graphs"
NO_EVENTS = "the CPU has no events: a clock"


def timed(place: Place, work: Work) -> Result:
    """``events``, ``graph`` and ``host``, each the median of milliseconds and the ends of its interval; ``graph`` is
    missing where the call cannot be captured, and ``graph_left_out`` says why.

    Time between events has gaps where the host is slower than the device; a replayed graph has none. The host's time is
    until the call returns, while the device may still work.
    """
    work()
    place.finish()
    if place.is_dry:
        seconds = _in_ms(_clocked(work, 1))
        return {"events": seconds, "host": seconds, "events_are": NO_EVENTS, "graph_left_out": NO_GRAPHS}
    count = _affordable(work)
    found: dict[str, Any] = {"host": _in_ms(_clocked(work, min(ISSUED, count)))}
    place.finish()
    found["events"] = _in_ms(_between_events(place, work, count))
    try:
        replay = captured(work)[0]
    except Exception as error:
        torch.cuda.synchronize()
        return found | {"graph_left_out": f"{type(error).__name__}: {first_line(error)}"}
    return found | {"graph": _in_ms(_between_events(place, replay, _affordable(replay)))}


def captured(work: Work) -> tuple[Callable[[], object], tuple[torch.Tensor, ...]]:
    """The call as a CUDA graph: what replays it, and the tensors that it then writes."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph.replay, out


def _in_ms(seconds: Sequence[float]) -> list[float]:
    return [round(1e3 * x, 5) for x in spread(seconds)]


def _clocked(work: Work, count: int) -> list[float]:
    """Of calls in a row, each until it returns."""
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return found


def _affordable(call: Callable[[], object]) -> int:
    """How often a call may be timed."""
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return max(FEWEST, min(MOST, int(BUDGET / (time.perf_counter() - begin))))


def _between_events(place: Place, call: Callable[[], object], count: int) -> list[float]:
    """The seconds of the device, from caches that hold nothing of the call."""
    written = torch.empty(CACHE, dtype=torch.int8, device=place.device)
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for begin, end in pairs:
        written.zero_()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]
