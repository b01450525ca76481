"""Reads and writes records: one JSON line per measurement, written at once, so that an interrupted run keeps them.

Every record has its primary key (``kind``, ``scheme`` and, where they apply, ``seed``, ``length`` and ``trial``), the
result, the ``time``, and the ``fingerprint`` of what all records of its folder share. Values that many records share,
such as the configuration and the machine, are written once, in a line ``about`` with a name; later records refer to
that name, and reading puts the values back into each."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from posenc.arguments import shown
from posenc.command.files import naming, put
from posenc.schemes.user_code import source_of
from posenc_lab.kit.configuration import fingerprint
from posenc_lab.kit.files import content, naming_line, parse, require, whole_lines

Record = dict[str, Any]

FILE = "records.jsonl"

# The primary key of a record, unique in a folder (None where a kind has no such field).
KEY = ("kind", "scheme", "seed", "length", "trial")

ABOUT = "about"
NO_REQUIREMENTS: Mapping[str, Any] = MappingProxyType({})

# The fields of every record.
REQUIRED_FIELDS = {"kind": str, "scheme": str, "fingerprint": str, "time": str}

Check: TypeAlias = Callable[[Record], None]
"""Raises ValueError for a record whose results are not those of its kind."""


class InUseError(ValueError):
    """Another process has the folder open."""


class Records:
    """The records of a folder, open for appending: a context manager that one process at a time can hold.

    An incomplete last line, left by a crash, is removed, and ``notice`` says so. ValueError, naming the line, for any
    other line that is damaged, is not a record, or repeats a measurement; InUseError if another process has the folder
    open.
    """

    def __init__(self, folder: Path, check: Check = lambda record: None) -> None:
        self.path, self._check = folder / FILE, check
        self.notice = ""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        with naming(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            # The descriptor is also the lock, which the system releases when the process ends.
            self._file = os.open(self.path, flags, 0o644)
        try:
            _lock(self._file, self.path)
            self._records, self._lines, self._told, self._size = _parse(self.path, content(self.path), check)
            torn = os.fstat(self._file).st_size - self._size
            if torn:
                os.ftruncate(self._file, self._size)
                line = f"line {len(self._records) + len(self._told) + 1}"
                self.notice = f"{self.path}, {line}, was not written to its end and has been removed ({torn} bytes)"
        except BaseException:
            os.close(self._file)
            raise
        self._keys = {key(record) for record in self._records}

    def __enter__(self) -> "Records":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def __iter__(self) -> Iterator[Record]:
        """The records, in the order of their lines."""
        return iter(self._records)

    def numbered(self) -> Iterator[tuple[int, Record]]:
        """Each record with its line number."""
        return zip(self._lines, self._records, strict=True)

    def __len__(self) -> int:
        return len(self._records)

    def has(
        self, kind: str, scheme: str, seed: int | None = None, length: int | None = None, trial: int | None = None
    ) -> bool:
        return (kind, scheme, seed, length, trial) in self._keys

    def require_sources(self, schemes: Iterable[str]) -> None:
        """ValueError if the source file of a scheme has changed since its measurements."""
        for scheme, record in product(schemes, self):
            if record["scheme"] == scheme and record.get("source", "") != source_of(scheme):
                raise ValueError(f"{scheme} is not as it was when {self.path} was written: give another folder")

    def append(self, record: Mapping[str, Any], about: Mapping[str, Any] = NO_REQUIREMENTS) -> Record:
        """Appends a record, with the time and the ``source`` of a user's scheme, and waits until it is on the disk.
        ``about`` is what it shares with many others. Returns the whole record.

        Raises ValueError for what `read` would reject; OSError if it cannot be written, leaving the file unchanged, or
        if the file was changed by another process.
        """
        source = {"source": source_of(record["scheme"])} if ":" in record["scheme"] else {}
        own = {**record, **source, "time": datetime.now(UTC).isoformat(timespec="seconds")}
        stamped = {**own, **about}
        assert key(stamped) not in self._keys, f"measured twice: {key(stamped)}"
        _require(stamped, self._check)
        lines = [own]
        if about:
            name = fingerprint(about)
            lines = [{**own, ABOUT: name}] if name in self._told else [{ABOUT: name, **about}, {**own, ABOUT: name}]
        line = "".join(json.dumps(each, allow_nan=False) + "\n" for each in lines).encode()
        with naming(self.path):
            there, mine = os.stat(self.path), os.fstat(self._file)
        if (there.st_dev, there.st_ino, there.st_size) != (mine.st_dev, mine.st_ino, self._size):
            raise OSError(f"{self.path} was changed by something else during the run, so nothing is added to it")
        try:
            with naming(self.path):
                put(self._file, line)
        except BaseException:
            os.ftruncate(self._file, self._size)  # or the next line would follow a part of this one
            raise
        self._size += len(line)
        if len(lines) > 1:
            self._told[name] = dict(about)
        self._lines.append(len(self._records) + len(self._told) + 1)
        self._records.append(stamped)
        self._keys.add(key(stamped))
        return stamped


def key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """The primary key of a record."""
    return tuple(record.get(name) for name in KEY)


def read(folder: str | Path, check: Check = lambda record: None) -> list[Record]:
    """The complete records of a folder; empty if there are none.

    Raises ValueError, naming the line, as `Records` does.
    """
    path = Path(folder) / FILE
    return _parse(path, content(path), check)[0] if path.exists() else []


def made_with(
    records: Iterable[Mapping[str, Any]], facts: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """The ``facts`` that records were made with, by name, and when. If a fact has several values, all are listed."""
    found: dict[str, dict[str, None]] = {}
    times = []
    for record in records:
        for name, value in facts(record).items():
            if name == "memory_bytes":
                name, value = "memory", f"{value / 2**30:.1f} GiB" if value else None
            found.setdefault(name, {})[str(value)] = None
        times += [str(record["time"])] if record.get("time") else []
    if times:
        first, last = min(times), max(times)
        found["measured"] = {first if first == last else f"{first} to {last}": None}
    return [(name, "; ".join(values)) for name, values in found.items()]


def _parse(path: Path, data: bytes, check: Check) -> tuple[list[Record], list[int], dict[str, Record], int]:
    """The records, their line numbers, the shared values by name, and the number of bytes parsed; any bytes after that
    are an incomplete last line."""
    lines, size = whole_lines(data)
    records: list[Record] = []
    numbers: list[int] = []
    told: dict[str, Record] = {}
    seen: dict[tuple[Any, ...], int] = {}
    for number, line in enumerate(lines, 1):
        with naming_line(path, number, "a record"):
            record = parse(line.decode())
            if (about := record.pop(ABOUT, None)) is not None:
                require({ABOUT: about}, {ABOUT: str})
                if "kind" not in record and about not in told:
                    told[about] = record
                    continue
                if about not in told:
                    raise ValueError(f"no line before it says what {ABOUT} {shown(about)} is")
                record |= told[about]
            _require(record, check)
            if (first := seen.setdefault(key(record), number)) != number:
                raise ValueError(f"it repeats the measurement of line {first}")
        records.append(record)
        numbers.append(number)
    return records, numbers, told, size


def _require(record: Record, check: Check) -> None:
    """ValueError for a record that lacks a required field or fails its check."""
    require(record, REQUIRED_FIELDS)
    require(record, {name: int for name in ("seed", "length") if record.get(name) is not None})
    check(record)


def _lock(descriptor: int, path: Path) -> None:
    if sys.platform == "win32":
        return  # two simultaneous runs are not detected there, but O_APPEND keeps lines whole
    import fcntl

    try:
        with naming(path):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUseError(f"{path.parent} is in use by another run: wait for it, or give another folder") from None
