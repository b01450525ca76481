"""Compares two benchmarks of one machine: ``posenc bench --compare``."""

from collections.abc import Sequence
from pathlib import Path

from posenc.tools.bench import tables
from posenc.tools.bench.cells import SPREAD, Record, Table, baseline_cells, lengths_of, of, one, ratio_cell
from posenc.tools.bench.results import check
from posenc.tools.kit import records

# The facts that identify a machine; the versions of Linux and torch may differ.
MACHINE = ("processor", "physical cores", "cores", "threads", "device")
# The settings that must be equal for calls to be comparable.
CALLS = ("dtype", "heads", "head_dim", "rotated", "cache")


def read(folder: Path) -> list[Record]:
    """The records of a folder. ValueError if there are none, or if they are not of a benchmark."""
    found = records.read(folder, check)
    if not found:
        raise ValueError(f"--compare must name folders with records of posenc bench, got {folder}, which has none")
    return [*found]


def environments(before: Sequence[Record], after: Sequence[Record]) -> Table:
    """The environments of both benchmarks, side by side."""
    told = [dict(tables.environment(each)) for each in (before, after)]
    rows = [(name, *(each.get(name, "") for each in told)) for name in told[0] | told[1]]
    groups = [{_place(record) for record in each} for each in (before, after)]
    alone = (f"{len(mine)}, {len(mine - its)} of them here alone" for mine, its in (groups, groups[::-1]))
    return Table("Environments", "", ("what", "before", "after"), [*rows, ("groups", *alone)])


def compare(before: Sequence[Record], after: Sequence[Record]) -> list[Table]:
    """A table for each kind of measurement that both have: the ratios to the baseline, and their change.

    The change is the ratio after, divided by the ratio before. Its interval has the smallest and the largest quotient
    of both intervals, so it contains 1 if they overlap: then the change is within noise.

    ValueError for different machines or calls, and for benchmarks without a common measurement.
    """
    _require_alike(before, after)
    kinds = dict.fromkeys(record["kind"] for record in before if record["kind"] != "limit")
    found = [table for kind in kinds if (table := _table(of(before, kind), of(after, kind))).rows]
    if not found:
        raise ValueError("--compare must name two records with a measurement in common, got none that is in both")
    return found


def _require_alike(before: Sequence[Record], after: Sequence[Record]) -> None:
    """ValueError for different machines or calls. The first records suffice, since a folder has one benchmark."""
    pairs = [(part, name) for part, names in (("machine", MACHINE), ("settings", CALLS)) for name in names]
    made = [(name, before[0][part].get(name), after[0][part].get(name)) for part, name in pairs]
    if differ := [f"{name} {old!r} before and {new!r} after" for name, old, new in made if old != new]:
        raise ValueError(f"--compare must name two records of one machine and the same calls, got {', '.join(differ)}")


def _place(record: Record) -> tuple[str, str, int]:
    return record["kind"], record["scheme"], record["length"]


def _table(before: Sequence[Record], after: Sequence[Record]) -> Table:
    """The table of one kind of measurement."""
    baseline = before[0]["baseline"]
    lead = f"Time over that of {baseline} in the same rounds; the median, {SPREAD}. Change: after over before."
    table = Table(before[0]["kind"].capitalize(), lead, ("scheme", "what", "length", "before", "after", "change", ""))
    both = [(old, new) for old in before if (new := one(after, old["scheme"], old["length"]))]
    for old, new in both:
        for name in dict.fromkeys((*_names(old), *_names(new))):
            spreads = [_ratio(each, name) for each in (old, new)]
            if any(spreads):
                takes = " → ".join(dict.fromkeys((old["auto"], new["auto"]))) if name == "auto" else name
                cells = [table.cell(each, name, ratio_cell) for each in (old, new)]
                table.rows.append((old["scheme"], takes, f"{old['length']:,}", *cells, *_change(*spreads)))
    for length in lengths_of([old for old, _ in both]) if table.rows else ():
        cells = [*baseline_cells(before, [length]), *baseline_cells(after, [length])]
        table.rows.append(("", f"{baseline}, ms", f"{length:,}", *cells, "", ""))
    return table


def _names(record: Record) -> list[str]:
    """The names of competitors. The backend of auto is called auto, since another version may choose another one."""
    return ["auto" if n == record.get("auto") else n for n in record["results"] if n != record["baseline"]]


def _ratio(record: Record, name: str) -> Sequence[float]:
    """The median ratio and its interval; empty without one."""
    result = record["results"].get(record["auto"] if name == "auto" else name, {})
    return [*result.get("ratio", ())]


def _change(before: Sequence[float], after: Sequence[float]) -> tuple[str, str]:
    """The change in numbers and in a word; empty if a ratio is missing."""
    if not before or not after:
        return "", ""
    median, low, high = after[0] / before[0], after[1] / before[2], after[2] / before[1]
    word = "faster" if high < 1 else "slower" if low > 1 else "within noise"
    return f"{median:.2f} ({low:.2f} to {high:.2f})", word
