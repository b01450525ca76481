"""Reports a grid: as one comparison if its cells differ in schemes and seeds alone, otherwise as a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table as RichTable

from posenc_lab.compare import report
from posenc_lab.compare.grid import Cell, Grid, value_of
from posenc_lab.compare.summary import Summary
from posenc_lab.kit import page
from posenc_lab.kit.records import Record
from posenc_lab.kit.report import Column, Report, Row, Table, Warn, as_printed

Found = Mapping[Cell, Sequence[Record]]


def write(grid: Grid, found: Found, out: Path) -> Path:
    """Writes the report of these records into the folder ``out``; returns its path."""
    if _is_one(grid):
        return report.write(_all(found), out)
    missing = len(grid.cells) - len(found)
    warnings = [Warn(f"{missing} of {len(grid.cells)} cells have no records yet.", id="missing")] if missing else []
    heading = f"{len(grid.cells)} comparisons"
    return page.write(Report("posenc compare: a grid", heading, [], [*warnings, table_of(grid, found)]), out)


def terminal_table(grid: Grid, found: Found) -> RichTable:
    """The main numbers, for a terminal."""
    if _is_one(grid):
        return report.terminal_table(_all(found))
    table = table_of(grid, found)
    shown = as_printed(table)
    shown.title, shown.caption = table.title, table.lead
    return shown


def table_of(grid: Grid, found: Found) -> Table:
    """A row for each scheme of each configuration, with the means over its seeds."""
    varied = [name for name in grid.varied if name not in ("schemes", "seeds")]
    groups: dict[tuple[str, ...], list[Record]] = {}
    for cell, records in found.items():
        groups.setdefault(tuple(value_of(cell, name) for name in varied), []).extend(records)
    rows: list[Row] = []
    for values, records in groups.items():
        summary = Summary(records)
        for scheme in summary.schemes:
            seeds = len(summary.measured(scheme))
            ends = [_score(summary, scheme, n) for n in (summary.train_length, summary.test_lengths[-1])]
            rows.append([*values, scheme, summary.task.score, str(seeds), *ends])
    numbers = [Column(name) for name in ("seeds", "at the training length", "at the longest")]
    lead = "Means over seeds and windows, ± half the 95 % interval. Bits: lower is better; accuracy: higher."
    return Table("Every configuration", lead, [*varied, "scheme", "score", *numbers], rows, id="cells")


def _score(summary: Summary, scheme: str, length: int) -> str:
    value = summary.bits(summary.kind, scheme, length)
    if value is None or not value.finite:
        return summary.no_value(scheme, length, summary.kind) or ("–" if value is None else "not finite")
    return f"{value.mean:.3f} ± {(value.high - value.low) / 2:.3f}"


def _all(found: Found) -> list[Record]:
    return [record for records in found.values() for record in records]


def _is_one(grid: Grid) -> bool:
    """Whether the cells make one comparison."""
    return set(grid.varied) <= {"schemes", "seeds"}
