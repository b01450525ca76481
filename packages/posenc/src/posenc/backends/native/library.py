"""Finds and loads the kernel's library for this processor.

Libraries are built with posenc or by `posenc kernel --build`; attention itself never builds one. The best library of
these sources for this processor is used. Before its first use it is tested against known answers, once for each
library, processor and version of posenc; a library that fails is not used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import logging
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from posenc import compat
from posenc.backends.native import build
from posenc.backends.native.build import Record, UnavailableError
from posenc.backends.native.proof import failures, library_under_test

# The precisions, each with its own library.
REALS = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "bfloat16"}
SWITCH_VARIABLE = "POSENC_NATIVE"
OFF = ("0", "false", "no", "off")  # values of the switch
# The functions of a library.
FUNCTIONS = (
    *("posenc_usable", "posenc_multiplies_halves", "posenc_fields", "posenc_span"),
    *("posenc_work", "posenc_forward", "posenc_backward"),
)
UNFINISHED = "begun"  # stored once for each test that has started and not finished
_WARNINGS_SHOWN: set[str] = set()
MAX_UNFINISHED_TESTS = 3  # unfinished tests before a library is rejected: the process may be killed for other reasons
NOT_BUILT = (
    "the CPU kernel has not been built for these sources and this processor: `posenc kernel --build` builds one, if "
    "there is a C++ compiler"
)
DAYS_IN_CACHE = 30  # unused libraries are kept in the cache this long


class LoadedLibrary(NamedTuple):
    """A loaded library."""

    kernel: ctypes.CDLL
    record: Record
    path: Path


class Candidate(NamedTuple):
    """The path of a possible library's record."""

    level: str
    path: Path


def candidates(precision: str) -> list[Candidate]:
    """The possible libraries of these sources for this processor, best level first, in posenc and then in the cache."""
    processor_identity = build.machine_identity()
    folders: list[tuple[Path, str]] = [(build.BUILT, "")]
    with contextlib.suppress(UnavailableError):
        folders.append((cache(), processor_identity))
    return [
        Candidate(
            level.name, build.record_path(folder, precision, level.name, build.identity(precision, level, processor))
        )
        for level in (build.NATIVE, *build.runnable(precision))
        for folder, processor in folders
    ]


def load(path: Path) -> LoadedLibrary | None:
    """Loads the library of the record at ``path``, without testing it; None if there is none. UnavailableError for one
    that cannot be used."""
    record = build.read(path)
    if record is None:
        return None
    file = path.with_name(record.file)
    try:
        kernel = ctypes.CDLL(os.path.realpath(file))
    except OSError as error:
        why = f" from {path.parent}, which is mounted noexec" if executes_nothing(path.parent) else ""
        raise UnavailableError(f"{file.name} cannot be loaded{why}: {error}") from None
    missing_functions = [name for name in FUNCTIONS if not hasattr(kernel, name)]
    if missing_functions:
        raise UnavailableError(f"{file.name} has no {missing_functions[0]}")
    if not kernel.posenc_usable():  # also requests the matrix unit from the system, once per process
        raise UnavailableError(f"{file.name} needs the processor's matrix unit, which the system does not grant")
    with contextlib.suppress(OSError):
        os.utime(path)  # it is in use
    return LoadedLibrary(kernel, record, file)


def faults(binary: LoadedLibrary, recompute: bool = False) -> tuple[str, ...]:
    """The terms for which the library gives wrong answers; () if it is right. Computed once, or again if
    ``recompute``, and stored in the cache if it is writable. UnavailableError if they cannot be computed, or the
    process has crashed `MAX_UNFINISHED_TESTS` times while computing them."""
    try:
        stamp = cache() / f"proof-{identity(binary.record)}.json"
    except UnavailableError:  # results cannot be stored
        return _compute_faults(binary)
    stored = None if recompute else _read_faults(stamp)
    if stored is not None and UNFINISHED not in stored:
        return stored
    with build.lock(stamp.with_name(".proof")) as is_held:
        stored = _read_faults(stamp)  # by another process in the meantime
        unfinished = stored.count(UNFINISHED) if stored else 0  # without a lock, another process may still be running
        if stored is not None and not unfinished and not recompute:
            return stored
        if unfinished >= MAX_UNFINISHED_TESTS and is_held and not recompute:
            raise UnavailableError(
                f"{binary.path.name}: a self-test of this library crashed or was killed {MAX_UNFINISHED_TESTS} times "
                "(`posenc kernel --test` runs it again)"
            )
        _write_faults(stamp, (UNFINISHED,) * min(unfinished + 1, MAX_UNFINISHED_TESTS))
        try:
            stored = _compute_faults(binary)
        except BaseException:
            stamp.unlink(missing_ok=True)
            raise
        _write_faults(stamp, stored)
    return stored


def _read_faults(stamp: Path) -> tuple[str, ...] | None:
    try:
        faults = json.loads(build.content(stamp) or b"")
    except (UnavailableError, ValueError, RecursionError):
        return None
    is_valid = isinstance(faults, list) and all(isinstance(one, str) for one in faults)
    return tuple(faults) if is_valid else None


def _write_faults(stamp: Path, faults: tuple[str, ...]) -> None:
    with contextlib.suppress(OSError):  # a full disk
        build.write(stamp, json.dumps(faults))


