"""The tables of a benchmark, from its records: for the terminal, and as Markdown to paste elsewhere.

A cell that has no number is a dash, and a note below the table says why.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from posenc.bench.measure import ratios
from posenc.workbench.files import write_whole
from posenc.workbench.records import made_with

if TYPE_CHECKING:
    from rich.console import Console

Record: TypeAlias = Mapping[str, Any]

FILE, DATA = "bench.md", "bench.json"
PHASES = {"forward": "forward", "training": "a training step"}
BUSY = 0.1  # of the cores: what others take beyond it makes times doubtful
SIGN = "†"
SPREAD = "± half the interval that holds the true one in 9 of 10 cases"


@dataclass
class Table:
    """Rows of words under a title, with a line before them and notes after them."""

    title: str
    lead: str
    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def dash(self, reason: str) -> str:
        """The cell that stands for no number, with the number of the note that says why."""
        if reason not in self.notes:
            self.notes.append(reason)
        return f"– ({self.notes.index(reason) + 1})"

    def cell(self, record: Record | None, name: str, form: Callable[[Record, str], str]) -> str:
        """What a group measured of a competitor, or of the backend that ``"auto"`` took; or a dash, and why."""
        name = record["auto"] if record and name == "auto" else name
        result = record["results"].get(name) if record else None
        if record is None or result is None:
            return self.dash("not measured")
        return self.dash(result["left_out"]) if "left_out" in result else form(record, name)

    @property
    def lines(self) -> list[str]:
        """What stands below the table."""
        found = [f"({number}) {note}" for number, note in enumerate(self.notes, 1)]
        if any(cell.strip("*").endswith(SIGN) for row in self.rows for cell in row):
            found.append(f"{SIGN} timed while other processes kept over {BUSY:.0%} of the cores busy")
        return found


def tables(records: Sequence[Record]) -> list[Table]:
    found = [_environment(records)]
    for phase in PHASES:
        found += [_price(records, phase), _by_backend(records, phase)]
    for phase in PHASES:
        found += [_growth(records, phase, "seconds"), _growth(records, phase, "peak_bytes")]
    found += [_rope(records), *(_peers(records, scheme) for scheme in schemes(of(records, "peers")))]
    found += [_decode(records), _mine(records)]
    return [table for table in found if table.rows]


def busy(records: Sequence[Record]) -> str:
    """That something else was running, where it was: it comes before all tables, since it makes them doubtful."""
    marked = [record for record in records if _mark(record)]
    if not marked:
        return ""
    most = max(marked, key=lambda record: record["others"])
    return (
        f"Other processes kept up to {most['others']:.1f} of {most['machine']['cores']} cores busy. The times of "
        f"{len(marked)} of {len(records)} groups are marked {SIGN} and say little: measure again, into another folder."
    )


def _mark(record: Record) -> str:
    """What stands after a time of this group: the sign, if it is doubtful."""
    others = record["others"]
    return f" {SIGN}" if others is not None and others > BUSY * record["machine"]["cores"] else ""


def markdown(records: Sequence[Record], pictures: Iterable[Path] = ()) -> str:
    """All tables and pictures as one page."""
    parts = ["# What position costs\n"] + ([f"**{busy(records)}**\n"] if busy(records) else [])
    parts += map(as_markdown, tables(records))
    parts += [f"![{path.stem}]({path.name})\n" for path in pictures]
    return "\n".join(parts)


def as_markdown(table: Table) -> str:
    """One table, with its title, the line before it and its notes."""
    parts = [f"## {table.title}\n"]
    if table.lead:
        parts.append(table.lead + "\n")
    rows = [table.header, ["---"] * len(table.header), *table.rows]
    parts.append("".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows))
    if table.lines:
        parts.append("".join(f"{line}  \n" for line in table.lines))
    return "\n".join(parts)


def write(records: Sequence[Record], out: Path, pictures: Iterable[Path] = ()) -> Path:
    """Writes ``bench.md`` and, for programs, ``bench.json``, each whole or not at all. Gives the path of the first."""
    write_whole(out / DATA, (json.dumps(list(records), indent=1) + "\n").encode())
    write_whole(out / FILE, markdown(records, pictures).encode())
    return out / FILE


def show(records: Sequence[Record], console: "Console") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table as Printed

    if busy(records):
        console.print(f"[bold]{escape(busy(records))}[/]", highlight=False)
    for table in tables(records):
        console.print(f"[bold]{escape(table.title)}[/]", highlight=False)
        printed = Printed(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column, name in enumerate(table.header):
            printed.add_column(escape(name), no_wrap=column == 0)
        for row in table.rows:
            printed.add_row(*(escape(cell.replace("**", "")) for cell in row))
        console.print(printed)
        for line in filter(None, (table.lead, *table.lines)):
            console.print(escape(line.replace("**", "")), highlight=False)


# -- the tables -------------------------------------------------------------------------------------------------------


def _environment(records: Sequence[Record]) -> Table:
    def facts(record: Record) -> dict[str, object]:
        about = record["settings"]
        return {
            "tensors": f"1 × {about['heads']} × length × {about['head_dim']}, {about['dtype']}",
            "rotated tensors": " × ".join(map(str, about["rotated"])),
            "rounds": f"{about['rounds']} or more, until ratios are known to a tenth or {about['budget']:g} s are over",
            **record["machine"],
            **record["versions"],
        }

    rows = made_with(records, facts)
    told = [record["others"] for record in records if record["others"] is not None]
    if records:
        kept = f"kept {min(told):.1f} to {max(told):.1f} of {records[0]['machine']['cores']} cores busy" if told else ""
        rows.insert(-1, ("other processes", kept or "not known: this system does not tell"))
    return Table("Environment", "", ("what", "with"), [*rows])


def _price(records: Sequence[Record], phase: str) -> Table:
    found = with_auto(records, f"price {phase}")
    lengths = _lengths(found)
    lead = (
        "Time over that of plain causal scaled_dot_product_attention on the same tensors in the same rounds, with the "
        f"backend that auto takes; the median, {SPREAD}."
    )
    header = ("scheme", "auto takes", *(f"{n:,}" for n in lengths))
    table = Table(f"The price of position: {PHASES[phase]}", lead, header)
    if found:
        table.rows.append(("plain, ms", "", *_baseline(found, lengths)))
    for scheme in schemes(found):
        measured = [_one(found, scheme, length) for length in lengths]
        takes = " → ".join(dict.fromkeys(record["auto"] for record in measured if record))
        table.rows.append((scheme, takes, *(table.cell(record, "auto", _ratio) for record in measured)))
    return table


def _by_backend(records: Sequence[Record], phase: str) -> Table:
    found = of(records, f"price {phase}")
    lengths = _lengths(found)
    lead = "As above, for every backend. **Bold**: what auto takes."
    table = Table(f"By backend: {PHASES[phase]}", lead, ("scheme", "backend", *(f"{n:,}" for n in lengths)))
    several = any(len(record["results"]) > 2 for record in found)
    for scheme in schemes(found) if several else ():
        mine = [record for record in found if record["scheme"] == scheme]
        for backend in dict.fromkeys(n for record in mine for n in record["results"] if n != record["baseline"]):
            cells = []
            for length in lengths:
                record = _one(mine, scheme, length)
                cell = table.cell(record, backend, _ratio)
                cells.append(f"**{cell}**" if record and record.get("auto") == backend else cell)
            table.rows.append((scheme, backend, *cells))
    return table


def _growth(records: Sequence[Record], phase: str, measured: str) -> Table:
    found = with_auto(records, f"price {phase}") or of(records, f"growth {phase}")
    lengths = _lengths(found)
    seconds = measured == "seconds"
    title = f"Growth of {'time, ms' if seconds else 'peak memory, MiB'}: {PHASES[phase]}"
    lead = "With the backend that auto takes"
    lead += ", the median." if seconds else ", beyond inputs and outputs (of a step: and gradients)."
    table = Table(title, lead, ("scheme", *(f"{n:,}" for n in lengths)))
    form = partial(_amount, measured=measured)
    if found and seconds:
        table.rows.append(("plain", *_baseline(found, lengths)))
    elif found:  # the same in every group
        firsts = [next(record for record in found if record["length"] == length) for length in lengths]
        table.rows.append(("plain", *(table.cell(first, first["baseline"], form) for first in firsts)))
    for scheme in schemes(found):
        table.rows.append((scheme, *(table.cell(_one(found, scheme, length), "auto", form) for length in lengths)))
    return table


def _rope(records: Sequence[Record]) -> Table:
    found = of(records, "rope")
    lead = f"Rotating queries and keys, over the time of cloning both; the median, {SPREAD}. GB/s: read and written."
    table = Table("RoPE on queries and keys", lead, ("precision", "what", "ms", "over clone", "GB/s"))
    for record in found:
        for name, result in record["results"].items():
            if "left_out" in result:
                cells = (table.dash(result["left_out"]), "", "")
            else:
                rate = record["bytes"] / statistics.median(result["seconds"]) / 1e9
                cells = (_amount(record, name), _ratio(record, name), f"{rate:.1f}")
            table.rows.append((record["kind"].partition(" ")[2], name, *cells))
    return table


def _peers(records: Sequence[Record], scheme: str) -> Table:
    found = [record for record in of(records, "peers") if record["scheme"] == scheme]
    columns = [(phase, n) for phase in PHASES for n in _lengths(of(found, f"peers {phase}"))]
    lead = f"Over plain causal attention; the median, {SPREAD}. Each time a bias with the same numbers."
    table = Table(f"Other ways to {scheme}", lead, ("way", *(f"{phase}, {n:,}" for phase, n in columns)))
    groups = [_one(of(found, f"peers {phase}"), scheme, length) for phase, length in columns]
    for name in dict.fromkeys(name for record in found for name in record["results"]):
        table.rows.append((name, *(table.cell(group, name, _ratio) for group in groups)))
    return table


def _decode(records: Sequence[Record]) -> Table:
    found = of(records, "decode")
    cache = found[0]["length"] if found else 0
    lead = (
        f"Over the same attention without positions; the median, {SPREAD}. The new token's positions are bound, its "
        "query and key rotated; the keys of the cache are rotated already."
    )
    table = Table(f"One token against a cache of {cache:,}", lead, ("scheme", "auto takes", "plain, ms", "over plain"))
    for record in found:
        (plain,) = _baseline([record], [cache])
        table.rows.append((record["scheme"], record["auto"], plain, table.cell(record, "posenc", _ratio)))
    return table


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
    table = Table(f"{named} beside posenc's {scheme}", lead, header)
    for record in found:
        takes = {"mine": named, "posenc": f"posenc ({record['auto']})"}
        for name in record["results"]:
            off = record["off"].get(name, {}).values()
            cells = [record["kind"].partition(" ")[2], f"{record['length']:,}", takes.get(name, name)]
            cells.append("" if not off else "∞" if None in off else f"{max(off):.1g}")
            cells.append(table.cell(record, name, _amount))
            if "left_out" in record["results"][name]:
                cells += ["", "", ""]
            else:
                peak = _amount(record, name, "peak_bytes")
                cells += [_ratio(record, name), _over(record, name, "posenc"), peak]
            table.rows.append(cells)
    return table


# -- cells ------------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Three digits, or all before the point.

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


def _amount(record: Record, name: str, measured: str = "seconds") -> str:
    return number(amount(record, name, measured)) + (_mark(record) if measured == "seconds" else "")


def _ratio(record: Record, name: str) -> str:
    if name == record["baseline"]:
        return "1"
    return _times(record["results"][name]["ratio"], record)


def _times(spread: Sequence[float], record: Record) -> str:
    median, low, high = spread
    places = 2 if median < 10 else 1
    return f"{median:.{places}f} ± {(high - low) / 2:.{places}f}{_mark(record)}"


def _over(record: Record, name: str, other: str) -> str:
    """The ratio to another competitor; nothing where that was left out, and of itself and the baseline."""
    if name in (other, record["baseline"]) or "left_out" in record["results"][other]:
        return ""
    return _times(ratios(*(record["results"][each]["seconds"] for each in (name, other))), record)


def _baseline(records: Sequence[Record], lengths: Sequence[int]) -> list[str]:
    """Milliseconds of the baseline: the median of all groups of a length."""
    times = [[ms for r in records if r["length"] == n and (ms := amount(r, r["baseline"]))] for n in lengths]
    return [number(statistics.median(each)) if each else "–" for each in times]


def of(records: Sequence[Record], *kinds: str) -> list[Record]:
    """Records of these kinds, or of all kinds that begin with these words."""
    return [record for record in records if any(f"{record['kind']} ".startswith(f"{kind} ") for kind in kinds)]


def with_auto(records: Sequence[Record], *kinds: str) -> list[Record]:
    """Those that say what auto takes."""
    return [record for record in of(records, *kinds) if "auto" in record]


def _one(records: Sequence[Record], scheme: str, length: int) -> Record | None:
    return next((record for record in records if (record["scheme"], record["length"]) == (scheme, length)), None)


def _lengths(records: Sequence[Record]) -> list[int]:
    return sorted({record["length"] for record in records})


def schemes(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(record["scheme"] for record in records))
