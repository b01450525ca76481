"""Makes the tables of a benchmark from its records, for the terminal and for reports.

A cell without a number is a dash, with the reason in a note below the table.
"""

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from posenc.command.files import write_whole
from posenc_lab.kit import report
from posenc_lab.kit.interleaving import ratios
from posenc_lab.kit.records import made_with
from posenc_lab.kit.titles import titled

if TYPE_CHECKING:
    from rich.console import Console

Record: TypeAlias = Mapping[str, Any]

PHASES = {"forward": "forward", "training": "a training step"}
BUSY_SHARE = 0.1  # share of the cores; if other processes use more, times are marked as doubtful
SIGN = "†"
NUMBER = re.compile(r"[\d–∞]|$")
TOO_MUCH, WORST = 1.25, 20  # regrets above the first are counted; rows of the largest
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
            found.append(f"{SIGN} timed while other processes kept over {BUSY_SHARE:.0%} of the cores busy")
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
    return number(amount(record, name, measured)) + mark(record) * (measured == "seconds")


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


def regret(record: Record) -> float:
    """The time with auto's backend over that with the fastest one; 0 if no other was measured."""
    times = _times(record)
    if len(times) < 2 or record.get("auto") not in times:
        return 0.0
    return ratios(times[record["auto"]], times[_fastest(record)])[0]


def _times(record: Record) -> dict[str, list[float]]:
    """The seconds of all that were measured but the baseline."""
    results = record["results"].items()
    return {name: x["seconds"] for name, x in results if name != record["baseline"] and "seconds" in x}


def _fastest(record: Record) -> str:
    times = _times(record)
    return min(times, key=lambda name: statistics.median(times[name]))


def of(records: Sequence[Record], kind: str, *, auto: bool = False) -> list[Record]:
    """Records of this kind, or of all kinds that begin with this word; with ``auto``, those that have its choice."""
    return [r for r in records if f"{r['kind']} ".startswith(f"{kind} ") and (not auto or "auto" in r)]


def one(records: Sequence[Record], scheme: str, length: int) -> Record | None:
    return next((record for record in records if (record["scheme"], record["length"]) == (scheme, length)), None)


def lengths_of(records: Sequence[Record]) -> list[int]:
    return sorted({record["length"] for record in records})


def schemes(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(record["scheme"] for record in records))


def mark(record: Record) -> str:
    """The sign after a time of this group if it is doubtful; else empty."""
    others = record["others"]
    return f" {SIGN}" if others is not None and others > BUSY_SHARE * record["machine"]["cores"] else ""


def tables(records: Sequence[Record]) -> list[Table]:
    found = [Table("Environment", "", ("what", "with"), [*environment(records)])]
    for phase in PHASES:
        found += [_price(records, phase), _memory(records, phase)]
    return [table for table in (*found, *_regrets(records), _mine(records)) if table.rows]


def busy(records: Sequence[Record]) -> str:
    """A warning before all tables if other processes made times doubtful; else empty."""
    marked = [record for record in records if mark(record)]
    if not marked:
        return ""
    most = max(marked, key=lambda record: record["others"])
    return (
        f"Other processes kept up to {most['others']:.1f} of {most['machine']['cores']} cores busy. The times of "
        f"{len(marked)} of {len(records)} groups are marked {SIGN} and say little: measure again, into another folder."
    )


def show(records: Sequence[Record], console: "Console") -> None:
    if busy(records):
        console.print(busy(records), style="bold", highlight=False, markup=False)
    printed(tables(records), console)


def write(records: Sequence[Record], out: Path) -> Path:
    """Writes the tables in Markdown, ``bench.md``, whole or not at all; returns its path."""
    parts = ["# What position costs\n", *([f"**{busy(records)}**\n"] if busy(records) else [])]
    write_whole(out / "bench.md", "\n".join([*parts, *map(report.as_markdown, tables(records))]).encode())
    return out / "bench.md"


def printed(tables: Iterable[Table], console: "Console") -> None:
    from rich.markup import escape

    for table in tables:
        console.print(f"[bold]{escape(table.title)}[/]", highlight=False)
        console.print(report.as_printed(table))
        for line in filter(None, (table.lead, *table.lines)):
            console.print(escape(line), highlight=False)


# -- the tables -------------------------------------------------------------------------------------------------------


