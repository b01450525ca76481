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
from posenc.backends.native.proof import failures, on_trial

# The precisions, each with its own library.
REALS = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "bfloat16"}
SWITCH = "POSENC_NATIVE"
OFF = ("0", "false", "no", "off")  # values of the switch
# The functions of a library.
FUNCTIONS = (
    *("posenc_usable", "posenc_multiplies_halves", "posenc_fields", "posenc_span"),
    *("posenc_work", "posenc_forward", "posenc_backward"),
)
BEGUN = "begun"  # stored once for each test that has started and not finished
_WARNED: set[str] = set()
TRIES = 3  # unfinished tests before a library is rejected: the process may be killed for other reasons
NOT_BUILT = (
    "the CPU kernel has not been built for these sources and this processor: `posenc kernel --build` builds one, if "
    "there is a C++ compiler"
)
DAYS = 30  # unused libraries are kept in the cache this long


class Found(NamedTuple):
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
    here = build.machine_identity()
    folders: list[tuple[Path, str]] = [(build.BUILT, "")]
    with contextlib.suppress(UnavailableError):
        folders.append((cache(), here))
    return [
        Candidate(level.name, build.record_path(folder, precision, level.name, build.identity(precision, level, of)))
        for level in (build.NATIVE, *build.runnable(precision))
        for folder, of in folders
    ]


def load(path: Path) -> Found | None:
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
    lacks = [name for name in FUNCTIONS if not hasattr(kernel, name)]
    if lacks:
        raise UnavailableError(f"{file.name} has no {lacks[0]}")
    if not kernel.posenc_usable():  # also requests the matrix unit from the system, once per process
        raise UnavailableError(f"{file.name} needs the processor's matrix unit, which the system does not grant")
    with contextlib.suppress(OSError):
        os.utime(path)  # it is in use
    return Found(kernel, record, file)


def faults(found: Found, again: bool = False) -> tuple[str, ...]:
    """The terms for which the library gives wrong answers; () if it is right. Computed once, or ``again``, and stored
    in the cache if it is writable. UnavailableError if they cannot be computed, or the process has crashed
    `TRIES` times while computing them."""
    try:
        stamp = cache() / f"proof-{identity(found.record)}.json"
    except UnavailableError:  # results cannot be stored
        return _computed(found)
    known = None if again else _stored(stamp)
    if known is not None and BEGUN not in known:
        return known
    with build.lock(stamp.with_name(".proof")) as is_held:
        known = _stored(stamp)  # by another process in the meantime
        begun = known.count(BEGUN) if known else 0  # without a lock, another process may still be running
        if known is not None and not begun and not again:
            return known
        if begun >= TRIES and is_held and not again:
            raise UnavailableError(
                f"{found.path.name}: a self-test of this library crashed or was killed {TRIES} times "
                "(`posenc kernel --test` runs it again)"
            )
        _remember(stamp, (BEGUN,) * min(begun + 1, TRIES))
        try:
            known = _computed(found)
        except BaseException:
            stamp.unlink(missing_ok=True)
            raise
        _remember(stamp, known)
    return known


def _stored(stamp: Path) -> tuple[str, ...] | None:
    try:
        faults = json.loads(build.content(stamp) or b"")
    except (UnavailableError, ValueError, RecursionError):
        return None
    is_valid = isinstance(faults, list) and all(isinstance(one, str) for one in faults)
    return tuple(faults) if is_valid else None


def _remember(stamp: Path, faults: tuple[str, ...]) -> None:
    with contextlib.suppress(OSError):  # a full disk
        build.write(stamp, json.dumps(faults))


def identity(record: Record) -> str:
    """The digest of the library, the processor and machine, and all code and data of the test."""
    files = sorted(path for path in build.SOURCES.iterdir() if path.suffix in (".py", ".json"))
    parts = (record.digest, build.machine_identity(), platform.node(), torch.__version__)
    return hashlib.sha256("\0".join((*parts, *(path.read_text() for path in files))).encode()).hexdigest()[:24]


