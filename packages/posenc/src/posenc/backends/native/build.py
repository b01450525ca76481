"""Builds the C++ sources of this folder into libraries, one for each precision and level of processors.

Uses only the standard library, since posenc is built with this file before torch is installed. The libraries do not
link to torch either: they take pointers and numbers.

Next to each library is its record: its sources, its compiler, and the digest of the file. The record is written last
and atomically, so the library that it names is complete.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# -- levels of processors ---------------------------------------------------------------------------------------------


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


def processor_name() -> str:
    """The processor's name."""
    brand = _sysctl("machdep.cpu.brand_string") if sys.platform == "darwin" else _line("model name")
    return brand or platform.processor() or machine()


def machine_identity() -> str:
    """The digest that identifies this kind of processor."""
    return hashlib.sha256(" ".join((machine(), processor_name(), *sorted(flags()))).encode()).hexdigest()[:16]


def _line(name: str) -> str:
    """The value of this field of the first core in /proc/cpuinfo."""
    try:
        with CPUINFO.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == name:
                    return value.strip()
    except OSError:
        pass
    return ""


def _sysctl(name: str) -> str:
    command = ["/usr/sbin/sysctl", "-n", name]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


# -- libraries --------------------------------------------------------------------------------------------------------

SOURCES = Path(__file__).parent
BUILT = SOURCES / "built"  # libraries built with posenc
# The compiler flags of each precision; `REALS` of library.py has their dtypes.
PRECISIONS = {"float": ("-DREAL=float",), "double": ("-DREAL=double",), "bfloat16": ("-DREAL=float", "-DHALF=1")}
FLAGS: tuple[str, ...] = ("-O3", "-ffp-contract=fast", "-std=c++17", "-fPIC", "-pthread", "-shared")
COMPILERS = ("c++", "g++", "clang++")  # if CXX is not set; on Windows MinGW's
SUFFIX = ".so"  # also on macOS
if os.name == "nt":
    FLAGS, SUFFIX = (*FLAGS, "-static"), ".dll"  # with MinGW's own libraries inside
COMPILER_SECONDS = 600.0  # the time limit of the compiler
TEMPORARY_PREFIX = ".making-"  # the prefix of temporary build folders
MAX_FILE_BYTES = {".json": 2**20, SUFFIX: 2**27}  # bytes that are read of a file
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
OPEN_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))  # where there are such


class UnavailableError(Exception):
    """Why there is no library, as the end of a sentence."""


class Compiler(NamedTuple):
    command: tuple[str, ...]
    options: tuple[str, ...]  # which override FLAGS; the flags of a level come after them
    version: str


class Record(NamedTuple):
    """The metadata of a library, stored next to it."""

    precision: str
    level: str
    sources: str
    file: str
    size: int
    digest: str
    system: str  # with the architecture
    compiler: str
    command: str


class Outcome(NamedTuple):
    precision: str
    level: str
    reason: str | None  # why it was not built; None if it was


# --- records ----------------------------------------------------------------------------------------------------------


def sources() -> list[Path]:
    """The C++ files, sorted by name."""
    return sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h"))


