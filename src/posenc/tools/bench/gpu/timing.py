"""The steps that time: attention and decoding, launches and profiles, and all kernels compiled before."""

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from posenc.tools.bench.gpu import ways
from posenc.tools.bench.gpu.clocks import timed
from posenc.tools.bench.gpu.place import PHASES, Place
from posenc.tools.bench.gpu.step import Result, Step
from posenc.tools.bench.measure import LeftOutError, Work

DECODING = "decoding"
COPY = "copy"


def _split(name: str) -> tuple[int, str, str]:
    length, phase, way = name.split(" ", 2)
    return int(length), phase, way


def _attention(place: Place) -> Iterator[str]:
    for length, phase in itertools.product(place.sizes.lengths, PHASES):
        yield from (f"{length} {phase} {way}" for way in ways.NAMES)


def _beside(place: Place) -> Iterator[str]:
    tokens = place.sizes.lengths[-1]
    yield from (f"{tokens} rotation {what}" for what in (COPY, "rope"))
    for keys in place.sizes.lengths:
        yield f"{keys} {DECODING} plain"
        yield from (f"{keys} {DECODING} {way}" for way in ways.DECODED)


def _timed_items(place: Place) -> tuple[str, ...]:
    """The shorter texts first, then decoding and rotation, then the longer ones."""
    attention = list(_attention(place))
    half = len(attention) // 2
    return (*attention[:half], *_beside(place), *attention[half:])


def _timed(place: Place, name: str) -> Result:
    length, phase, way = _split(name)
    if phase == DECODING:
        if way == "plain":
            return timed(place, ways.plain_decoding(place, length))
        scheme, backend = way.split(", ")
        work, auto = ways.decoding(place, scheme, backend, length)
        return timed(place, work) | {"auto": auto}
    if phase == "rotation":
        work, moved = ways.rotating(place, way)
        return timed(place, work) | {"bytes": moved}
    inputs = place.inputs(length, phase)
    work = ways.work_of(place, way, inputs)
    found = timed(place, work)
    return found | ({"auto": ways.WAYS[way].auto(inputs, place)} if way in ways.WAYS else {})


TIMED = Step("times", "Times", 180, 40, _timed_items, _timed)


# -- compiled before --------------------------------------------------------------------------------------------------

UNCOMPILED = (ways.FLASH, ways.AGAIN, ways.CUDNN, "alibi, sdpa with a mask")


def _compiled_items(place: Place) -> tuple[str, ...]:
    """What is timed and compiled, in the order of value; what depends on the length alone comes last."""
    short, *longer = place.sizes.lengths
    first = [f"{short} {phase} {way}" for phase in reversed(PHASES) for way in ways.NAMES if way not in UNCOMPILED]
    last = [f"{n} {phase} {ways.FLEX_STATIC}" for n in longer for phase in reversed(PHASES)]
    beside = [name for name in _beside(place) if name.endswith((" rope", ", auto", ", triton"))]
    return (*first, *beside, *last)


def _work(place: Place, name: str) -> Work:
    length, phase, way = _split(name)
    if phase == DECODING:
        scheme, backend = way.split(", ")
        return ways.decoding(place, scheme, backend, length)[0]
    if phase == "rotation":
        return ways.rotating(place, way)[0]
    return ways.work_of(place, way, place.inputs(length, phase))


def compiled_by(make: Callable[[Place, str], Work], place: Place, name: str) -> Result:
    """The kernels that a call compiles."""
    work = make(place, name)
    before = {kernel: len(found) for kernel, found in _kernels().items()}
    work()
    place.finish()
    more = {kernel: found[before.get(kernel, 0) :] for kernel, found in _kernels().items()}
    return {"kernels": {kernel: found for kernel, found in more.items() if found}}


def _kernels() -> dict[str, list[dict[str, Any]]]:
    """What Triton has compiled of this package in this process: registers, spills and bytes of shared memory. None of
    it where kernels are interpreted."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("posenc."):
            for kernel, function in vars(module).items():
                caches = getattr(function, "device_caches", None)
                if caches and getattr(function, "__module__", name) == name:
                    compiled = [each for cache in caches.values() for each in cache[0].values()]
                    found[kernel] = [
                        {
                            "registers": each.n_regs,
                            "spills": each.n_spills,
                            "shared": each.metadata.shared,
                            "stages": each.metadata.num_stages,
                            "warps": each.metadata.num_warps,
                        }
                        for each in compiled
                    ]
    return found


COMPILED = Step("compiled", "Kernels compiled, on all cores", 60, 45, _compiled_items, partial(compiled_by, _work), 0)


# -- launches and profiles --------------------------------------------------------------------------------------------

PROFILED = ("alibi, triton", "shaw, triton", "learned t5, triton")


def _profiled_items(place: Place) -> tuple[str, ...]:
    length = place.sizes.lengths[0]
    profiled = PROFILED[:1] if place.is_dry else PROFILED
    return tuple(f"{length} {phase} {way}" for phase in reversed(PHASES) for way in profiled)


def _profiled(place: Place, name: str) -> Result:
    """The launches of a call, the time of each kernel on the device, and operations of the host with their time."""
    from torch.profiler import DeviceType, ProfilerActivity, profile

    length, phase, way = _split(name)
    work = ways.work_of(place, way, place.inputs(length, phase))
    for _ in range(1 if place.is_dry else 3):
        work()
    place.finish()
    activities = [ProfilerActivity.CPU, *([] if place.is_dry else [ProfilerActivity.CUDA])]
    with profile(activities=activities) as profiled:
        work()
        place.finish()
    kernels: dict[str, list[float]] = {}
    operations, host = 0, 0.0
    for event in profiled.events():
        if event.device_type == DeviceType.CUDA:
            if getattr(event, "is_user_annotation", False):
                continue  # a range of launches
            kernels.setdefault(event.name, []).append(event.device_time / 1e3)
        elif event.cpu_parent is None:
            operations, host = operations + 1, host + event.cpu_time_total / 1e3
    if not (kernels or place.is_dry):
        raise LeftOutError("the profiler saw no kernel")
    times = {kernel[:80]: [len(times), round(sum(times), 4)] for kernel, times in kernels.items()}
    top = dict(sorted(times.items(), key=lambda item: -item[1][1])[:8])
    return {
        "launches": sum(map(len, kernels.values())),
        "on_device": round(sum(map(sum, kernels.values())), 4),
        "operations": operations,
        "host": round(host, 4),
        "kernels": top,
        **({"device_left_out": "the CPU launches no kernels"} if place.is_dry else {}),
    }


PROFILES = Step("profiles", "Launches and profiles", 60, 30, _profiled_items, _profiled)
