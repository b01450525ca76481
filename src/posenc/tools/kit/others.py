"""Measures how busy other processes keep the machine during timing."""

import os
import time
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")


class Moment(NamedTuple):
    """What clocks show: the time, and the seconds that all processes and this one have kept cores busy."""

    wall: float
    every: float | None
    """None where the system does not tell."""
    own: float


def now() -> Moment:
    user, system = os.times()[2:4]  # of children that have ended
    return Moment(time.perf_counter(), _every(), time.process_time() + user + system)


def others(begin: Moment, end: Moment, cores: int) -> float | None:
    """The mean number of cores kept busy by other processes or by the host of a virtual machine; None if unknown.

    The system counts in ticks, so one tick of each core is subtracted; short times say little.
    """
    if begin.every is None or end.every is None or end.wall <= begin.wall:
        return None
    every, own = end.every - begin.every, end.own - begin.own
    slack = cores * _tick()
    if every < own - slack:  # some sandboxes show a file in which nobody's work is counted
        return None
    return max(0.0, every - own - slack) / (end.wall - begin.wall)


def _every() -> float | None:
    try:
        words = STAT.read_text(encoding="utf-8").split("\n", 1)[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words[1:9])  # of a guest: in user already
    return (user + nice + system + irq + softirq + steal) * _tick()


def _tick() -> float:
    """The seconds of one."""
    return 1 / os.sysconf("SC_CLK_TCK")