def version() -> str:
    """The digest of the sources."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources())).hexdigest()[:16]


def identity(precision: str, level: Level, processor: str = "") -> str:
    """The identity of a library of these sources; ``processor`` if it is only for that processor."""
    parts = (version(), *FLAGS, *PRECISIONS[precision], *level.flags, system(), processor)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def system() -> str:
    """The operating system and architecture of a library."""
    return f"{platform.system()} {platform.machine()}"


def record_path(folder: Path, precision: str, level: str, identity: str) -> Path:
    """The path of the record of a library of this identity."""
    return folder / f"attention-{precision}-{level}-{identity}.json"


def read(path: Path) -> Record | None:
    """The record at ``path``, after checking that its library is complete; None if there is none. UnavailableError for
    a library that cannot be used. The digest in the record only tells of damage: whoever can write a library can write
    its record too, so `content` checks who can."""
    record, found = _record(path), None
    if record is not None:
        found = content(path.with_name(record.file))
        if found is None:  # replaced by another in the meantime
            record = _record(path)
            found = record and content(path.with_name(record.file))
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
    found = content(path)
    if found is None:
        return None
    try:
        record = Record(**json.loads(found))
        for field, value in record._asdict().items():
            kind = int if field == "size" else str
            if type(value) is not kind:
                raise TypeError(f"{field} must be of type {kind.__name__}, got {value!r}")
        if not re.fullmatch(rf"attention-[\w.-]+\{SUFFIX}", record.file, re.ASCII):
            raise ValueError(f"file must be the name of a library in this folder, got {record.file!r}")
    except (ValueError, TypeError, RecursionError) as error:
        raise UnavailableError(f"{path.name} is no record of a library: {error}") from None
    return record


# --- who may write ----------------------------------------------------------------------------------------------------
# Windows has no such owners and modes: there the folders of posenc and of the user's profile are taken as they are.


def content(path: Path) -> bytes | None:
    """The bytes of a file; None if there is none. UnavailableError for what is not a regular file of at most
    `MAX_FILE_BYTES` bytes that only this user and root can write and replace, so that what is loaded later is what was
    read here."""
    try:
        with open(_open(path, os.O_RDONLY), "rb") as file:
            found = file.read(MAX_FILE_BYTES[path.suffix] + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror}") from None
    if len(found) > MAX_FILE_BYTES[path.suffix]:
        raise UnavailableError(f"{path} has more than {MAX_FILE_BYTES[path.suffix]} bytes")
    return found


def _open(path: Path, flags: int) -> int:
    """The descriptor of a regular file that passes the checks of `content`. A pipe is not waited for."""
    code = Path(__file__).stat() if path.parent == BUILT else None
    real = Path(os.path.realpath(path))
    check_folder(real.parent, code)
    file = os.open(real, flags | OPEN_FLAGS, 0o600)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise UnavailableError(f"{path} is not a regular file")
        _check_writers(path, about, code)
    except BaseException:
        os.close(file)
        raise
    return file


def check_folder(folder: Path, code: os.stat_result | None = None) -> None:
    """UnavailableError if others than this user and root can write to this folder, without symbolic links, or replace
    it. ``code`` is that of posenc's code if the folder is in posenc: whoever can write that is no other."""
    _check_writers(folder, folder.stat(), code)
    for parent in folder.parents if code is None else ():
        about = parent.stat()
        is_sticky = about.st_mode & stat.S_ISVTX  # as /tmp, where others replace only what is theirs
        _check_writers(parent, about, modes=0 if is_sticky else WRITABLE_BY_OTHERS)


def _check_writers(
    path: Path, about: os.stat_result, code: os.stat_result | None = None, modes: int = WRITABLE_BY_OTHERS
) -> None:
    if os.name != "posix":
        return
    owners = {0, os.getuid()}
    if code is not None:
        owners, modes = owners | {code.st_uid}, modes & ~code.st_mode
    if about.st_mode & modes & stat.S_IWGRP and _is_own_group(about.st_gid):
        modes &= ~stat.S_IWGRP
    if about.st_uid not in owners or about.st_mode & modes:
        raise UnavailableError(f"others may write to {path}, so nothing there is trusted")


def _is_own_group(number: int) -> bool:
    """Whether a group is the one that has this user's name and nobody else, to whom many systems let it write."""
    import grp
    import pwd

    if number == 0:  # containers give it to many
        return False
    with contextlib.suppress(KeyError):
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(number)
        members = {*group.gr_mem, *(other.pw_name for other in pwd.getpwall() if other.pw_gid == number)}
        return group.gr_name == user.pw_name and members == {user.pw_name}
    return False


# --- building ---------------------------------------------------------------------------------------------------------


