"""Makes one flat table of the records of any command: a row for each number.

A row has the folder and the key of its record, the ``competitor`` of a benchmark, and the ``metric`` with its ``value``
at a ``step``. How a result becomes rows depends on its form:

    a number                       one row without a step
    a curve [[step, value], ...]   a row for each step
    values beside ``edges``        a row for each bucket, with its lower edge as the step
    ``seconds`` of each round      a row for each round, counted from 0
    ``ratio`` [median, low, high]  the rows ratio, ratio_low and ratio_high
    values of windows or answers   one row with their mean, and in ``values`` how many there are

A value that was not finite is empty, and a mean over such a value is empty too. All other contents of a record are
columns: texts under their own names, and what is nested under names such as ``configuration.steps``.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from posenc.command.files import write_whole
from posenc_lab.kit.records import FILE, KEY, Record, read

Row: TypeAlias = dict[str, Any]
Metric: TypeAlias = tuple[str | None, float | None, float | None, int]
"""A name, a step, a value, and of how many values it is the mean."""

FIRST = ("folder", *KEY, "competitor", "metric", "step", "value", "values")
"""The columns that every table begins with."""

RESULTS = "results"  # of a benchmark: those of each competitor by name


def load(source: Path) -> list[tuple[str, Record]]:
    """The records of a folder, or of all cells of a grid, each with its folder. ValueError if there are none, or,
    naming the line, for a damaged file."""
    patterns = (FILE, f"*/{FILE}", f"cells/*/{FILE}")  # a folder, one with a folder for each precision, a grid
    folders = [path.parent for pattern in patterns for path in sorted(source.glob(pattern))]
    found = [(str(folder), record) for folder in folders for record in read(folder)]
    if not found:
        raise ValueError(
            f"RECORDS must be a folder with {FILE}, or one of a grid, got {str(source)!r}, which has no records"
        )
    return found


def rows(records: Iterable[tuple[str, Record]]) -> Iterator[Row]:
    """The rows of all records."""
    for folder, record in records:
        key = {"folder": folder, **{name: record.get(name) for name in KEY}}
        shared = {name: value for name, value in record.items() if name not in (*KEY, RESULTS)}
        for competitor, results in record.get(RESULTS, {None: shared}).items():
            about = {name: value for name, value in results.items() if isinstance(value, Mapping | str)}
            numbers = {name: value for name, value in results.items() if name not in about}
            metrics: list[Metric] = [
                each for name, value in numbers.items() for each in _series(name, value, numbers.get("edges"))
            ]
            columns = _flat(about if results is shared else {**shared, **about})
            for metric, step, value, count in metrics or [(None, None, None, 0)]:
                measured = {"competitor": competitor, "metric": metric, "step": step, "value": value, "values": count}
                yield {**key, **measured, **columns}


def _series(name: str, value: Any, edges: Any) -> Iterator[Metric]:
    if not isinstance(value, list):
        yield name, None, None if value is None else float(value), 1
    elif name == "edges":
        return
    elif name == "ratio" and len(value) == 3:
        for end, number in zip(("", "_low", "_high"), value, strict=True):
            yield name + end, None, number, 1
    elif value and isinstance(value[0], list):
        for step, number in value:
            yield name, step, number, 1
    elif edges is not None:
        for step, number in zip(edges, value, strict=False):  # the last edge is the end of the last bucket
            yield name, step, number, 1
    elif name == "seconds":
        for step, number in enumerate(value):
            yield name, step, number, 1
    else:
        mean = None if None in value or not value else sum(value) / len(value)
        yield name, None, mean, len(value)


def _flat(values: Mapping[str, Any], above: str = "") -> Row:
    """Nested values under joined names; lists as JSON."""
    found: Row = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{name}.")
        else:
            found[above + name] = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
    return found


def columns(table: Sequence[Row]) -> dict[str, list[Any]]:
    """The table by column. Values of one column have one type: where they differ, all but numbers become text."""
    names = dict.fromkeys([*FIRST, *(name for row in table for name in row)])
    return {name: _alike([row.get(name) for row in table]) for name in names}


def _alike(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2:
        return values
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]


def to_csv(table: Sequence[Row], out: Path) -> None:
    """A CSV file with a line of names. What is missing is empty."""
    found = columns(table)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(found)
    writer.writerows(zip(*found.values(), strict=True))
    write_whole(out, text.getvalue().encode())


def to_parquet(table: Sequence[Row], out: Path) -> None:
    """A Parquet file; what is missing is null."""
    import pyarrow
    import pyarrow.parquet

    data = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns(table)), data)
    write_whole(out, data.getvalue())
