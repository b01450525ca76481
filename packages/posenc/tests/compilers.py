"""The kernel built by other compilers and for other processors, each held to the known answers.

`make check-compilers`, or `python -m tests.compilers` in packages/posenc, builds it with every compiler that is
installed, for every level of processor, in every precision, and once with the address and undefined-behaviour
sanitizers; and for Windows and arm64, where an emulator runs it. It prints a table and ends with exit code 1 where a
library is wrong. What is not installed, or what this processor cannot run, is named.
`--quick` is what CI has time for.
"""

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

from posenc.backends.native import build
from posenc.backends.native.build import Level
from posenc.backends.native.proof import PRECISIONS, failures
from tests.backends import emulated_kernel
from tests.backends.planted_bugs import built, compiled

COMPILERS = ("g++-11", "g++-12", "g++-13", "clang++")
QUICK = (("g++", "clang++"), ("v4", "skylake-avx512"), ("float",))
SANITIZERS = ("-O1", "-g", "-march=native", "-fsanitize=address,undefined")

# Debian's packages g++-mingw-w64-x86-64 and wine, g++-aarch64-linux-gnu and qemu-user-static.
EMULATED = {
    "x86_64-w64-mingw32-g++-posix": ("wine",),
    "aarch64-linux-gnu-g++": ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"),
}

Row = tuple[str, str, str, str, float]  # compiler, level, precision, verdict, seconds


def levels(precision: str) -> Iterator[Level]:
    """Those that posenc is built for, one that a compiler went wrong for, and that of the processor at hand."""
    yield from build.levels(precision)
    v4 = next((level for level in build.levels() if level.name == "v4"), None)
    if v4 is not None:
        yield v4._replace(name="skylake-avx512", flags=("-march=skylake-avx512",))
    yield build.NATIVE


def verdict(found: Sequence[str]) -> str:
    return "right" if not found else f"WRONG: {found[0]}" + (f", and {len(found) - 1} more" if found[1:] else "")


def tried(compiler: str, level: Level, precision: str) -> str:
    missing = sorted(level.needs - build.flags())
    if missing:
        return f"skipped: this processor has no {', '.join(missing)}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            kernel = built(Path(folder), (), precision, ("-O3", *level.flags), (compiler,))
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


def rows(compilers: Sequence[str], names: Sequence[str], precisions: Sequence[str], is_quick: bool) -> Iterator[Row]:
    for compiler in compilers:
        if shutil.which(compiler) is None:
            yield compiler, "", "", "skipped: not installed", 0.0
            continue
        for precision in precisions:
            for level in levels(precision):
                if names and level.name not in names:
                    continue
                start = time.perf_counter()
                found = tried(compiler, level, precision)
                yield compiler, level.name, precision, found, time.perf_counter() - start
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
    yield from emulated()


def elsewhere(compiler: str, level: Level, precision: str) -> str:
    """The library of another system or processor, loaded and called there."""
    missing = sorted(level.needs - build.flags())
    if missing:
        return f"skipped: this processor has no {', '.join(missing)}"
    static = ("-static",) if "mingw" in compiler else ()  # as build.py on Windows
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.exe"
        source = ("-O2", "-std=c++17", str(emulated_kernel.SOURCE), "-o", str(program))
        try:
            subprocess.run([compiler, *source, *static], check=True, capture_output=True, text=True)
            made = compiled(Path(folder), (), precision, ("-O3", *static, *level.flags), (compiler,))
        except subprocess.CalledProcessError as error:
            return "WRONG: does not compile: " + next(iter(error.stderr.splitlines()), "")
        kernel = emulated_kernel.EmulatedLibrary([*EMULATED[compiler], str(program)], made)
        try:
            return verdict(failures(kernel, precision))  # type: ignore[arg-type]
        except (OSError, RuntimeError) as error:
            return f"WRONG: {error}"
        finally:
            kernel.close()


def emulated() -> Iterator[Row]:
    """Every precision, for the levels of Windows that there are, and for arm64."""
    for compiler, emulator in EMULATED.items():
        absent = [name for name in (compiler, emulator[0]) if shutil.which(name) is None]
        if absent:
            yield compiler, "", "", f"skipped: {absent[0]} is not installed", 0.0
            continue
        known = build.LEVELS["x86_64"][-2:] if "mingw" in compiler else (Level("baseline"),)
        for precision in PRECISIONS:
            for level in known:
                start = time.perf_counter()
                found = elsewhere(compiler, level, precision)
                yield compiler, level.name, precision, found, time.perf_counter() - start


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
    print(f"{'compiler':28} {'level':15} {'precision':9} {'seconds':>7}  verdict")
    chosen = QUICK if given.quick else (COMPILERS, (), tuple(PRECISIONS))
    for compiler, level, precision, said, seconds in rows(*chosen, given.quick):
        print(f"{compiler:28} {level:15} {precision:9} {seconds:7.1f}  {said}", flush=True)
        is_wrong |= said.startswith("WRONG")
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