def compiler() -> Compiler:
    """The compiler in CXX with its options, or the first one found."""
    try:
        named = shlex.split(os.environ.get("CXX", ""), posix=os.name == "posix")  # Windows has \ in paths
    except ValueError as error:
        raise UnavailableError(f"CXX={os.environ['CXX']} cannot be read: {error}") from None
    first_option = next((n for n, word in enumerate(named) if n and word.startswith("-")), len(named))
    for command in [named[:first_option]] if named else [[name] for name in COMPILERS]:
        found = shutil.which(command[0])
        if found is not None:
            program = (found, *command[1:])
            output = _output([[*program, "--version"]], limit=60)[0]
            if isinstance(output, UnavailableError):
                raise output
            return Compiler(
                program, tuple(named[first_option:]), next(iter(output.splitlines()), "of no known version")
            )
    reason = f"CXX={named[0]} was not found" if named else f"none of {', '.join(COMPILERS)} was found"
    raise UnavailableError(f"building it needs a C++ compiler, and {reason}")


def build(folder: Path, targets: Sequence[tuple[str, Level]], processor: str = "", days: float = 0) -> list[Outcome]:
    """Builds the ``targets``, libraries of a precision and level, in ``folder``, unless they are up to date. Only one
    process builds at a time; others wait and use its libraries. Libraries of other sources that were not used for
    ``days`` are removed. UnavailableError if there is no compiler or the folder is not writable."""
    by = compiler()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder / ".lock") as is_held:
            if is_held:  # their process was killed
                for left in folder.glob(f"{TEMPORARY_PREFIX}*"):
                    shutil.rmtree(left, ignore_errors=True)
            kept = {
                (p, level.name): record_path(folder, p, level.name, identity(p, level, processor))
                for p, level in targets
            }
            missing = [x for x in targets if not _is_fresh(kept[x[0], x[1].name], by, _command(by, *x))]
            reasons = _compile(by, missing, kept) if missing else {}
            _remove_old(folder, days)
    except OSError as error:
        raise UnavailableError(f"{folder} cannot be written to: {error}") from None
    return [Outcome(p, level.name, reasons.get((p, level.name))) for p, level in targets]


def build_best(
    folder: Path,
    levels: Mapping[str, Sequence[Level]],
    processor: str = "",
    days: float = 0,
    fault: Callable[[str, Level], str | None] = lambda precision, level: None,
) -> list[Outcome]:
    """Builds, for each precision, the first level that compiles and for which ``fault`` returns None. Returns the
    outcome of every level that was tried. See `build` for the other arguments."""
    left = {precision: list(of) for precision, of in levels.items()}
    outcomes = []
    while targets := [(precision, of.pop(0)) for precision, of in left.items() if of]:
        for one, (precision, level) in zip(build(folder, targets, processor, days), targets, strict=True):
            outcomes.append(one._replace(reason=one.reason or fault(precision, level)))
            if outcomes[-1].reason is None:
                left[precision] = []
    return outcomes


def _is_fresh(path: Path, by: Compiler, command: str) -> bool:
    try:
        record = read(path)
    except UnavailableError:
        return False
    return record is not None and (record.compiler, record.command) == (by.version, command)


def _words(by: Compiler, precision: str, level: Level) -> list[str]:
    return [*by.command, *FLAGS, *by.options, *PRECISIONS[precision], *level.flags]


def _command(by: Compiler, precision: str, level: Level) -> str:
    return shlex.join(_words(by, precision, level))


def _compile(
    by: Compiler, targets: Sequence[tuple[str, Level]], kept: dict[tuple[str, str], Path]
) -> dict[tuple[str, str], str]:
    """Builds the libraries, and returns the reasons of those that failed."""
    folder = next(iter(kept.values())).parent
    reasons = {}
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=folder) as making:
        libraries = [Path(making) / f"attention-{precision}-{level.name}{SUFFIX}" for precision, level in targets]
        source = str(SOURCES / "attention.cpp")
        commands = [[*_words(by, *x), source, "-o", str(to)] for x, to in zip(targets, libraries, strict=True)]
        for (precision, level), to, output in zip(targets, libraries, _output(commands), strict=True):
            if isinstance(output, UnavailableError):
                reasons[precision, level.name] = str(output)
            elif not to.exists():
                reasons[precision, level.name] = f"{by.command[0]} wrote no library"
            else:
                _store(to, kept[precision, level.name], precision, level, by)
    return reasons


