"""The C++ of this folder, built by the machine's compiler when it is first needed and kept for the next time.

It is built for the processor at hand, so what is kept is told apart by what the compiler knows of that processor, by
the compiler, and by the source. Nothing of torch goes into it: the library takes pointers and numbers.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

REALS = {torch.float32: "float", torch.float64: "double"}  # the precisions that there are, each a library
SOURCES = Path(__file__).parent
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-std=c++17", "-fPIC", "-pthread")
COMPILERS = ("c++", "g++", "clang++")  # where CXX names none
SWITCH = "POSENC_NATIVE"


class UnavailableError(Exception):
    """Why there is no library here, in words that end a sentence."""


@functools.cache
def _load(real: str) -> ctypes.CDLL | UnavailableError:
    try:
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
    found = _load(REALS[dtype])
    if isinstance(found, UnavailableError):
        raise RuntimeError(f"posenc's own kernel cannot run: {found}")
    return found


def _built(real: str) -> Path:
    if os.environ.get(SWITCH, "1") == "0":
        raise UnavailableError(f"{SWITCH}=0 turns it off")
    if os.name != "posix":
        raise UnavailableError("it is built on Linux and macOS alone")
    compiler = _compiler()
    files = sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h"))
    known = _output([compiler, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull])  # of the compiler and the processor
    told = hashlib.sha256("\0".join([*(path.read_text() for path in files), *FLAGS, known]).encode())
    kept = _folder() / f"attention-{real}-{told.hexdigest()[:24]}.so"
    if not kept.exists():
        logging.getLogger("posenc").warning("posenc builds its CPU kernel, once on this machine (about 10 s): %s", kept)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            made = Path(folder) / kept.name
            _output([compiler, *FLAGS, f"-DREAL={real}", "-shared", str(SOURCES / "attention.cpp"), "-o", str(made)])
            made.replace(kept)  # in one step, since other processes may be at it
    return kept


def _compiler() -> str:
    named = os.environ.get("CXX")
    for name in (named,) if named else COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    wanted = f"CXX={named} is no program" if named else f"there is no C++ compiler ({', '.join(COMPILERS)})"
    raise UnavailableError(f"it is built by the machine's compiler, and {wanted}")


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except subprocess.CalledProcessError as error:
        first = next((line for line in error.stderr.splitlines() if "error" in line), error.stderr.strip())
        raise UnavailableError(f"its C++ does not compile here: {first}") from None
    except OSError as error:
        raise UnavailableError(f"{command[0]} does not run: {error}") from None


def _folder() -> Path:
    """Where built libraries are kept: the user's cache, or a folder of this process where that cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "posenc"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return _folder_of_process()


@functools.cache
def _folder_of_process() -> Path:
    return Path(tempfile.mkdtemp(prefix="posenc-"))