def environment(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The facts that the records were made with."""

    def facts(record: Record) -> dict[str, object]:
        about = record["settings"]
        return {
            "tensors": f"1 × {about['heads']} × length × {about['head_dim']}, {about['dtype']}",
            "rounds": f"{about['rounds']} or more, until ratios are known to a tenth or {about['budget']:g} s are over",
            **record["machine"],
            **record.get("kernel", {}),
            **record["versions"],
        }

    rows = made_with(records, facts)
    told = [record["others"] for record in records if record["others"] is not None]
    if records:
        kept = f"kept {min(told):.1f} to {max(told):.1f} of {records[0]['machine']['cores']} cores busy" if told else ""
        rows.insert(-1, ("other processes", kept or "not known: this system does not tell"))
    return rows


def _price(records: Sequence[Record], phase: str) -> Table:
    found = of(records, f"price {phase}", auto=True)
    lengths = lengths_of(found)
    lead = (
        "Time over that of plain causal scaled_dot_product_attention on the same tensors in the same rounds, with the "
        f"backend that auto takes; the median, {SPREAD}."
    )
    table = Table(
        f"The price of position: {PHASES[phase]}", lead, ("scheme", "auto takes", *(f"{n:,}" for n in lengths))
    )
    several = any(len(record["results"]) > 2 for record in found)
    if found:
        table.rows.append(("plain, ms", "", *baseline_cells(found, lengths), *[""] * several))
    for scheme in schemes(found):
        measured = [one(found, scheme, length) for length in lengths]
        there = [record for record in measured if record]
        takes = list(dict.fromkeys(record["auto"] for record in there))
        cells = (table.cell(record, "auto", ratio_cell) for record in measured)
        worst = max(map(regret, there), default=0.0)
        table.rows.append((titled(scheme), " → ".join(takes), *cells, *[f"{worst:.2f}" if worst else ""] * several))
        others = dict.fromkeys(n for r in there for n in r["results"] if n != r["baseline"] and takes != [n])
        for name in others if several else ():
            table.rows.append(("", name, *(table.cell(record, name, ratio_cell) for record in measured), ""))
    if several:
        table.header = (*table.header, "regret")
        table.foot = (
            "Below a scheme its other backends. Regret: time with auto's backend over that with the fastest one, in "
            "the same rounds; the largest."
        )
    return table


def _memory(records: Sequence[Record], phase: str) -> Table:
    found = of(records, f"price {phase}", auto=True)
    lengths = lengths_of(found)
    lead = "With the backend that auto takes, beyond inputs and outputs (of a step: and gradients)."
    table = Table(f"Peak memory, MiB: {PHASES[phase]}", lead, ("scheme", *(f"{n:,}" for n in lengths)))
    form = partial(amount_cell, measured="peak_bytes")
    if found:  # plain attention needs the same in every group
        firsts = [next(record for record in found if record["length"] == length) for length in lengths]
        table.rows.append(("plain", *(table.cell(first, first["baseline"], form) for first in firsts)))
    for scheme in schemes(found):
        table.rows.append(
            (titled(scheme), *(table.cell(one(found, scheme, length), "auto", form) for length in lengths))
        )
    return table


def _regrets(records: Sequence[Record]) -> list[Table]:
    """The regret of all calls, of each part of them, and of the worst."""
    found = {n: regret(record) for n, record in enumerate(records) if record["kind"].startswith("regret ")}
    found = {n: max(1.0, value) for n, value in found.items() if value}
    lead = (
        "Time with auto's backend over that with the fastest one that can run the call, in the same rounds, with "
        "encodings bound before."
    )
    whole = Table("Regret of auto", lead, ("calls", "geometric mean", "largest", f"above {TOO_MUCH}", "of"))
    parts: dict[str, list[float]] = {}
    for n, value in found.items():
        record = records[n]
        _, phase, seen = record["kind"].split(" ", 2)
        for part in ("all", phase, seen, f"{record['length']:,} tokens", titled(record["scheme"])):
            parts.setdefault(part, []).append(value)
    lengths = {f"{n:,} tokens": n for n in lengths_of(records)}
    first = {"all": 0, **dict.fromkeys(PHASES, 1), "causal": 2, "both ways": 2}
    for part, values in sorted(parts.items(), key=lambda each: (first.get(each[0], 3), lengths.get(each[0], 1 << 62))):
        over = sum(value > TOO_MUCH for value in values)
        mean = f"{statistics.geometric_mean(values):.3f}"
        whole.rows.append((part, mean, f"{max(values):.2f}", str(over), str(len(values))))
    worst = Table("The largest", "", ("call", "auto takes", "ms", "fastest", "ms", "regret"))
    for n in sorted((n for n in found if found[n] > 1), key=lambda n: -found[n])[:WORST]:
        record, best = records[n], _fastest(records[n])
        call = f"{titled(record['scheme'])}, {record['kind'].removeprefix('regret ')}, {record['length']:,} tokens"
        took = record["auto"]
        cells = (took, amount_cell(record, took), best, amount_cell(record, best), f"{found[n]:.2f}")
        worst.rows.append((call, *cells))
    return [whole, worst]


def _mine(records: Sequence[Record]) -> Table:
    found = of(records, "mine")
    named, scheme = (found[0]["name"], found[0]["scheme"]) if found else ("", "")
    allowed = found[0]["allowed"] if found else 0
    lead = (
        "Before the clock starts, the output and in training all gradients are compared with posenc's in float64: off "
        f"by is the largest difference, over the largest magnitude there; {allowed:g} is allowed. Times over those of "
        f"plain causal attention and of posenc in the same rounds; the median, {SPREAD}."
    )
    header = ("phase", "tokens", "what", "off by", "ms", "over plain", "over posenc", "peak, MiB")
    table = Table(f"{named} beside posenc's {titled(scheme)}", lead, header)
    for record in found:
        takes = {"mine": named, "posenc": f"posenc ({record['auto']})"}
        for name in record["results"]:
            off = record["off"].get(name, {}).values()
            cells = [record["kind"].partition(" ")[2], f"{record['length']:,}", takes.get(name, name)]
            cells.append("" if not off else "∞" if None in off else f"{max(off):.1g}")
            cells.append(table.cell(record, name, amount_cell))
            if "left_out" in record["results"][name]:
                cells += ["", "", ""]
            else:
                peak = amount_cell(record, name, "peak_bytes")
                cells += [ratio_cell(record, name), over(record, name, "posenc"), peak]
            table.rows.append(cells)
    return table