def _store(library: Path, path: Path, precision: str, level: Level, by: Compiler) -> None:
    content = library.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    named = f"attention-{precision}-{level.name}-{digest[:16]}{SUFFIX}"
    command = _command(by, precision, level)
    record = Record(precision, level.name, version(), named, len(content), digest, system(), by.version, command)
    before = None
    with contextlib.suppress(UnavailableError):
        before = read(path)
    with library.open("rb+") as file:  # Windows syncs only what may be written
        os.fsync(file.fileno())
    library.replace(path.with_name(named))
    write(path, json.dumps(record._asdict(), indent=1))
    if before is not None and before.file != named:
        _remove(path.with_name(before.file))


def write(path: Path, text: str) -> None:
    """Writes a file atomically."""
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as writing:
        part = Path(writing) / path.name
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    if os.name == "posix":  # Windows opens no folders
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _remove_old(folder: Path, days: float) -> None:
    """Removes all libraries except those of these sources and those used within ``days``, and races older than that."""
    old = time.time() - days * 86_400
    there = {*folder.glob("attention-*"), *folder.glob("proof-*"), *folder.glob("races-*")}
    keep = {path for path in there if path.lstat().st_mtime > old}
    for path in folder.glob("attention-*.json"):
        with contextlib.suppress(UnavailableError):
            record = _record(path)
            if record is not None and (path in keep or record.sources == version()):
                keep |= {path, path.with_name(record.file)}
    for path in there - keep:
        _remove(path)


def _remove(path: Path) -> None:
    """Removes a library; one that Windows has loaded stays until the next time."""
    try:
        path.unlink(missing_ok=True)
    except PermissionError:
        if os.name == "posix":
            raise


@contextlib.contextmanager
def lock(path: Path) -> Iterator[bool]:
    """A lock between processes; yields whether it is held, which not every file system supports. The system releases
    it when the process ends."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield False
        return
    with contextlib.ExitStack() as stack:
        try:
            file = _open(path, os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX)
            stack.callback(fcntl.flock, file, fcntl.LOCK_UN)  # a forked process also has the file open
            is_held = True
        except (OSError, UnavailableError):
            is_held = False
        yield is_held


def _output(commands: Sequence[Sequence[str]], limit: float | None = None) -> list[str | UnavailableError]:
    """The outputs of the commands, or why they failed. Runs one per core at a time, and kills those that exceed the
    limit."""
    found: list[str | UnavailableError] = []
    at_once = cores()
    for n in range(0, len(commands), at_once):
        found += _run_together(commands[n : n + at_once], COMPILER_SECONDS if limit is None else limit)
    return found


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_together(commands: Iterable[Sequence[str]], limit: float) -> list[str | UnavailableError]:
    english = {**os.environ, "LC_ALL": "C"}
    oldest = sysconfig.get_config_var("MACOSX_DEPLOYMENT_TARGET")  # the oldest system that this Python supports
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
                    start_new_session=True,  # to kill it with its child processes
                )
            except OSError as error:
                started.append(UnavailableError(f"{command[0]} does not run: {error}"))
            else:
                started.append(process)
        for command, one in zip(commands, started, strict=True):
            found.append(one if isinstance(one, UnavailableError) else _wait_for(one, command[0], until, limit))
    finally:
        for one in started:
            if isinstance(one, subprocess.Popen) and one.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(one.pid, signal.SIGKILL) if os.name == "posix" else one.kill()
                one.communicate()
    return found


def _wait_for(process: subprocess.Popen[str], name: str, until: float, limit: float) -> str | UnavailableError:
    try:
        out, output = process.communicate(timeout=max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return UnavailableError(f"{name} did not finish within {limit:g} s")
    if process.returncode == 0:
        return out
    first = next(
        (line for line in output.splitlines() if "error" in line), output.strip() or f"code {process.returncode}"
    )
    return UnavailableError(f"its C++ does not compile here: {first}")
