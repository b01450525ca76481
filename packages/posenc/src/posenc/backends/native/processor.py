"""Processor levels: instruction sets that libraries are compiled for.

Uses only the standard library, since posenc's build imports this file before torch is installed.
"""

from __future__ import annotations

import ctypes
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
    """An instruction set: its compiler flags, and the processor flags that Linux must list."""

    name: str
    flags: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()
    precisions: tuple[str, ...] = ()  # only these; empty: all


# Best first. Other architectures have only the compiler's default.
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
NATIVE = Level("native", ("-march=native",))  # only for this processor, on request
ALIASES = {"amd64": "x86_64", "aarch64": "arm64"}
AVX2 = 40  # Windows' number for it, which asks for few others; processors with it have all of v3
# macOS names of flags to Linux names.
MACOS = {"avx1.0": "avx", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "lzcnt": "abm"}


def machine() -> str:
    """The architecture, with the same name on all systems."""
    architecture = platform.machine().lower()
    return ALIASES.get(architecture, architecture)


def levels(precision: str | None = None) -> tuple[Level, ...]:
    """The levels of this architecture, best first, optionally those of a precision."""
    all_levels = LEVELS.get(machine(), (Level("baseline"),))
    if sys.platform == "win32":
        all_levels = all_levels[-2:]  # of those above v3 Windows tells too little
    return tuple(x for x in all_levels if precision is None or not x.precisions or precision in x.precisions)


def runnable(precision: str | None = None) -> tuple[Level, ...]:
    """The levels that this processor supports."""
    return tuple(level for level in levels(precision) if level.needs <= flags())


@functools.cache
def flags() -> frozenset[str]:
    """The processor flags, by Linux's names; empty if unknown."""
    if sys.platform == "darwin":
        features = " ".join(_sysctl(f"machdep.cpu.{name}") for name in ("features", "leaf7_features", "extfeatures"))
        return frozenset(MACOS.get(name, name) for name in features.lower().split())
    if sys.platform == "win32":
        return _V3 if ctypes.windll.kernel32.IsProcessorFeaturePresent(AVX2) else frozenset()
    return frozenset((_line("flags") or _line("Features")).split())


def name() -> str:
    """The processor's name."""
    brand = _sysctl("machdep.cpu.brand_string") if sys.platform == "darwin" else _line("model name")
    return brand or platform.processor() or machine()


def identity() -> str:
    """The digest that identifies this kind of processor."""
    return hashlib.sha256(" ".join((machine(), name(), *sorted(flags()))).encode()).hexdigest()[:16]


def _line(wanted: str) -> str:
    """The value of this field of the first core in /proc/cpuinfo."""
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
