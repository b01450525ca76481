"""Makes the tables of a benchmark from its records, for the terminal and for reports.

A cell without a number is a dash, with the reason in a note below the table.
"""

import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from posenc.tools.bench.cells import (
    PHASES,
    SIGN,
    SPREAD,
    Record,
    Table,
    amount,
    amount_cell,
    baseline_cells,
    lengths_of,
    limit_of,
    mark,
    number,
    of,
    one,
    over,
    ratio_cell,
    schemes,
    share_cell,
    with_auto,
)
from posenc.tools.bench.limit import MEETING, PAIR, VALUE
from posenc.tools.kit.records import made_with
from posenc.tools.kit.report import Cell

if TYPE_CHECKING:
    from rich.console import Console

SHARE_OF_PEAK = (
    "Share of peak, at the longest length: multiply-adds over the time, over {} × 10⁹ a second, the most that "
    "PyTorch's products of matrices made in this run on as many threads. Multiply-adds are head_dim times {} for each "
    "pair of tokens that is computed, and, for each query and distance, times {} for a vector in scores and {} for one "
    "in the output. For plain attention, and where the kernel runs."
)


def tables(records: Sequence[Record]) -> list[Table]:
    found = [Table("Environment", "", ("what", "with"), [*environment(records)])]
    for phase in PHASES:
        found += [_price(records, phase), _by_backend(records, phase)]
    for phase in PHASES:
        found += [_growth(records, phase, "seconds"), _growth(records, phase, "peak_bytes")]
    found += [_rope(records), *(_rotated(records, phase) for phase in PHASES)]
    found += [_disturbed(records, phase) for phase in PHASES]
    found += [*(_peers(records, scheme) for scheme in schemes(of(records, "peers"))), _decode(records), _mine(records)]
    return [table for table in found if table.rows]


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


