"""The steps that time: attention and decoding, launches and profiles, and all kernels compiled before."""

import sys
from collections.abc import Iterator
from typing import Any

from posenc.tools.bench.gpu import ways
from posenc.tools.bench.gpu.clocks import timed
from posenc.tools.bench.gpu.place import DECODING, PHASES, ROTATION, Place
from posenc.tools.bench.gpu.step import Result, Step, called
from posenc.tools.bench.measure import LeftOutError, Work

PYTORCH = (ways.FLASH, ways.CUDNN, ways.ANY)
FLEX = "nothing added, flex"
LINE, TABLE = "alibi, triton", "learned t5, triton"
VECTORS, DENSE = "shaw, triton", "transformer_xl, triton"
BIASED = ("alibi" + ways.MADE_BEFORE, "learned t5" + ways.MADE_BEFORE)
CHOICES = (LINE, ways.PLAIN, FLEX, "alibi, flex", TABLE, VECTORS)
OTHERS = (DENSE, "rope, auto", *BIASED)
DECODED = (ways.ANY, *(f"{name}, auto" for name in ("nope", "alibi", "t5", "shaw", "fire")), *BIASED)
SLOW = "learned t5, flex"  # near half a second a step, when it was first measured


def _timed_items(place: Place) -> Iterator[str]:
    """What decides a choice at the first length, then the main ways on longer texts and with wider heads."""
    short, long = place.sizes.lengths

    def both(length: int, *names: str, channels: str = "") -> Iterator[str]:
        yield from (f"{length} {phase}{channels} {way}" for phase in PHASES for way in names)

    yield from both(short, *PYTORCH, *CHOICES)
    yield from (f"{short} {DECODING} {way}" for way in DECODED)
    yield from both(long, *PYTORCH, LINE, TABLE)
    yield from both(short, *PYTORCH, ways.PLAIN, LINE, TABLE, channels=f"/{place.sizes.wide}")
    yield from both(short, *OTHERS)
    yield from (f"{long} {DECODING} {way}" for way in DECODED)
    yield from (f"{long} {ROTATION} {way}" for way in (ways.COPY, "rope"))
    yield from both(long, ways.PLAIN, VECTORS, FLEX, "alibi, flex")
    yield from both(short, ways.AGAIN)
    yield from both(long, *OTHERS)
    yield from both(short, SLOW)


def _timed(place: Place, name: str) -> Result:
    work, more = ways.call_of(place, name)
    return timed(place, work) | more


TIMED = Step("times", "Times", 200, 40, lambda place: tuple(_timed_items(place)), called(_timed))


# -- compiled before --------------------------------------------------------------------------------------------------


def _compiled_items(place: Place) -> tuple[str, ...]:
    """What is compiled of all that is timed first, the longest compilations first."""
    ready = (*PYTORCH, *BIASED, ways.AGAIN, ways.COPY, SLOW)
    names = [name for name in _timed_items(place) if ways.split(name)[2] not in ready]
    names = [name for name in names if ways.split(name)[0] == place.sizes.lengths[0] or ROTATION in name]
    return tuple(sorted(names, key=lambda name: ("flex" not in name, " training" not in name)))


def compiled_by(place: Place, work: Work) -> Result:
    """The kernels that a call compiles."""
    before = {kernel: len(found) for kernel, found in _kernels().items()}
    work()
    place.finish()
    more = {kernel: found[before.get(kernel, 0) :] for kernel, found in _kernels().items()}
    return {"compiled": {kernel: found for kernel, found in more.items() if found}}


def _kernels() -> dict[str, list[dict[str, Any]]]:
    """What Triton has compiled of this package in this process: registers, spills and bytes of shared memory. None of
    it where kernels are interpreted, nor of those that did not fit on the device."""
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
                        if hasattr(each, "n_regs")
                    ]
    return found


COMPILED = Step("compiled", "Kernels compiled, on all cores", 50, 45, _compiled_items,
                called(lambda place, name: compiled_by(place, ways.call_of(place, name)[0])), workers=0)  # fmt: skip


# -- launches and profiles --------------------------------------------------------------------------------------------

REPEATED = 5


def _profiled_items(place: Place) -> tuple[str, ...]:
    names = [f"{place.sizes.lengths[0]} training {way}" for way in (LINE, TABLE, VECTORS, ways.PLAIN, DENSE)]
    return tuple(names[:1] if place.is_dry else names)


def profiled(place: Place, work: Work) -> Result:
    """Of a call, the launches and milliseconds of each kernel, and operations of the host with their time; the mean of
    several."""
    from torch.profiler import DeviceType, ProfilerActivity, profile

    times = 1 if place.is_dry else REPEATED
    for _ in range(times):
        work()
    place.finish()
    activities = [ProfilerActivity.CPU, *([] if place.is_dry else [ProfilerActivity.CUDA])]
    with profile(activities=activities) as seen:
        for _ in range(times):
            work()
        place.finish()
    kernels: dict[str, list[float]] = {}
    host = []
    for event in seen.events():
        if event.device_type == DeviceType.CUDA:
            if getattr(event, "is_user_annotation", False):
                continue  # a range of launches
            kernels.setdefault(event.name[:60], []).append(event.device_time / 1e3)
        elif event.cpu_parent is None:
            host.append(event.cpu_time_total / 1e3)
    if not (kernels or place.is_dry):
        raise LeftOutError("the profiler saw no kernel")
    most = sorted(kernels.items(), key=lambda item: -sum(item[1]))[:MOST]
    return {
        "launches": sum(map(len, kernels.values())) / times,
        "on_device": round(sum(map(sum, kernels.values())) / times, 4),
        "operations": len(host) / times,
        "host": round(sum(host) / times, 4),
        "kernels": {kernel: [len(found) / times, round(sum(found) / times, 4)] for kernel, found in most},
        **({"device_left_out": "the CPU launches no kernels"} if place.is_dry else {}),
    }


MOST = 12  # kernels of a line, those that take longest
PROFILES = Step("profiles", "Launches and profiles", 20, 15, _profiled_items,
                called(lambda place, name: profiled(place, ways.call_of(place, name)[0])))  # fmt: skip