def identity(record: Record) -> str:
    """The digest of the library, the processor and machine, and all code and data of the test."""
    files = sorted(path for path in build.SOURCES.iterdir() if path.suffix in (".py", ".json"))
    parts = (record.digest, build.machine_identity(), platform.node(), torch.__version__)
    return hashlib.sha256("\0".join((*parts, *(path.read_text() for path in files))).encode()).hexdigest()[:24]


def _compute_faults(binary: LoadedLibrary) -> tuple[str, ...]:
    """Tests the library, and warns about wrong answers."""
    try:
        with compat.outside_compilation():  # the first call may be during compilation
            wrong = failures(binary.kernel, binary.record.precision)
    except (RuntimeError, ValueError) as error:
        raise UnavailableError(f"{binary.path.name} cannot compute its known answers: {error}") from error
    if wrong:
        by, what = binary.record.compiler, summarize(wrong)
        logging.getLogger("posenc").warning(
            "posenc's kernel gives wrong answers as built here by %s: not used (%s)", by, what
        )
    return wrong


def summarize(families: Sequence[str], max_items: int = 3) -> str:
    """The first ``max_items``, and the number of the others."""
    rest = len(families) - max_items
    return "; ".join(families[:max_items]) + (f"; and {rest} more" if rest > 0 else "")


def is_disabled() -> bool:
    """Whether the user has disabled the kernel."""
    return os.environ.get(SWITCH_VARIABLE, "1").lower() in OFF


@functools.cache
def find(precision: str) -> LoadedLibrary | UnavailableError:
    """The library to use, or why there is none."""
    if is_disabled():
        return UnavailableError(f"{SWITCH_VARIABLE}={os.environ[SWITCH_VARIABLE]} turns it off")
    reasons = []
    for candidate in candidates(precision):
        try:
            binary = load(candidate.path)
            if binary is None:
                continue
            wrong = faults(binary)
        except UnavailableError as error:
            reasons.append(str(error))
            logging.getLogger("posenc").warning("posenc's kernel: %s: not used", error)
            continue
        if not wrong:
            return binary
        by = binary.record.compiler
        reasons.append(f"{binary.path.name} gives wrong answers as built by {by} ({summarize(wrong)})")
    return UnavailableError(f"{'; '.join(reasons)}: `posenc kernel --build` builds one" if reasons else NOT_BUILT)


@functools.cache
def _load(real: str) -> ctypes.CDLL | UnavailableError:
    binary = find(real)
    return binary if isinstance(binary, UnavailableError) else binary.kernel


def missing(dtype: torch.dtype) -> str | None:
    """Why the kernel cannot run in this precision on this machine; None if it can."""
    kernel = _load(REALS[dtype])
    return str(kernel) if isinstance(kernel, UnavailableError) else None


def warn_if_not_built(reason: str | None) -> None:
    """Warns, once, of a call that would use the kernel. Of other reasons the user knows, or `find` has warned."""
    if reason == NOT_BUILT and NOT_BUILT not in _WARNINGS_SHOWN:
        _WARNINGS_SHOWN.add(NOT_BUILT)
        logging.getLogger("posenc").warning("posenc uses slower backends on this CPU: %s", NOT_BUILT)


def multiplies_bfloat16() -> bool:
    """Whether the library for bfloat16 multiplies in bfloat16, without converting to float32."""
    kernel = _load(REALS[torch.bfloat16])
    return not isinstance(kernel, UnavailableError) and bool(kernel.posenc_multiplies_halves())


# Same as torch.compiler.assume_constant_result, which would import the whole compiler.
missing._dynamo_marked_constant = True  # type: ignore[attr-defined]
warn_if_not_built._dynamo_marked_constant = True  # type: ignore[attr-defined]
multiplies_bfloat16._dynamo_marked_constant = True  # type: ignore[attr-defined]


def library(dtype: torch.dtype) -> ctypes.CDLL:
    """The library for this precision. RuntimeError if there is none."""
    kernel = library_under_test() or _load(REALS[dtype])
    if isinstance(kernel, UnavailableError):
        raise RuntimeError(f"posenc's kernel cannot run: {kernel}")
    return kernel


def pool() -> int | None:
    """The address of OpenMP's function that runs a task on PyTorch's threads; None if unknown."""
    function = compat.c_function("GOMP_parallel")
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def cache() -> Path:
    """The folder in the user's cache for libraries of `posenc kernel --build` and for test results, without symbolic
    links. UnavailableError if it does not exist, is not writable, or others may write to it or replace it."""
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    try:
        folder = Path(os.path.realpath((Path(base) if base else Path.home() / ".cache") / "posenc"))
        for each in reversed((folder, *folder.parents)):
            each.mkdir(exist_ok=True, mode=0o700)
        build.check_folder(folder)
    except (OSError, RuntimeError) as error:  # no home
        raise UnavailableError(f"there is no cache to keep it in: {error}") from None
    if not os.access(folder, os.W_OK):
        raise UnavailableError(f"{folder} cannot be written to")
    return folder


def executes_nothing(folder: Path) -> bool:
    """Whether a folder is mounted noexec, so that no library can be loaded from it."""
    return hasattr(os, "statvfs") and bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0))
