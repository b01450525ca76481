"""Records: one JSON line per measurement, written as it is made, so that whatever stops a run, they stay.

Every record says what was measured (``kind``, ``scheme`` and, where it has them, ``seed``, ``length`` and ``trial``),
the result, the ``time``, and the ``fingerprint`` of what all records of its folder share. What many records share word
for word, such as the configuration and the machine, stands once in a line of its own, ``about`` with a name for it, and
records after it give that name; whoever reads them gets all of it in each.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from posenc.arguments import shown
from posenc.schemes.own import source_of
from posenc.tools.kit.configuration import fingerprint
from posenc.tools.kit.files import naming, parse, put, require

Record = dict[str, Any]

FILE = "records.jsonl"

# What a measurement is of: no two records of a folder share all of these (None where a kind has no such field).
KEY = ("kind", "scheme", "seed", "length", "trial")

ABOUT = "about"
NOTHING: Mapping[str, Any] = MappingProxyType({})

# What every record must have, by name.
EVERY = {"kind": str, "scheme": str, "fingerprint": str, "time": str}

Check: TypeAlias = Callable[[Record], None]
"""Raises ValueError for a record whose results are not those of its kind."""


class Records:
    """The records of a folder, open to append to; a context manager, which one process at a time can hold.

    A last line that was cut off by a crash is removed, and ``notice`` says so. ValueError, naming the line, for any
    other that is damaged, is not a record, or repeats a measurement; and where another process has the folder open.
    """

    def __init__(self, folder: Path, check: Check = lambda record: None) -> None:
        self.path, self._check = folder / FILE, check
        self.notice = ""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        with naming(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            # The descriptor is also the lock: the system gives it back with the process, however that ends.
            self._file = os.open(self.path, flags, 0o644)
        try:
            _lock(self._file, self.path)
            self._records, self._lines, self._told, self._size = _parse(self.path, check)
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
        """Each record with the number of its line."""
        return zip(self._lines, self._records, strict=True)

    def __len__(self) -> int:
        return len(self._records)

    def has(
        self, kind: str, scheme: str, seed: int | None = None, length: int | None = None, trial: int | None = None
    ) -> bool:
        return (kind, scheme, seed, length, trial) in self._keys

    def require_sources(self, schemes: Iterable[str]) -> None:
        """ValueError where measurements of a scheme are of another text of its file, or were before it had one."""
        for scheme, record in product(schemes, self):
            if record["scheme"] == scheme and record.get("source", "") != source_of(scheme):
                raise ValueError(f"{scheme} is not as it was when {self.path} was written: give another folder")

    def append(self, record: Mapping[str, Any], about: Mapping[str, Any] = NOTHING) -> Record:
        """Adds a record, with the time and the ``source`` of a scheme of one's own, as a line that is on the disk when
        this returns. ``about`` is what it shares with many others. Gives the whole of it.

        Raises ValueError for what `read` would refuse; OSError where the disk does not take it, and leaves the file as
        it was; OSError too where the file is not as this process left it, since lines would be mixed with another's.
        """
        source = {"source": source_of(record["scheme"])} if ":" in record["scheme"] else {}
        own = {**record, **source, "time": datetime.now(timezone.utc).isoformat(timespec="seconds")}
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
            os.ftruncate(self._file, self._size)  # or the next line would be glued to what was written of this one
            raise
        self._size += len(line)
        if len(lines) > 1:
            self._told[name] = dict(about)
        self._lines.append(len(self._records) + len(self._told) + 1)
        self._records.append(stamped)
        self._keys.add(key(stamped))
        return stamped


def key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the record is a measurement of."""
    return tuple(record.get(name) for name in KEY)


def read(folder: Path, check: Check = lambda record: None) -> list[Record]:
    """The whole records of a folder, as far as they are written; none where there are none.

    Raises ValueError, naming the line, as `Records` does.
    """
    path = folder / FILE
    return _parse(path, check)[0] if path.exists() else []


def made_with(
    records: Iterable[Mapping[str, Any]], facts: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """What records were made with, and when: their ``facts``, by name. More than one value of a fact is said, not
    hidden."""
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


def _parse(path: Path, check: Check) -> tuple[list[Record], list[int], dict[str, Record], int]:
    """The records, the numbers of their lines, what they share by its name, and the bytes of all that: what follows is
    a last line that was not written to its end."""
    *lines, rest = path.read_bytes().split(b"\n")
    if lines and not rest and b"\0" in lines[-1]:  # of a long line, a crash can leave the end without the middle
        lines.pop()
    records: list[Record] = []
    numbers: list[int] = []
    told: dict[str, Record] = {}
    seen: dict[tuple[Any, ...], int] = {}
    for number, line in enumerate(lines, 1):
        try:
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
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, is not a record ({error}): mend or remove that line") from None
        records.append(record)
        numbers.append(number)
    return records, numbers, told, sum(len(line) + 1 for line in lines)


def _require(record: Record, check: Check) -> None:
    """ValueError for a record without what every record has, or that its check refuses."""
    require(record, EVERY)
    require(record, {name: int for name in ("seed", "length") if record.get(name) is not None})
    check(record)


def _lock(descriptor: int, path: Path) -> None:
    if sys.platform == "win32":
        return  # O_APPEND keeps lines whole there too; only two runs at once go unnoticed
    import fcntl

    try:
        with naming(path):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"{path.parent} is in use by another run: wait for it, or give another folder") from None
