"""The library of the kernel for the processor at hand, and the threads that it runs on.

It was built with posenc, or by `posenc kernel --build`; no call of attention builds one. The best that there is of
these sources, for this processor, is taken. Before it is used it computes known answers, once for each library,
processor and version of posenc; one that does not compute them is set aside.
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
from posenc.backends.native import build, processor
from posenc.backends.native.build import Record, UnavailableError
from posenc.backends.native.proof import failures, on_trial

# The precisions that there are, each a library.
REALS = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "bfloat16"}
SWITCH = "POSENC_NATIVE"
OFF = ("0", "false", "no", "off")  # of the switch
# That a library has.
FUNCTIONS = (
    *("posenc_usable", "posenc_multiplies_halves", "posenc_fields", "posenc_span"),
    *("posenc_work", "posenc_forward", "posenc_backward"),
)
BEGUN = "begun"  # what is remembered of a proof, once for each time, until it has ended
TRIES = 3  # that may be begun and not end: a process may also be killed for another reason
ELSEWHERE = "it is for Linux and macOS alone"
DAYS = 30  # that what nobody uses is kept in the cache


class Found(NamedTuple):
    """A library that is loaded."""

    kernel: ctypes.CDLL
    record: Record
    path: Path


class Candidate(NamedTuple):
    """Where the record of a library would lie."""

    level: str
    path: Path


def candidates(precision: str) -> list[Candidate]:
    """Of these sources, for this processor, the best level first: with posenc, then in the cache."""
    here = processor.identity()
    folders: list[tuple[Path, str]] = [(build.BUILT, "")]
    with contextlib.suppress(UnavailableError):
        folders.append((cache(), here))
    return [
        Candidate(level.name, build.record_path(folder, precision, level.name, build.identity(precision, level, of)))
        for level in (processor.NATIVE, *processor.runnable(precision))
        for folder, of in folders
    ]


def load(path: Path) -> Found | None:
    """The library of the record at ``path``, loaded and not yet proved; None where there is none. UnavailableError, in
    words, for one that cannot be used."""
    record = build.read(path)
    if record is None:
        return None
    file = path.with_name(record.file)
    try:
        kernel = ctypes.CDLL(str(file))
    except OSError as error:
        raise UnavailableError(f"{file.name} cannot be loaded{_no_execution(path.parent)}: {error}") from None
    lacks = [name for name in FUNCTIONS if not hasattr(kernel, name)]
    if lacks:
        raise UnavailableError(f"{file.name} has no {lacks[0]}")
    if not kernel.posenc_usable():  # which asks the system too, once for each process
        raise UnavailableError(f"{file.name} needs the processor's matrix unit, which the system does not grant")
    with contextlib.suppress(OSError):
        os.utime(path)  # it is in use
    return Found(kernel, record, file)


def faults(found: Found, again: bool = False) -> tuple[str, ...]:
    """The families of terms of whose known answers the library computes others; () where it is right. Computed once, or
    ``again``, and remembered in the cache where that can be written to. UnavailableError where they cannot be
    computed, or where the process has ended `TRIES` times while they were."""
    try:
        stamp = cache() / f"proof-{_identity(found.record)}.json"
    except UnavailableError:  # nothing can be remembered
        return _computed(found)
    told = None if again else _told(stamp)
    if told is not None and BEGUN not in told:
        return told
    with build.lock(stamp.with_name(".proof")) as is_held:
        told = _told(stamp)  # by another process, meanwhile
        begun = told.count(BEGUN) if told else 0  # and not ended; without a lock, another may still be at it
        if told is not None and not begun and not again:
            return told
        if begun >= TRIES and is_held and not again:
            raise UnavailableError(
                f"{found.path.name}: a self-test of this library crashed or was killed {TRIES} times "
                "(`posenc kernel --test` runs it again)"
            )
        _remember(stamp, (BEGUN,) * min(begun + 1, TRIES))
        try:
            told = _computed(found)
        except BaseException:
            stamp.unlink(missing_ok=True)
            raise
        _remember(stamp, told)
    return told


def _told(stamp: Path) -> tuple[str, ...] | None:
    try:
        told = json.loads(stamp.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    is_told = isinstance(told, list) and all(isinstance(one, str) for one in told)
    return tuple(told) if is_told else None


def _remember(stamp: Path, told: tuple[str, ...]) -> None:
    with contextlib.suppress(OSError):  # a full disk
        build.write(stamp, json.dumps(told))


def _identity(record: Record) -> str:
    """Of a library, the processor and machine, and this version of all that takes part in the proof."""
    files = sorted(path for path in build.SOURCES.iterdir() if path.suffix in (".py", ".json"))
    told = (record.digest, processor.identity(), platform.node(), torch.__version__)
    return hashlib.sha256("\0".join((*told, *(path.read_text() for path in files))).encode()).hexdigest()[:24]


def _computed(found: Found) -> tuple[str, ...]:
    """And warns of what is wrong."""
    try:
        with compat.outside_compilation():  # the first call of all may be one that is compiled
            told = failures(found.kernel, found.record.precision)
    except (RuntimeError, ValueError) as error:
        raise UnavailableError(f"{found.path.name} cannot compute its known answers: {error}") from error
    if told:
        by, what = found.record.compiler, in_short(told)
        logging.getLogger("posenc").warning(
            "posenc's kernel gives wrong answers as built here by %s: not used (%s)", by, what
        )
    return told


def in_short(families: Sequence[str], most: int = 3) -> str:
    """The first of them, and how many more."""
    rest = len(families) - most
    return "; ".join(families[:most]) + (f"; and {rest} more" if rest > 0 else "")


def is_off() -> bool:
    """Whether the user has turned the kernel off."""
    return os.environ.get(SWITCH, "1").lower() in OFF


@functools.cache
def find(precision: str) -> Found | UnavailableError:
    """The library that is taken, or why there is none."""
    if is_off():
        return UnavailableError(f"{SWITCH}={os.environ[SWITCH]} turns it off")
    if os.name != "posix":
        return UnavailableError(ELSEWHERE)
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
    if not reasons:
        reasons = ["the CPU kernel has not been built for these sources and this processor"]
    return UnavailableError(f"{'; '.join(reasons)}: `posenc kernel --build` builds one")


@functools.cache
def _load(real: str) -> ctypes.CDLL | UnavailableError:
    found = find(real)
    return found if isinstance(found, UnavailableError) else found.kernel


def missing(dtype: torch.dtype) -> str | None:
    """Why the kernel cannot run in this precision on this machine; None where it can."""
    found = _load(REALS[dtype])
    return str(found) if isinstance(found, UnavailableError) else None


def multiplies_bfloat16() -> bool:
    """Whether the library for bfloat16 has instructions that multiply it, so that it need not be widened."""
    found = _load(REALS[torch.bfloat16])
    return not isinstance(found, UnavailableError) and bool(found.posenc_multiplies_halves())


# What torch.compiler.assume_constant_result does, which imports the whole compiler.
missing._dynamo_marked_constant = True  # type: ignore[attr-defined]
multiplies_bfloat16._dynamo_marked_constant = True  # type: ignore[attr-defined]


def library(dtype: torch.dtype) -> ctypes.CDLL:
    """The library for this precision. RuntimeError where there is none."""
    found = on_trial() or _load(REALS[dtype])
    if isinstance(found, UnavailableError):
        raise RuntimeError(f"posenc's own kernel cannot run: {found}")
    return found


def level(dtype: torch.dtype) -> str | None:
    """What the library for this precision uses of the processor, a level of `processor.py`; None without a library. One
    for this very processor uses all that its best level has, unless its compiler knew no instructions for bfloat16."""
    found = find(REALS[dtype])
    if isinstance(found, UnavailableError):
        return None
    if found.record.level != processor.NATIVE.name:
        return found.record.level
    levels = [x for x in processor.runnable(found.record.precision) if not x.precisions or multiplies_bfloat16()]
    return levels[0].name


def pool() -> int | None:
    """The address of what runs a function on the threads that PyTorch keeps; None where it is not known."""
    found = compat.openmp("GOMP_parallel")
    return None if found is None else ctypes.cast(found, ctypes.c_void_p).value


def cache() -> Path:
    """Where `posenc kernel --build` keeps libraries, and what was proved is remembered: in the user's cache.
    UnavailableError where there is none, it cannot be written to, or others may write there too."""
    if os.name != "posix":
        raise UnavailableError(ELSEWHERE)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "posenc"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = folder.stat()
    except (OSError, RuntimeError) as error:  # no home
        raise UnavailableError(f"there is no cache to keep it in: {error}") from None
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise UnavailableError(f"others may write to {folder}, so nothing there is trusted")
    if not os.access(folder, os.W_OK):
        raise UnavailableError(f"{folder} cannot be written to")
    return folder


def _no_execution(folder: Path) -> str:
    """In words, where the system executes nothing that lies in a folder."""
    return f" from {folder}, which is mounted noexec" if executes_nothing(folder) else ""


def executes_nothing(folder: Path) -> bool:
    """Whether the system executes nothing that lies in a folder, and so loads no library from there."""
    return bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0))
