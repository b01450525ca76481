"""Runs ``posenc bench``: measures the groups one by one, and records each at once."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from posenc.arguments import check_name, check_type
from posenc.backends.choose import BACKENDS
from posenc.backends.native import library
from posenc.command.progress import Progress
from posenc_lab.bench import cases, mine
from posenc_lab.bench.measure import Clock, LeftOutError, Make, Work, beyond, race
from posenc_lab.bench.settings import AUTO, Settings
from posenc_lab.kit import configuration_file
from posenc_lab.kit.configuration import fingerprint
from posenc_lab.kit.files import require
from posenc_lab.kit.machine import clock_of, device_of, machine, versions
from posenc_lab.kit.records import Record, Records
from posenc_lab.kit.titles import titled

SHARE = 0.5  # of the memory; calls that would need more are left out
SHORT_TOKENS = 2048  # tokens up to which calls are not checked, since scores take less than a gigabyte
PROBES = (512, 1024)  # lengths that are measured to estimate memory and time
PROBED = 3  # times each; the shortest counts
# Of a record: the competitor that ratios are relative to, the cores that other processes kept busy, and by competitor
# its seconds in each round with its ratio, or why it was left out.
RECORD_FIELDS: dict[str, Any] = {
    "length": int,
    "baseline": str,
    "others": float | None,
    **dict.fromkeys(("results", "settings", "machine", "versions"), dict),
}


def check_record(record: Record) -> None:
    """ValueError for a record with a missing field or one of another type."""
    require(record, RECORD_FIELDS)
    for result in record["results"].values():
        if "left_out" not in result:
            require(result, {"seconds": list[float], "ratio": list[float]})


def check(settings: Settings) -> None:
    """ValueError for an unknown scheme, backend or attention, and for an unavailable device."""
    check_type("settings", settings, Settings)
    for name in settings.schemes:
        cases.entries(name)
    for name in settings.backends:
        check_name("backends", name, (AUTO, *(backend.name for backend in BACKENDS)))
    device_of(settings.device)
    mine.check(settings)


def bench(
    settings: Settings, out: str | Path, progress: Progress | None = None, *, clock: Clock | None = None
) -> list[Record]:
    """Measures every group, and returns all records in ``out``.

    Each group is one record, written at once. Groups that ``out`` has are not measured again. Lengths and schemes may
    be added to a folder; everything else must stay the same.

    Raises ValueError for a folder that holds another benchmark or is in use.
    """
    check(settings)
    out, progress, device = Path(out), progress or Progress(), torch.device(settings.device)
    clock = clock or clock_of(device)
    about: dict[str, dict[str, Any]] = {
        "settings": settings.identity() | mine.source(settings),
        "versions": versions(),
        "machine": machine(device),
        "kernel": kernel(),
    }
    with Records(out, check_record) as records, progress:
        made_with = mine.source(settings) | {part: about[part] for part in ("versions", "machine", "kernel")}
        if len(records):
            there = configuration_file.identity_in(out, Settings.from_mapping)
            configuration_file.require_same(out, there, settings.identity(**made_with), "benchmark")
        configuration_file.save(out, settings, made_with)
        if records.notice:
            progress.say(records.notice)
        groups = mine.groups if settings.mine is not None else cases.regrets if settings.regret else cases.prices
        planned = list(groups(settings))
        records.require_sources(settings.schemes)
        progress.begin(sum(group.work for group in planned))
        cuda = device.type == "cuda"
        memory = torch.cuda.mem_get_info(device)[1] if cuda else about["machine"]["memory_bytes"]
        limits = _Limits(settings, clock, memory)
        for group in planned:
            if records.has(group.kind, group.scheme, length=group.length):
                progress.skip(group.work)
                continue
            words = f"{group.kind}, {titled(group.scheme)}, {group.length:,}"
            progress.advance(0, words)
            measured = _measure(group, settings, limits, clock, device)
            named = {"kind": group.kind, "scheme": group.scheme, "length": group.length}
            records.append({**named, **measured, "fingerprint": fingerprint(about)}, about)
            progress.advance(group.work, words)
        return list(records)


def _measure(
    group: cases.Group, settings: Settings, limits: "_Limits", clock: Clock, device: torch.device
) -> dict[str, Any]:
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # compilation for one length must not influence the next
    built = group.build()
    makes = {
        name: make if name == cases.PLAIN else partial(limits.make, group, name, make)
        for name, make in built.makes.items()
    }
    name = f"{group.kind}, {group.scheme}, {group.length}"  # each group has orders of its own
    timed = race(makes, rounds=settings.rounds, budget=settings.budget, clock=clock, memory=device, seed=name)
    return {**built.facts, **timed}


def kernel() -> dict[str, str]:
    """For each precision, the level and the compiler of posenc's CPU kernel, or the reason why there is none."""
    told = {}
    for precision in library.REALS.values():
        found = library.find(precision)
        if isinstance(found, library.LoadedLibrary):
            told[f"kernel, {precision}"] = f"{found.record.level}, by {found.record.compiler}"
        else:
            told[f"kernel, {precision}"] = f"none: {found}"
    return told


class _Limits:
    """Estimates from two short calls, measured once, which long ones would need too much memory or time."""

    def __init__(self, settings: Settings, clock: Clock, memory: int | None) -> None:
        self.settings, self.clock, self.memory = settings, clock, memory
        self._probed: dict[tuple[str, str, str], list[tuple[float, int]]] = {}

    def make(self, group: cases.Group, name: str, make: Make) -> Work:
        """Sets up a call. Raises LeftOutError, with the numbers, if it would need too much."""
        if why := self.reason(group, name):
            raise LeftOutError(why)
        return make()

    def reason(self, group: cases.Group, name: str) -> str:
        """Why a call would need too much; empty if it would not."""
        if group.length <= SHORT_TOKENS:
            return ""
        key = (group.kind, group.scheme, name)
        if key not in self._probed:
            self._probed[key] = [self._probe(group, name, length) for length in PROBES]
        (small, large), ((_, few), (least, many)) = PROBES, self._probed[key]
        seconds = least * (group.length / large) ** 2
        needed = grown(small, few, large, many, group.length)
        told = f"told from {small:,} and {large:,} tokens"
        if self.memory is not None and needed > SHARE * self.memory:
            limit = f"{SHARE:.0%} of the {self.memory / 2**30:.0f} GiB here"
            return f"would need {needed / 2**30:.0f} GiB ({told}), over {limit}"
        if seconds > self.settings.longest:
            return f"would take {seconds:.0f} s a call ({told}), over the {self.settings.longest:.0f} s allowed"
        return ""

    def _probe(self, group: cases.Group, name: str, length: int) -> tuple[float, int]:
        """The shortest time and the memory of a call at this length."""
        work = group.probe(name, length)
        self.clock(work)
        return min(self.clock(work) for _ in range(PROBED)), beyond(work, torch.device(self.settings.device))


def grown(a: int, bytes_a: float, b: int, bytes_b: float, length: int) -> float:
    """The memory at a length, extrapolated from that at lengths a and b as a linear plus a quadratic term.

    >>> grown(1, 3 + 5, 2, 6 + 20, 4)  # 3 n + 5 n**2
    92.0
    """
    square = max(0.0, (bytes_b / b - bytes_a / a) / (b - a))
    line = max(0.0, bytes_b / b - square * b)
    return line * length + square * length**2
