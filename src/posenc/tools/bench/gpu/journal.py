"""The file of results: one line of JSON each, on the disk before the next one begins."""

import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posenc.tools.kit.files import naming, naming_line, parse, put, whole_lines

Record = Mapping[str, Any]
"""The first line has ``plan``, and each other one either ``item`` (of a ``step``) or only ``step``, which has ended."""

AGAIN = "again"  # of an item that the next run tries again: it was too slow, or memory was short


def latest(records: Sequence[Record]) -> dict[tuple[str, str], Record]:
    """The last line of each item, by step and item."""
    return {(record["step"], record["item"]): record for record in records if "item" in record}


class Journal:
    """The lines of a file, and more that are appended."""

    def __init__(self, descriptor: int, records: list[dict[str, Any]]) -> None:
        self.descriptor, self.records = descriptor, records
        self.lock = threading.Lock()

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Iterator["Journal"]:
        """The file at ``path``, made if it is not there. A line that was being written when its process was killed is
        removed.

        ValueError if a line is damaged, or if another process writes to it; OSError, naming it, if it cannot be
        written.
        """
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{path} is being written by another process") from None
            lines, end = whole_lines(path.read_bytes())
            os.ftruncate(descriptor, end)
            records = []
            for number, line in enumerate(lines, 1):
                with naming_line(path, number, "a result"):
                    records.append(parse(line.decode()))
            yield cls(descriptor, records)
        finally:
            os.close(descriptor)

    def add(self, record: dict[str, Any]) -> None:
        """Appends a line and waits until it is on the disk."""
        with self.lock:
            line = json.dumps(record)
            put(self.descriptor, line.encode() + b"\n")
            self.records.append(json.loads(line))  # as it is read again

    def again(self, since: int) -> set[tuple[str, str]]:
        """The steps and items that are to be tried again, by the lines before ``since``, and were not yet."""
        before, after = latest(self.records[:since]), latest(self.records[since:])
        return {which for which, record in before.items() if AGAIN in record and which not in after}
