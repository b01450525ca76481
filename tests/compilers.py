"""The kernel built by other compilers and for other processors, each held to the known answers.

`make compilers`, or `python -m tests.compilers`, builds it with every compiler that is installed, for every level of
processor, in every precision, and once with the address and undefined-behaviour sanitizers; it prints a table and ends
with exit code 1 where a library is wrong. What is not installed, or what this processor cannot run, is named.
`--quick` is what CI has time for.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from posenc.backends.native import operator as operator  # which registers what is asked
from posenc.backends.native.proof import PRECISIONS, failures
from tests.backends.planted import built, compiled

COMPILERS = ("g++-11", "g++-12", "g++-13", "clang++")
V3 = ("avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe")
V4 = (*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
# What a processor must have, by the kernel's names, to run code for a level.
LEVELS = {"x86-64": (), "x86-64-v3": V3, "x86-64-v4": V4, "skylake-avx512": (*V4, "clwb"), "native": ()}
QUICK = (("g++", "clang++"), ("x86-64-v4", "skylake-avx512"), ("float",))
SANITIZERS = ("-O1", "-g", "-march=native", "-fsanitize=address,undefined")

Row = tuple[str, str, str, str, float]  # compiler, level, precision, verdict, seconds


def features() -> set[str]:
    """What the processor has, by the kernel's names; none where there is no list."""
    try:
        listed = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return set()
    return set() if listed is None else set(listed[1].split())


def cannot_run(level: str) -> str | None:
    """Why this processor cannot run code for a level; None where it can."""
    if level != "native" and platform.machine() not in ("x86_64", "AMD64"):
        return f"skipped: this processor is {platform.machine()}"
    missing = sorted(set(LEVELS[level]) - features())
    return f"skipped: this processor has no {', '.join(missing)}" if missing else None


def verdict(found: Sequence[str]) -> str:
    return "right" if not found else f"WRONG: {found[0]}" + (f", and {len(found) - 1} more" if found[1:] else "")


def tried(compiler: str, level: str, precision: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            kernel = built(Path(folder), (), precision, ("-O3", f"-march={level}"), (compiler,))
        except subprocess.CalledProcessError as error:
            return "WRONG: does not compile: " + next(iter(error.stderr.splitlines()), "")
        return verdict(failures(kernel, precision))


def runtime_of(compiler: str) -> str | None:
    """The library of its address sanitizer; None where it has none."""
    for name in (f"libclang_rt.asan-{platform.machine()}.so", "libasan.so"):
        found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        if os.path.isabs(found) and os.path.exists(found):
            return found
    return None


def sanitized(compiler: str, runtime: str, precision: str) -> str:
    """Under the sanitizers, whose runtime must be there before Python's own memory is."""
    shared = ("-shared-libasan",) if "clang" in runtime else ()
    with tempfile.TemporaryDirectory() as folder:
        made = compiled(Path(folder), (), precision, (*SANITIZERS, *shared), (compiler,))
        # Python and torch keep what they allocate.
        settings = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
        command = [sys.executable, "-m", "tests.compilers", "--one", str(made), precision]
        ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings})
    told = re.findall(r"[^/\s]*:\d+:\d+: runtime error: .*|ERROR: AddressSanitizer: .*", ended.stderr)
    if told or ended.returncode == 0:
        return verdict(list(dict.fromkeys(told)))
    return "WRONG: " + ((ended.stdout + ended.stderr).strip().splitlines() or ["it ended without a word"])[-1]


def rows(compilers: Sequence[str], levels: Sequence[str], precisions: Sequence[str], is_quick: bool) -> Iterator[Row]:
    for compiler in compilers:
        if shutil.which(compiler) is None:
            yield compiler, "", "", "skipped: not installed", 0.0
            continue
        for level in levels:
            refused = cannot_run(level)
            for precision in precisions:
                start = time.perf_counter()
                found = refused or tried(compiler, level, precision)
                yield compiler, level, precision, found, time.perf_counter() - start
    if is_quick:
        return
    # Clang's see more than g++'s: arithmetic on null pointers that does not wrap around.
    there = [name for name in reversed(compilers) if shutil.which(name)]
    found_runtimes = ((name, runtime) for name in there if (runtime := runtime_of(name)) is not None)
    name, runtime = next(found_runtimes, ("", ""))
    for precision in precisions if runtime else ():
        start = time.perf_counter()
        yield name, "sanitizers", precision, sanitized(name, runtime, precision), time.perf_counter() - start
    if not runtime:
        yield "", "sanitizers", "", "skipped: no compiler here has an address sanitizer", 0.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compilers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two compilers and two levels, in single precision")
    parser.add_argument("--one", nargs=2, metavar=("LIBRARY", "PRECISION"), help="a library that there is already")
    given = parser.parse_args()
    if given.one:
        library, precision = given.one
        kernel = ctypes.CDLL(library)
        found = failures(kernel, precision) if kernel.posenc_usable() else ("the system does not let it run",)
        print(verdict(found))
        return bool(found)
    is_wrong = False
    print(f"{'compiler':10} {'level':15} {'precision':9} {'seconds':>7}  verdict")
    chosen = QUICK if given.quick else (COMPILERS, tuple(LEVELS), tuple(PRECISIONS))
    for compiler, level, precision, said, seconds in rows(*chosen, given.quick):
        print(f"{compiler:10} {level:15} {precision:9} {seconds:7.1f}  {said}", flush=True)
        is_wrong |= said.startswith("WRONG")
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
