"""Formats records as table cells, with notes for missing numbers."""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from posenc.tools.kit import report
from posenc.tools.kit.turns import ratios

Record: TypeAlias = Mapping[str, Any]

PHASES = {"forward": "forward", "training": "a training step"}
BUSY = 0.1  # share of the cores; if other processes use more, times are marked as doubtful
SIGN = "†"
NUMBER = re.compile(r"[\d–∞]|$")
SPREAD = "± half the interval that holds the true one in 9 of 10 cases"


@dataclass
class Table(report.Table):
    """A table with notes on missing numbers."""

    notes: list[str] = field(default_factory=list)
    foot: str = ""

    @property
    def columns(self) -> list[report.Column]:
        """The columns; those with only numbers and dashes are aligned to the right."""
        return [
            report.Column(str(head), number=all(NUMBER.match(row[i].text) for row in self.cells))
            for i, head in enumerate(self.header)
        ]

    def dash(self, reason: str) -> str:
        """A dash for a missing number, with a reference to the note that explains it."""
        if reason not in self.notes:
            self.notes.append(reason)
        return f"– ({self.notes.index(reason) + 1})"

    def cell(self, record: Record | None, name: str, form: Callable[[Record, str], str]) -> str:
        """A competitor's cell, or that of the backend that "auto" chose; a dash with a note if it has no number."""
        name = record["auto"] if record and name == "auto" else name
        result = record["results"].get(name) if record else None
        if record is None or result is None:
            return self.dash("not measured")
        return self.dash(result["left_out"]) if "left_out" in result else form(record, name)

    @property
    def lines(self) -> list[str]:
        """The notes below the table."""
        found = [f"({number}) {note}" for number, note in enumerate(self.notes, 1)]
        if any(cell.text.endswith(SIGN) for row in self.cells for cell in row):
            found.append(f"{SIGN} timed while other processes kept over {BUSY:.0%} of the cores busy")
        return [*found, self.foot] if self.foot else found


def number(value: float) -> str:
    """A number with three significant digits, or without decimals from 1,000 on.

    >>> number(0.01234), number(5.678), number(56.78), number(5678.9), number(0)
    ('0.0123', '5.68', '56.8', '5,679', '0')
    """
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def amount(record: Record, name: str, measured: str = "seconds") -> float:
    """The milliseconds or mebibytes of a competitor; 0 for one that was left out."""
    result = record["results"].get(name, {})
    if measured == "seconds":
        return 1e3 * statistics.median(result["seconds"]) if result.get("seconds") else 0.0
    return float(result.get("peak_bytes", 0)) / 2**20


def amount_cell(record: Record, name: str, measured: str = "seconds") -> str:
    return number(amount(record, name, measured)) + (mark(record) if measured == "seconds" else "")


def ratio_cell(record: Record, name: str) -> str:
    if name == record["baseline"]:
        return "1"
    return times(record["results"][name]["ratio"], record)


def times(spread: Sequence[float], record: Record) -> str:
    median, low, high = spread
    places = 2 if median < 10 else 1
    return f"{median:.{places}f} ± {(high - low) / 2:.{places}f}{mark(record)}"


def over(record: Record, name: str, other: str) -> str:
    """The ratio to another competitor; empty for that one, the baseline, or if the other was left out."""
    if name in (other, record["baseline"]) or "left_out" in record["results"][other]:
        return ""
    return times(ratios(*(record["results"][each]["seconds"] for each in (name, other))), record)


def baseline_cells(records: Sequence[Record], lengths: Sequence[int]) -> list[str]:
    """Milliseconds of the baseline: the median of all groups of a length."""
    found = [[ms for r in records if r["length"] == n and (ms := amount(r, r["baseline"]))] for n in lengths]
    return [number(statistics.median(each)) if each else "–" for each in found]


def limit_of(records: Sequence[Record]) -> float:
    """The maximum of multiply-adds per second; 0 if it was not measured."""
    rates = [
        work / min(seconds)
        for record in of(records, "limit")
        for name, work in record["multiply_adds"].items()
        if (seconds := record["results"][name].get("seconds"))
    ]
    return max(rates, default=0.0)


def share_cell(record: Record | None, name: str, limit: float) -> str:
    """The share of the peak that a competitor reaches; empty without a time or without a count of its multiply-adds,
    which only plain attention and the kernel have."""
    work = record.get("multiply_adds", {}).get(name) if record else None
    if record is None or work is None or not (ms := amount(record, name)):
        return ""
    return f"{work / (ms * 1e-3) / limit:.0%}{mark(record)}"


def of(records: Sequence[Record], *kinds: str) -> list[Record]:
    """Records of these kinds, or of all kinds that begin with these words."""
    return [record for record in records if any(f"{record['kind']} ".startswith(f"{kind} ") for kind in kinds)]


def with_auto(records: Sequence[Record], *kinds: str) -> list[Record]:
    """Records of these kinds that have the choice of auto."""
    return [record for record in of(records, *kinds) if "auto" in record]


def one(records: Sequence[Record], scheme: str, length: int) -> Record | None:
    return next((record for record in records if (record["scheme"], record["length"]) == (scheme, length)), None)


def lengths_of(records: Sequence[Record]) -> list[int]:
    return sorted({record["length"] for record in records})


def schemes(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(record["scheme"] for record in records))


def mark(record: Record) -> str:
    """The sign after a time of this group if it is doubtful; else empty."""
    others = record["others"]
    return f" {SIGN}" if others is not None and others > BUSY * record["machine"]["cores"] else ""