def _computed(found: Found) -> tuple[str, ...]:
    """Tests the library, and warns about wrong answers."""
    try:
        with compat.outside_compilation():  # the first call may be during compilation
            wrong = failures(found.kernel, found.record.precision)
    except (RuntimeError, ValueError) as error:
        raise UnavailableError(f"{found.path.name} cannot compute its known answers: {error}") from error
    if wrong:
        by, what = found.record.compiler, in_short(wrong)
        logging.getLogger("posenc").warning(
            "posenc's kernel gives wrong answers as built here by %s: not used (%s)", by, what
        )
    return wrong


def in_short(families: Sequence[str], most: int = 3) -> str:
    """The first few, and the number of the others."""
    rest = len(families) - most
    return "; ".join(families[:most]) + (f"; and {rest} more" if rest > 0 else "")


def is_off() -> bool:
    """Whether the user has disabled the kernel."""
    return os.environ.get(SWITCH, "1").lower() in OFF


@functools.cache
def find(precision: str) -> Found | UnavailableError:
    """The library to use, or why there is none."""
    if is_off():
        return UnavailableError(f"{SWITCH}={os.environ[SWITCH]} turns it off")
    reasons = []
    for candidate in candidates(precision):
        try:
            found = load(candidate.path)
            if found is None:
                continue
            wrong = faults(found)
        except UnavailableError as error:
            reasons.append(str(error))
            logging.getLogger("posenc").warning("posenc's kernel: %s: not used", error)
            continue
        if not wrong:
            return found
        by = found.record.compiler
        reasons.append(f"{found.path.name} gives wrong answers as built by {by} ({in_short(wrong)})")
    return UnavailableError(f"{'; '.join(reasons)}: `posenc kernel --build` builds one" if reasons else NOT_BUILT)


@functools.cache
def _load(real: str) -> ctypes.CDLL | UnavailableError:
    found = find(real)
    return found if isinstance(found, UnavailableError) else found.kernel


def missing(dtype: torch.dtype) -> str | None:
    """Why the kernel cannot run in this precision on this machine; None if it can."""
    found = _load(REALS[dtype])
    return str(found) if isinstance(found, UnavailableError) else None


def warn_if_not_built(reason: str | None) -> None:
    """Warns, once, of a call that would use the kernel. Of other reasons the user knows, or `find` has warned."""
    if reason == NOT_BUILT and NOT_BUILT not in _WARNED:
        _WARNED.add(NOT_BUILT)
        logging.getLogger("posenc").warning("posenc takes slower ways on this CPU: %s", NOT_BUILT)


def multiplies_bfloat16() -> bool:
    """Whether the library for bfloat16 multiplies in bfloat16, without converting to float32."""
    found = _load(REALS[torch.bfloat16])
    return not isinstance(found, UnavailableError) and bool(found.posenc_multiplies_halves())


# Same as torch.compiler.assume_constant_result, which would import the whole compiler.
missing._dynamo_marked_constant = True  # type: ignore[attr-defined]
warn_if_not_built._dynamo_marked_constant = True  # type: ignore[attr-defined]
multiplies_bfloat16._dynamo_marked_constant = True  # type: ignore[attr-defined]


def library(dtype: torch.dtype) -> ctypes.CDLL:
    """The library for this precision. RuntimeError if there is none."""
    found = on_trial() or _load(REALS[dtype])
    if isinstance(found, UnavailableError):
        raise RuntimeError(f"posenc's kernel cannot run: {found}")
    return found


def level(dtype: torch.dtype) -> str | None:
    """The `build.Level` of the library for this precision; None without a library. A library built for this
    processor has its best level, unless the compiler did not support bfloat16 instructions."""
    found = find(REALS[dtype])
    if isinstance(found, UnavailableError):
        return None
    if found.record.level != build.NATIVE.name:
        return found.record.level
    levels = [x for x in build.runnable(found.record.precision) if not x.precisions or multiplies_bfloat16()]
    return levels[0].name


def pool() -> int | None:
    """The address of OpenMP's function that runs a task on PyTorch's threads; None if unknown."""
    found = compat.openmp("GOMP_parallel")
    return None if found is None else ctypes.cast(found, ctypes.c_void_p).value


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
