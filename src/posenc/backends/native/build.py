"""The C++ of this folder, made into libraries and kept: one for each precision and level of processor.

The standard library alone: posenc's build reads this file before there is a torch. Nothing of torch goes into the
libraries either: they take pointers and numbers.

Beside each library lies its record, which says of which sources it is, who built it, and the digest of its bytes. The
record is written last and in one step, so that what it names is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from posenc.backends.native.processor import Level

SOURCES = Path(__file__).parent
BUILT = SOURCES / "built"  # what was built with posenc
# What the compiler is told of each; `REALS` of library.py has the tensors that they are for.
PRECISIONS = {"float": ("-DREAL=float",), "double": ("-DREAL=double",), "bfloat16": ("-DREAL=float", "-DHALF=1")}
FLAGS = ("-O3", "-ffp-contract=fast", "-std=c++17", "-fPIC", "-pthread", "-shared")
COMPILERS = ("c++", "g++", "clang++")  # where CXX names none
LIMIT = 600.0  # seconds that a compiler may take
MAKING = ".making-"  # folders of what is being built


class UnavailableError(Exception):
    """Why there is no library, in words that end a sentence."""


class Compiler(NamedTuple):
    command: tuple[str, ...]
    options: tuple[str, ...]  # which override FLAGS; the flags of a level come after them
    version: str


class Record(NamedTuple):
    """What is told of a library, beside it."""

    precision: str
    level: str
    sources: str
    file: str
    size: int
    digest: str
    system: str  # and architecture
    compiler: str
    command: str


class Outcome(NamedTuple):
    precision: str
    level: str
    reason: str | None  # why it was not built; None where it is there


# --- what there is ----------------------------------------------------------------------------------------------------


def sources() -> list[Path]:
    """The C++, by name."""
    return sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h"))


def version() -> str:
    """Of the sources, by their text."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources())).hexdigest()[:16]


def identity(precision: str, level: Level, processor: str = "") -> str:
    """By which a library of these sources is told from one of others; ``processor`` where it is for that one alone."""
    told = (version(), *FLAGS, *PRECISIONS[precision], *level.flags, system(), processor)
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]


def system() -> str:
    """The system and architecture that a library is for."""
    return f"{platform.system()} {platform.machine()}"


def record_path(folder: Path, precision: str, level: str, told: str) -> Path:
    """Where the record of a library of this identity lies, if it is there."""
    return folder / f"attention-{precision}-{level}-{told}.json"


def read(path: Path) -> Record | None:
    """What the record at ``path`` says, its library seen to be whole; None where there is none. UnavailableError, in
    words, for a library that cannot be used."""
    record, found = _record(path), None
    if record is not None:
        found = _content(path.with_name(record.file))
        if found is None:  # replaced by another, between the two
            record = _record(path)
            found = record and _content(path.with_name(record.file))
    if record is None:
        return None
    if found is None:
        raise UnavailableError(f"{record.file} is missing")
    if not path.name.startswith(f"attention-{record.precision}-{record.level}-"):
        raise UnavailableError(f"{record.file} is of {record.precision} and {record.level}, not what {path.name} says")
    if len(found) != record.size:
        raise UnavailableError(f"{record.file} is cut short: {len(found)} bytes of {record.size}")
    if hashlib.sha256(found).hexdigest() != record.digest:
        raise UnavailableError(f"{record.file} is not what was built")
    if record.system != system():
        raise UnavailableError(f"{record.file} is for {record.system}, and this is {system()}")
    return record


def _record(path: Path) -> Record | None:
    content = _content(path)
    if content is None:
        return None
    try:
        record = Record(**json.loads(content))
        for field, value in record._asdict().items():
            kind = int if field == "size" else str
            if type(value) is not kind:
                raise TypeError(f"{field} must be of type {kind.__name__}, got {value!r}")
        if not re.fullmatch(r"attention-[\w.-]+", record.file, re.ASCII):
            raise ValueError(f"file must be the name of a library in this folder, got {record.file!r}")
    except (ValueError, TypeError, RecursionError) as error:
        raise UnavailableError(f"{path.name} is no record of a library: {error}") from None
    return record


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror}") from None