def printed(tables: Iterable[Table], console: "Console") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table as Printed

    for table in tables:
        console.print(f"[bold]{escape(table.title)}[/]", highlight=False)
        shown = Printed(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for index, column in enumerate(table.columns):
            shown.add_column(escape(column.text), no_wrap=index == 0)
        for row in table.cells:
            shown.add_row(*(escape(cell.text) for cell in row))
        console.print(shown)
        for line in filter(None, (table.lead, *table.lines)):
            console.print(escape(line), highlight=False)


# -- the tables -------------------------------------------------------------------------------------------------------


def environment(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The facts that the records were made with."""

    def facts(record: Record) -> dict[str, object]:
        about = record["settings"]
        return {
            "tensors": f"1 × {about['heads']} × length × {about['head_dim']}, {about['dtype']}",
            "rotated tensors": " × ".join(map(str, about["rotated"])),
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
    if limit := limit_of(records):
        rows.insert(-1, ("the peak", f"{number(limit * 1e-9)} × 10⁹ multiply-adds a second"))
    return rows


def _with_share(
    table: Table, records: Sequence[Record], phase: str, rows: Iterable[tuple[Record | None, str]]
) -> Table:
    """The table with one more column, the share of the peak that each row's competitor reaches; unchanged if the peak
    was not measured."""
    limit = limit_of(records)
    found = [share_cell(record, name, limit) for record, name in rows] if limit else []
    if not any(found):
        return table
    table.header = (*table.header, "share of peak")
    table.rows = [(*row, cell) for row, cell in zip(table.rows, found, strict=True)]
    counts = (each[phase == "training"] for each in (PAIR, MEETING, VALUE))
    table.foot = SHARE_OF_PEAK.format(number(limit * 1e-9), *counts)
    return table


def _price(records: Sequence[Record], phase: str) -> Table:
    found = with_auto(records, f"price {phase}")
    lengths = lengths_of(found)
    lead = (
        "Time over that of plain causal scaled_dot_product_attention on the same tensors in the same rounds, with the "
        f"backend that auto takes; the median, {SPREAD}."
    )
    header = ("scheme", "auto takes", *(f"{n:,}" for n in lengths))
    table = Table(f"The price of position: {PHASES[phase]}", lead, header)
    shares: list[tuple[Record | None, str]] = []
    if found:
        table.rows.append(("plain, ms", "", *baseline_cells(found, lengths)))
        shares.append((next(record for record in found if record["length"] == lengths[-1]), found[0]["baseline"]))
    for scheme in schemes(found):
        measured = [one(found, scheme, length) for length in lengths]
        takes = " → ".join(dict.fromkeys(record["auto"] for record in measured if record))
        table.rows.append((scheme, takes, *(table.cell(record, "auto", ratio_cell) for record in measured)))
        shares.append((measured[-1], measured[-1]["auto"] if measured[-1] else ""))
    return _with_share(table, records, phase, shares)


def _by_backend(records: Sequence[Record], phase: str) -> Table:
    found = of(records, f"price {phase}")
    lengths = lengths_of(found)
    lead = "As above, for every backend. Bold: what auto takes."
    table = Table(f"By backend: {PHASES[phase]}", lead, ("scheme", "backend", *(f"{n:,}" for n in lengths)))
    several = any(len(record["results"]) > 2 for record in found)
    for scheme in schemes(found) if several else ():
        mine = [record for record in found if record["scheme"] == scheme]
        for backend in dict.fromkeys(n for record in mine for n in record["results"] if n != record["baseline"]):
            cells: list[str | Cell] = []
            for length in lengths:
                record = one(mine, scheme, length)
                cell = table.cell(record, backend, ratio_cell)
                cells.append(Cell(cell, mark="best") if record and record.get("auto") == backend else cell)
            table.rows.append((scheme, backend, *cells))
    return table


def _growth(records: Sequence[Record], phase: str, measured: str) -> Table:
    found = with_auto(records, f"price {phase}") or of(records, f"growth {phase}")
    lengths = lengths_of(found)
    seconds = measured == "seconds"
    title = f"Growth of {'time, ms' if seconds else 'peak memory, MiB'}: {PHASES[phase]}"
    lead = "With the backend that auto takes"
    lead += ", the median." if seconds else ", beyond inputs and outputs (of a step: and gradients)."
    table = Table(title, lead, ("scheme", *(f"{n:,}" for n in lengths)))
    form = partial(amount_cell, measured=measured)
    if found and seconds:
        table.rows.append(("plain", *baseline_cells(found, lengths)))
    elif found:  # plain attention needs the same in every group
        firsts = [next(record for record in found if record["length"] == length) for length in lengths]
        table.rows.append(("plain", *(table.cell(first, first["baseline"], form) for first in firsts)))
    for scheme in schemes(found):
        table.rows.append((scheme, *(table.cell(one(found, scheme, length), "auto", form) for length in lengths)))
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
                cells = (amount_cell(record, name), ratio_cell(record, name), f"{rate:.1f}")
            table.rows.append((record["kind"].partition(" ")[2], name, *cells))
    return table


def _rotated(records: Sequence[Record], phase: str) -> Table:
    found = of(records, f"rotated {phase}")
    lengths = lengths_of(found)
    lead = (
        f"Time over that of plain causal attention in the same rounds; the median, {SPREAD}. Positions are bound once, "
        "before the rounds, as a model binds them for all its layers, where nothing else is said."
    )
    header = ("what", "takes", *(f"{n:,}" for n in lengths))
    table = Table(f"RoPE in attention: {PHASES[phase]}", lead, header)
    if not found:
        return table
    groups = [one(found, "rope", length) for length in lengths]
    table.rows.append(("plain, ms", "", *baseline_cells(found, lengths)))
    for name in _ways(found):
        table.rows.append((name, _takes(found, name), *(table.cell(group, name, ratio_cell) for group in groups)))
    return _with_share(table, records, phase, [(groups[-1], name) for name in (found[0]["baseline"], *_ways(found))])


def _disturbed(records: Sequence[Record], phase: str) -> Table:
    found = of(records, f"quiet {phase}", f"busy {phase}")
    lengths = lengths_of(found)
    lead = (
        "Time over that of plain causal attention in the same rounds, with the machine to itself (quiet) and beside a "
        f"process for each core that keeps it busy; the median, {SPREAD}. Costs: of plain attention the busy time over "
        "the quiet one, of the others how many times that."
    )
    columns = (f"{n:,}, {what}" for n in lengths for what in ("quiet", "busy", "costs"))
    table = Table(f"Busy neighbours: {PHASES[phase]}", lead, ("what", "takes", *columns))
    pairs = [tuple(one(of(found, kind), "several", n) for kind in ("quiet", "busy")) for n in lengths]
    if not found:
        return table
    for name in (found[0]["baseline"], *_ways(found)):
        is_plain = name == found[0]["baseline"]
        form = amount_cell if is_plain else ratio_cell
        cells: list[str] = []
        for pair in pairs:
            cells += [table.cell(group, name, form) for group in pair]
            quiet, busy = (_figure(group, name) for group in pair)
            cells.append(f"{busy / quiet:.2f}" if quiet and busy else "")
        table.rows.append(("plain, ms" if is_plain else name, _takes(found, name), *cells))
    return table


def _figure(record: Record | None, name: str) -> float:
    """The milliseconds of the baseline, or the ratio of another competitor to it; 0 without a time."""
    if record is None or "seconds" not in record["results"].get(name, {}):
        return 0.0
    return amount(record, name) if name == record["baseline"] else float(record["results"][name]["ratio"][0])


def _ways(records: Sequence[Record]) -> list[str]:
    """The names of all competitors but the baseline."""
    return list(dict.fromkeys(name for r in records for name in r["results"] if name != r["baseline"]))


def _takes(records: Sequence[Record], name: str) -> str:
    """The backends that a competitor used, by increasing length."""
    ordered = sorted(records, key=lambda record: int(record["length"]))
    return " → ".join(dict.fromkeys(r["takes"][name] for r in ordered if name in r["takes"]))


def _peers(records: Sequence[Record], scheme: str) -> Table:
    found = [record for record in of(records, "peers") if record["scheme"] == scheme]
    columns = [(phase, n) for phase in PHASES for n in lengths_of(of(found, f"peers {phase}"))]
    lead = f"Over plain causal attention; the median, {SPREAD}. Each time a bias with the same numbers."
    table = Table(f"Other ways to {scheme}", lead, ("way", *(f"{phase}, {n:,}" for phase, n in columns)))
    groups = [one(of(found, f"peers {phase}"), scheme, length) for phase, length in columns]
    for name in dict.fromkeys(name for record in found for name in record["results"]):
        table.rows.append((name, *(table.cell(group, name, ratio_cell) for group in groups)))
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
        (plain,) = baseline_cells([record], [cache])
        table.rows.append((record["scheme"], record["auto"], plain, table.cell(record, "posenc", ratio_cell)))
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
            cells.append(table.cell(record, name, amount_cell))
            if "left_out" in record["results"][name]:
                cells += ["", "", ""]
            else:
                peak = amount_cell(record, name, "peak_bytes")
                cells += [ratio_cell(record, name), over(record, name, "posenc"), peak]
            table.rows.append(cells)
    return table
