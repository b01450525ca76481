"""The tables of what is timed beside posenc, from its records."""

import statistics
from collections.abc import Iterable, Sequence

from posenc_lab.bench.tables import (
    PHASES,
    SPREAD,
    Record,
    Table,
    amount,
    amount_cell,
    baseline_cells,
    lengths_of,
    mark,
    number,
    of,
    one,
    ratio_cell,
    schemes,
)
from posenc_lab.kit.titles import titled
from research.benchmarks.limit import MEETING, PAIR, VALUE

SHARE_OF_PEAK = (
    "Share of peak, at the longest length: multiply-adds over the time, over {} × 10⁹ a second, the most that "
    "PyTorch's products of matrices made in this run on as many threads. Multiply-adds are head_dim times {} for each "
    "pair of tokens that is computed, and, for each query and distance, times {} for a vector in scores and {} for one "
    "in the output. For plain attention, and where the kernel runs."
)


def tables(records: Sequence[Record]) -> list[Table]:
    found = [_rope(records), *(_rotated(records, phase) for phase in PHASES)]
    found += [_disturbed(records, phase) for phase in PHASES]
    found += [*(_peers(records, scheme) for scheme in schemes(of(records, "peers"))), _decode(records)]
    return [table for table in found if table.rows]


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
    found = [*of(records, f"quiet {phase}"), *of(records, f"busy {phase}")]
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
    table = Table(f"Other ways to {titled(scheme)}", lead, ("way", *(f"{phase}, {n:,}" for phase, n in columns)))
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
        table.rows.append((titled(record["scheme"]), record["auto"], plain, table.cell(record, "posenc", ratio_cell)))
    return table