# --- building ---------------------------------------------------------------------------------------------------------


def compiler() -> Compiler:
    """The machine's, or the one that CXX names, with the options that come with it there."""
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise UnavailableError(f"CXX={os.environ['CXX']} cannot be read: {error}") from None
    first_option = next((n for n, word in enumerate(named) if n and word.startswith("-")), len(named))
    for command in [named[:first_option]] if named else [[name] for name in COMPILERS]:
        found = shutil.which(command[0])
        if found is not None:
            program = (found, *command[1:])
            told = _output([[*program, "--version"]], limit=60)[0]
            if isinstance(told, UnavailableError):
                raise told
            return Compiler(program, tuple(named[first_option:]), next(iter(told.splitlines()), "of no known version"))
    wanted = f"CXX={named[0]} was not found" if named else f"none of {', '.join(COMPILERS)} was found"
    raise UnavailableError(f"building it needs a C++ compiler, and {wanted}")


def build(folder: Path, wanted: Sequence[tuple[str, Level]], processor: str = "", days: float = 0) -> list[Outcome]:
    """Sees to it that ``folder`` has the libraries ``wanted``, precisions with their levels, as the compiler at hand
    builds them from these sources. One process at a time builds; others wait, and find what it has built. Libraries of
    other sources that nobody has used for so many ``days`` are removed. UnavailableError where there is no compiler, or
    the folder cannot be written to."""
    if os.name != "posix":
        raise UnavailableError("it is for Linux and macOS alone")
    by = compiler()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder / ".lock") as is_held:
            if is_held:  # whoever made them was killed
                for left in folder.glob(f"{MAKING}*"):
                    shutil.rmtree(left, ignore_errors=True)
            kept = {
                (p, level.name): record_path(folder, p, level.name, identity(p, level, processor))
                for p, level in wanted
            }
            missing = [x for x in wanted if not _is_fresh(kept[x[0], x[1].name], by, _command(by, *x))]
            reasons = _made(by, missing, kept) if missing else {}
            _remove_old(folder, days)
    except OSError as error:
        raise UnavailableError(f"{folder} cannot be written to: {error}") from None
    return [Outcome(p, level.name, reasons.get((p, level.name))) for p, level in wanted]


def build_best(
    folder: Path,
    levels: Mapping[str, Sequence[Level]],
    processor: str = "",
    days: float = 0,
    fault: Callable[[str, Level], str | None] = lambda precision, level: None,
) -> list[Outcome]:
    """For each precision the first of its levels that can be built, and in which ``fault`` finds none; what came of
    every level that was tried. The rest as in `build`."""
    left = {precision: list(of) for precision, of in levels.items()}
    outcomes = []
    while wanted := [(precision, of.pop(0)) for precision, of in left.items() if of]:
        for one, (precision, level) in zip(build(folder, wanted, processor, days), wanted, strict=True):
            outcomes.append(one._replace(reason=one.reason or fault(precision, level)))
            if outcomes[-1].reason is None:
                left[precision] = []
    return outcomes


def _is_fresh(path: Path, by: Compiler, command: str) -> bool:
    """Whether what lies there is what this compiler builds with these options."""
    try:
        record = read(path)
    except UnavailableError:
        return False
    return record is not None and (record.compiler, record.command) == (by.version, command)


def _words(by: Compiler, precision: str, level: Level) -> list[str]:
    return [*by.command, *FLAGS, *by.options, *PRECISIONS[precision], *level.flags]


def _command(by: Compiler, precision: str, level: Level) -> str:
    return shlex.join(_words(by, precision, level))


def _made(
    by: Compiler, wanted: Sequence[tuple[str, Level]], kept: dict[tuple[str, str], Path]
) -> dict[tuple[str, str], str]:
    """Builds the libraries, and gives the reasons of those that could not be built."""
    folder = next(iter(kept.values())).parent
    reasons = {}
    with tempfile.TemporaryDirectory(prefix=MAKING, dir=folder) as making:
        made = [Path(making) / f"attention-{precision}-{level.name}.so" for precision, level in wanted]
        source = str(SOURCES / "attention.cpp")
        commands = [[*_words(by, *x), source, "-o", str(to)] for x, to in zip(wanted, made, strict=True)]
        for (precision, level), to, told in zip(wanted, made, _output(commands), strict=True):
            if isinstance(told, UnavailableError):
                reasons[precision, level.name] = str(told)
            elif not to.exists():
                reasons[precision, level.name] = f"{by.command[0]} has written no library"
            else:
                _keep(to, kept[precision, level.name], precision, level, by)
    return reasons


