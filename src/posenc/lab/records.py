"""Records: one JSON line per measurement, written as it is made, so that whatever stops a run, they stay.

Every record says what was measured (``kind``, ``scheme``, ``seed`` and, where it has one, ``length``), the result, and
all that made it: ``configuration``, ``text``, ``versions``, ``machine``, ``time``, and the ``fingerprint`` of what all
records of a comparison share. The results, by kind:

    training        parameters, position_parameters, tokens_per_second, seconds, curve [[step, bits], ...], final_bits,
                    peak_bytes (of forward and backward on one batch, beyond the model itself)
    windows, sliding, final_tokens, truncated
                    bits [per byte, one for each evaluation window], tokens (scored in each window)
    by_position     edges of the buckets, and for each bucket bits (the mean) and stderr
    accuracy, resized, order, distance (of the tasks digits and classify)
                    accuracy [share of right answers, one for each image or group of sequences], examples (in each)
    speed           relative_to, step_ratio (time of a training step over that scheme's), step_seconds

Where a scheme has no encoding for a length, ``undefined`` says why and there are no bits. Where a training diverged,
``diverged`` says when, and stands in place of its results and of those of all its tests. A bit that is null was not a
finite number.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

Record = dict[str, Any]

FILE = "records.jsonl"

# What a measurement is of: no two records of a folder share all four (None where a kind has no such field).
KEY = ("kind", "scheme", "seed", "length")


class Records:
    """The records of a folder, open to append to; a context manager, which one process at a time can hold.

    A last line that was cut off by a crash is removed, and ``notice`` says so. ValueError for a damaged line anywhere
    else, and where another process has the folder open.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.notice = ""
        folder.mkdir(parents=True, exist_ok=True)
        # The descriptor is also the lock: the system gives it back with the process, however that ends.
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            _lock(self._file, self.path)
            self._records, whole = _parse(self.path)
            torn = os.fstat(self._file).st_size - whole
            if torn:
                os.ftruncate(self._file, whole)
                self.notice = f"{self.path}: the last line was not complete and has been removed ({torn} bytes)"
        except BaseException:
            os.close(self._file)
            raise
        self._keys = {key(record) for record in self._records}

    def __enter__(self) -> "Records":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def has(self, kind: str, scheme: str, seed: int | None = None, length: int | None = None) -> bool:
        """Whether this was measured already."""
        return (kind, scheme, seed, length) in self._keys

    def append(self, record: Mapping[str, Any]) -> Record:
        """Adds a record, with the time, as one write that is on the disk when this returns. Gives what it wrote."""
        stamped = {**record, "time": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        assert key(stamped) not in self._keys, f"measured twice: {key(stamped)}"
        line = (json.dumps(stamped, allow_nan=False) + "\n").encode()
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self.path}: the disk took only a part of a record; free some space and run again")
        os.fsync(self._file)
        self._records.append(stamped)
        self._keys.add(key(stamped))
        return stamped


def key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the record is a measurement of."""
    return tuple(record.get(name) for name in KEY)


def read(folder: Path) -> list[Record]:
    """The whole records of a folder, as far as they are written; none where there are none."""
    path = folder / FILE
    return _parse(path)[0] if path.exists() else []


def _parse(path: Path) -> tuple[list[Record], int]:
    """The records, and the bytes they take up: what follows is a last line that was not written to its end."""
    lines = path.read_bytes().splitlines(keepends=True)
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("no end of line")
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not an object")
        except ValueError as error:
            if number == len(lines):
                return records, sum(map(len, lines[:-1]))
            raise ValueError(f"{path}, line {number}, is not a record ({error}): mend or remove that line") from None
        records.append(record)
    return records, sum(map(len, lines))


def _lock(descriptor: int, path: Path) -> None:
    if sys.platform == "win32":
        return  # O_APPEND keeps lines whole there too; only two runs at once go unnoticed
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ValueError(f"{path.parent} is in use by another run: wait for it, or give another folder") from None
