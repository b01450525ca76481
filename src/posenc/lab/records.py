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

from posenc.lab.files import naming, parse, put, require

Record = dict[str, Any]

FILE = "records.jsonl"

# What a measurement is of: no two records of a folder share all four (None where a kind has no such field).
KEY = ("kind", "scheme", "seed", "length")

# What is read must be, by name. Kinds that are not listed are of other commands.
EVERY = {"kind": str, "scheme": str, "fingerprint": str, "time": str}
COMPARED = {"seed": int, "configuration": dict, "text": dict, "versions": dict, "machine": dict}
_BITS = {"length": int, "bits": list[float | None], "tokens": int}
_ACCURACY = {"length": int, "accuracy": list[float], "examples": int}
RESULTS: dict[str, dict[str, Any]] = {
    "training": {
        "parameters": int,
        "position_parameters": int,
        "tokens_per_second": float,
        "seconds": float,
        "curve": list[tuple[int, float]],
        "final_bits": float,
        "peak_bytes": int,
    },
    **dict.fromkeys(("windows", "sliding", "final_tokens", "truncated"), _BITS),
    "by_position": {"length": int, "edges": list[int], "bits": list[float | None], "stderr": list[float | None]},
    **dict.fromkeys(("accuracy", "resized", "order", "distance"), _ACCURACY),
    "speed": {"relative_to": str, "step_ratio": float, "step_seconds": float},
}
INSTEAD = ("undefined", "diverged")  # of results: words that say why there are none


class Records:
    """The records of a folder, open to append to; a context manager, which one process at a time can hold.

    A last line that was cut off by a crash is removed, and ``notice`` says so. ValueError, naming the line, for any
    other that is damaged, is not a record, or repeats a measurement; and where another process has the folder open.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.notice = ""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        with naming(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            # The descriptor is also the lock: the system gives it back with the process, however that ends.
            self._file = os.open(self.path, flags, 0o644)
        try:
            _lock(self._file, self.path)
            self._records, self._size = _parse(self.path)
            torn = os.fstat(self._file).st_size - self._size
            if torn:
                os.ftruncate(self._file, self._size)
                line = f"line {len(self._records) + 1}"
                self.notice = f"{self.path}, {line}, was not written to its end and has been removed ({torn} bytes)"
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
        """The records; the n-th stands in line n."""
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def has(self, kind: str, scheme: str, seed: int | None = None, length: int | None = None) -> bool:
        """Whether this was measured already."""
        return (kind, scheme, seed, length) in self._keys

    def append(self, record: Mapping[str, Any]) -> Record:
        """Adds a record, with the time, as a line that is on the disk when this returns. Gives what it wrote.

        Raises ValueError for what `read` would refuse; OSError where the disk does not take it, and leaves the file as
        it was; OSError too where the file is not as this process left it, since lines would be mixed with another's.
        """
        stamped = {**record, "time": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        assert key(stamped) not in self._keys, f"measured twice: {key(stamped)}"
        _check(stamped)
        line = (json.dumps(stamped, allow_nan=False) + "\n").encode()
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
        self._records.append(stamped)
        self._keys.add(key(stamped))
        return stamped


def key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the record is a measurement of."""
    return tuple(record.get(name) for name in KEY)


def read(folder: Path) -> list[Record]:
    """The whole records of a folder, as far as they are written; none where there are none.

    Raises ValueError, naming the line, as `Records` does.
    """
    path = folder / FILE
    return _parse(path)[0] if path.exists() else []


def _parse(path: Path) -> tuple[list[Record], int]:
    """The records, and the bytes they take up: what follows is a last line that was not written to its end."""
    *lines, rest = path.read_bytes().split(b"\n")
    if lines and not rest and b"\0" in lines[-1]:  # of a long line, a crash can leave the end without the middle
        lines.pop()
    records: list[Record] = []
    seen: dict[tuple[Any, ...], int] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = parse(line.decode())
            _check(record)
            if (first := seen.setdefault(key(record), number)) != number:
                raise ValueError(f"it repeats the measurement of line {first}")
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, is not a record ({error}): mend or remove that line") from None
        records.append(record)
    return records, sum(len(line) + 1 for line in lines)


def _check(record: Record) -> None:
    """ValueError for a record without what is said above, or with something else in its place."""
    require(record, EVERY)
    require(record, {name: int for name in ("seed", "length") if record.get(name) is not None})
    if record["kind"] in RESULTS:
        results = RESULTS[record["kind"]]
        instead = {name: str for name in INSTEAD if name in record}
        if instead:
            results = {name: int for name in results if name == "length"} | instead
        require(record, COMPARED | results)


def _lock(descriptor: int, path: Path) -> None:
    if sys.platform == "win32":
        return  # O_APPEND keeps lines whole there too; only two runs at once go unnoticed
    import fcntl

    try:
        with naming(path):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"{path.parent} is in use by another run: wait for it, or give another folder") from None