def _keep(made: Path, path: Path, precision: str, level: Level, by: Compiler) -> None:
    """The library beside its record, in the place of the one before."""
    content = made.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    named = f"attention-{precision}-{level.name}-{digest[:16]}.so"
    command = _command(by, precision, level)
    record = Record(precision, level.name, version(), named, len(content), digest, system(), by.version, command)
    before = None
    with contextlib.suppress(UnavailableError):
        before = read(path)
    with made.open("rb") as file:
        os.fsync(file.fileno())
    made.replace(path.with_name(named))
    write(path, json.dumps(record._asdict(), indent=1))
    if before is not None and before.file != named:
        path.with_name(before.file).unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """A whole file or none, whatever happens meanwhile."""
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as writing:
        part = Path(writing) / path.name
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _remove_old(folder: Path, days: float) -> None:
    """All but the libraries of these sources, and what somebody has used within so many days."""
    old = time.time() - days * 86_400
    there = {*folder.glob("attention-*"), *folder.glob("proof-*")}
    keep = {path for path in there if path.stat().st_mtime > old}
    for path in folder.glob("attention-*.json"):
        with contextlib.suppress(UnavailableError):
            record = _record(path)
            if record is not None and (path in keep or record.sources == version()):
                keep |= {path, path.with_name(record.file)}
    for path in there - keep:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def lock(path: Path) -> Iterator[bool]:
    """One process at a time; gives whether that is so, which not every file system can see to. The system frees the
    lock of a process that ends, however it ends."""
    import fcntl  # not on Windows

    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
            stack.callback(fcntl.flock, file, fcntl.LOCK_UN)  # a process forked meanwhile has the file open, too
            is_held = True
        except OSError:
            is_held = False
        yield is_held


def _output(commands: Sequence[Sequence[str]], limit: float | None = None) -> list[str | UnavailableError]:
    """What the commands print, or why one failed: as many at a time as there are cores for this process. One that
    takes longer than the limit is stopped."""
    found: list[str | UnavailableError] = []
    at_once = cores()
    for n in range(0, len(commands), at_once):
        found += _of_several(commands[n : n + at_once], LIMIT if limit is None else limit)
    return found


def cores() -> int:
    """Those that this process may run on, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _of_several(commands: Iterable[Sequence[str]], limit: float) -> list[str | UnavailableError]:
    english = {**os.environ, "LC_ALL": "C"}
    oldest = sysconfig.get_config_var("MACOSX_DEPLOYMENT_TARGET")  # the oldest system that Python is for
    if oldest:
        english.setdefault("MACOSX_DEPLOYMENT_TARGET", str(oldest))
    started: list[subprocess.Popen[str] | UnavailableError] = []
    found: list[str | UnavailableError] = []
    until = time.monotonic() + limit
    try:
        for command in commands:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    encoding="utf-8",
                    errors="replace",
                    env=english,
                    start_new_session=True,  # to be stopped with the programs that it starts
                )
            except OSError as error:
                started.append(UnavailableError(f"{command[0]} does not run: {error}"))
            else:
                started.append(process)
        for command, one in zip(commands, started, strict=True):
            found.append(one if isinstance(one, UnavailableError) else _end_of(one, command[0], until, limit))
    finally:
        for one in started:
            if isinstance(one, subprocess.Popen) and one.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(one.pid, signal.SIGKILL)
                one.communicate()
    return found


def _end_of(process: subprocess.Popen[str], name: str, until: float, limit: float) -> str | UnavailableError:
    try:
        out, told = process.communicate(timeout=max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return UnavailableError(f"{name} has not ended after {limit:g} s")
    if process.returncode == 0:
        return out
    first = next((line for line in told.splitlines() if "error" in line), told.strip() or f"code {process.returncode}")
    return UnavailableError(f"its C++ does not compile here: {first}")
