"""Measures how busy other processes keep the machine during timing."""

import os
import time
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")


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
