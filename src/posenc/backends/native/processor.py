"""What the processor at hand can do, in levels that a compiler can be told.

The standard library alone: posenc's build reads this file before there is a torch.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

CPUINFO = Path("/proc/cpuinfo")
_V3 = frozenset(
    ("ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe")
)
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_BF16 = _V4 | {"avx512_bf16"}


class Level(NamedTuple):
    """What a library may use of a processor: what a compiler is told, and what Linux must list of the processor."""

    name: str
    flags: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()
    precisions: tuple[str, ...] = ()  # those alone that it is built for; none: all


# The best first. What is not listed has its compiler's default alone.
LEVELS = {
    "x86_64": (
        Level(
            "amx",
            ("-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
            _BF16 | {"amx_tile", "amx_bf16"},
            ("bfloat16",),
        ),
        Level("bf16", ("-march=x86-64-v4", "-mavx512bf16"), _BF16, ("bfloat16",)),
        Level("v4", ("-march=x86-64-v4",), _V4),
        Level("v3", ("-march=x86-64-v3",), _V3),
        Level("baseline", ("-march=x86-64",)),
    )
}
NATIVE = Level("native", ("-march=native",))  # for the processor at hand alone, when asked for
ALIASES = {"amd64": "x86_64", "aarch64": "arm64"}
# What macOS calls otherwise than Linux.
MACOS = {"avx1.0": "avx", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "lzcnt": "abm"}


def machine() -> str:
    """The architecture, by one name on all systems."""
    told = platform.machine().lower()
    return ALIASES.get(told, told)


def levels(precision: str | None = None) -> tuple[Level, ...]:
    """Those of this architecture, the best first; of a precision, those that it is built for."""
    all_levels = LEVELS.get(machine(), (Level("baseline"),))
    return tuple(x for x in all_levels if precision is None or not x.precisions or precision in x.precisions)


def runnable(precision: str | None = None) -> tuple[Level, ...]:
    """Of these, what the processor at hand can run."""
    return tuple(level for level in levels(precision) if level.needs <= flags())


@functools.cache
def flags() -> frozenset[str]:
    """What the processor knows and the system lets it use, by Linux's names; empty where nobody tells."""
    if sys.platform == "darwin":
        told = " ".join(_sysctl(f"machdep.cpu.{name}") for name in ("features", "leaf7_features", "extfeatures"))
        return frozenset(MACOS.get(name, name) for name in told.lower().split())
    return frozenset((_line("flags") or _line("Features")).split())


def name() -> str:
    """The processor's, as the system has it."""
    told = _sysctl("machdep.cpu.brand_string") if sys.platform == "darwin" else _line("model name")
    return told or platform.processor() or machine()


def identity() -> str:
    """By which what is for this processor alone is told from what is for another."""
    return hashlib.sha256(" ".join((machine(), name(), *sorted(flags()))).encode()).hexdigest()[:16]


def _line(wanted: str) -> str:
    """What Linux says of the first core under this name."""
    try:
        with CPUINFO.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == wanted:
                    return value.strip()
    except OSError:
        pass
    return ""


def _sysctl(wanted: str) -> str:
    command = ["/usr/sbin/sysctl", "-n", wanted]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
