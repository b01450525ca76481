"""The C++ of this folder, built by the machine's compiler when it is first needed and kept for the next time.

It is built for the processor at hand, so what is kept is told apart by what the compiler knows of that processor, by
the compiler, and by the source. Nothing of torch goes into it: the library takes pointers and numbers.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from posenc.backends.native.proof import on_trial

REALS = {torch.float32: "float", torch.float64: "double"}  # the precisions that there are, each a library
SOURCES = Path(__file__).parent
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-std=c++17", "-fPIC", "-pthread")
COMPILERS = ("c++", "g++", "clang++")  # where CXX names none
SWITCH = "POSENC_NATIVE"
FEW_THREADS = 8  # a guess above two, where alone is as quick beside the kernel and safe on a busy machine (docs/log.md)


class UnavailableError(Exception):
    """Why there is no library here, in words that end a sentence."""


@functools.cache
def _load(real: str) -> ctypes.CDLL | UnavailableError:
    try:
        kept = _built(real)
        try:
            return ctypes.CDLL(str(kept))
        except OSError:  # of another system
            kept.unlink()
            return ctypes.CDLL(str(_built(real)))
    except UnavailableError as error:
        return error
    except OSError as error:
        return UnavailableError(f"its library cannot be loaded: {error}")


def missing(dtype: torch.dtype) -> str | None:
    """Why the kernel cannot run in this precision on this machine; None where it can."""
    found = _load(REALS[dtype])
    return str(found) if isinstance(found, UnavailableError) else None


# What torch.compiler.assume_constant_result does, which imports the whole compiler.
missing._dynamo_marked_constant = True  # type: ignore[attr-defined]


def library(dtype: torch.dtype) -> ctypes.CDLL:
    """The library for this precision. RuntimeError where there is none."""
    found = on_trial() or _load(REALS[dtype])
    if isinstance(found, UnavailableError):
        raise RuntimeError(f"posenc's own kernel cannot run: {found}")
    return found


@functools.cache
def _openmp(name: str) -> Any:
    """A function of the OpenMP that PyTorch's own loops use; None where it is not found. torch is loaded, and with it
    its OpenMP, for all to see."""
    return getattr(ctypes.CDLL(None), name, None)


def pool() -> int | None:
    """The address of what runs a function on the threads that PyTorch keeps; None where it is not known."""
    found = _openmp("GOMP_parallel")
    return None if found is None else ctypes.cast(found, ctypes.c_void_p).value


@contextlib.contextmanager
def by_itself() -> Iterator[int]:
    """What torch computes in here it computes in this thread alone; gives the number of threads that there are.

    A loop over several threads waits for the slowest, which on a busy machine is one that waits for a core. What
    is computed beside the kernel is many small loops. With many threads it would be too much for one.
    """
    threads = torch.get_num_threads()
    setting = _openmp("omp_set_num_threads")
    if setting is None or threads > FEW_THREADS:
        yield threads
        return
    setting(1)
    try:
        yield threads
    finally:
        setting(threads)


def _built(real: str) -> Path:
    if os.environ.get(SWITCH, "1") == "0":
        raise UnavailableError(f"{SWITCH}=0 turns it off")
    if os.name != "posix":
        raise UnavailableError("it is built on Linux and macOS alone")
    compiler = _compiler()
    files = sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h"))
    known = _output([*compiler, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull])  # of the compiler and the processor
    told = hashlib.sha256("\0".join([*(path.read_text() for path in files), *FLAGS, known]).encode())
    kept = _folder() / f"attention-{real}-{told.hexdigest()[:24]}.so"
    if not kept.exists():
        logging.getLogger("posenc").warning("posenc builds its CPU kernel, once on this machine (about 10 s): %s", kept)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            made = Path(folder) / kept.name
            _output([*compiler, *FLAGS, f"-DREAL={real}", "-shared", str(SOURCES / "attention.cpp"), "-o", str(made)])
            made.replace(kept)  # in one step, since other processes may be at it
    return kept


def _compiler() -> list[str]:
    """The compiler, and the options that come with it in CXX."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [[name] for name in COMPILERS]:
        found = shutil.which(command[0])
        if found is not None:
            return [found, *command[1:]]
    wanted = f"CXX={named[0]} is no program" if named else f"there is no C++ compiler ({', '.join(COMPILERS)})"
    raise UnavailableError(f"it is built by the machine's compiler, and {wanted}")


def _output(command: list[str]) -> str:
    try:
        english = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=english).stdout
    except subprocess.CalledProcessError as error:
        first = next((line for line in error.stderr.splitlines() if "error" in line), error.stderr.strip())
        raise UnavailableError(f"its C++ does not compile here: {first}") from None
    except OSError as error:
        raise UnavailableError(f"{command[0]} does not run: {error}") from None


def _folder() -> Path:
    """Where built libraries are kept: the user's cache. Where it cannot be written, or others may write there too, a
    folder of this process."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "posenc"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = folder.stat()
        if about.st_uid == os.getuid() and not about.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # no home
        pass
    return _folder_of_process()


@functools.cache
def _folder_of_process() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="posenc-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
