"""The page of the results, in Markdown, made of their lines alone.

python -m posenc.tools.bench.gpu.page PAGE

puts the summaries of results into another page: after each line ``<!-- gpu: RESULTS.jsonl -->``, of a path beside the
page, up to ``<!-- end -->``.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc.tools.bench.gpu.journal import Record, latest
from posenc.tools.bench.gpu.place import DECODING, ROTATION
from posenc.tools.kit.files import parse, write_whole
from posenc.tools.kit.report import Table, as_markdown

DASH = "–"
OURS = ("graph", "events")  # the device's own time, and what stands for it where a call cannot be captured
BASES = ("flash", "cuDNN", "plain")  # what all else is compared with
# Of each row of the summary, the ways of attention and of decoding.
MAIN = {
    "PyTorch's choice": ("plain", ""),
    "nothing added, our kernel": ("nothing added, triton", ""),
    "ALiBi": ("alibi, triton", "alibi, auto"),
    "ALiBi by flex": ("alibi, flex", ""),
    "ALiBi, bias made before": ("alibi, sdpa, bias made before", "alibi, sdpa, bias made before"),
    "learned T5": ("learned t5, triton", "t5, auto"),
    "T5, bias made before": ("learned t5, sdpa, bias made before", "learned t5, sdpa, bias made before"),
    "Shaw": ("shaw, triton", "shaw, auto"),
    "Transformer-XL": ("transformer_xl, triton", ""),
    "RoPE": ("rope, auto", ""),
    "FIRE": ("", "fire, auto"),
}
LEADS = {
    "graph": "In replayed CUDA graphs: time over that of flash / cuDNN; in decoding, over PyTorch's attention alone.",
    "events": "Called one by one, where the device may wait for the host: the same ratios.",
}
DRY = "A dry run: on the CPU, kernels interpreted, at small sizes. No number here says anything of a GPU.\n\n"
NOT_YET = "There are no results yet."
PLACE = re.compile(r"(<!-- gpu: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Results:
    """The lines by what they say; of an item that was tried again, the last."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.head = records[0]
        self.items = list(latest(records).values())
        self.ended = {record["step"]: record for record in records if "item" not in record and "step" in record}
        self.times = {record["item"]: record for record in self.items if record["step"] == "times"}
        self.about: Mapping[str, str] = next((record["about"] for record in self.items if "about" in record), {})

    def medians(self, ways: Mapping[str, str], length: int, phase: str, clock: str = "") -> dict[str, float]:
        """The times of these ways, by name, as far as they were measured: by a clock of `OURS`, if it is given, else
        all of replayed graphs, or all between events."""
        all_of = {name: self.times.get(f"{length} {phase} {way}", {}) for name, way in ways.items()}
        known = {name: record for name, record in all_of.items() if (clock or "events") in record}
        clock = clock or ("graph" if all("graph" in record for record in known.values()) else "events")
        return {name: record[clock][0] for name, record in known.items()}

    def ratio(self, of: str, over: str, length: int, phase: str, clock: str = "") -> str:
        """The time of one way over that of another; a dash if one of them was not measured."""
        found = self.medians({"of": of, "over": over}, length, phase, clock)
        return f"{found['of'] / found['over']:.2f}" if len(found) == 2 and found["over"] else DASH

    @property
    def cells(self) -> list[tuple[int, str]]:
        """Lengths and phases that were timed, in order."""
        found = dict.fromkeys(tuple(name.split(" ", 2)[:2]) for name in self.times)
        return [(int(length), phase) for length, phase in found]

    def choices(self) -> Iterator[tuple[Mapping[str, Any], int, str, str, str]]:
        """Each choice of ``auto`` where it was timed: the rule, length, phase, what it takes now, and what it
        should: the same, another backend, or "not measured"."""
        for rule in self.head["rules"]:
            for length, phase in self.cells:
                if phase not in (DECODING, ROTATION):
                    now = self.times.get(f"{length} {phase} {rule['now']}", {}).get("auto", DASH)
                    known = self.medians(rule["ways"], length, phase)
                    then = "not measured"
                    if now in known and len(known) > 1:
                        best = min(known, key=lambda backend: known[backend])
                        then = best if known[best] < (1 - rule["margin"]) * known[now] else now
                    yield rule, length, phase, now, then


def page(records: Sequence[Record]) -> str:
    """All tables that have rows, after a summary."""
    results = Results(records)
    tables = [
        _steps(results),
        _environment(results),
        _predictions(results),
        _choices(results),
        *_checks(results),
        *_times(results),
        _host(results),
        _profiles(results),
        _kernels(results),
    ]
    title = f"# posenc on a GPU: {results.head['plan']}\n\n{DRY if results.head['is_dry'] else ''}"
    sources = dict.fromkeys(record["sources"] for record in records if "sources" in record)
    if len(sources) > 1:
        title += f"The sources were changed between runs: these are results of {len(sources)} versions of them.\n\n"
    return title + f"{summary(records)}\n" + "\n".join(as_markdown(table) for table in tables if table.rows)


def summary(records: Sequence[Record]) -> str:
    """On what it ran, what passed, what `auto` should take, and the main ratios."""
    results = Results(records)
    of_checks = {record["step"] for record in results.items if "passed" in record}
    checks = [record for record in results.items if record["step"] in of_checks and "left_out" not in record]
    failed = [record["item"] for record in checks if _outcome(record) == "failed"]
    choices = list(results.choices())
    decided = [choice for choice in choices if choice[-1] != "not measured"]
    changed = [f"{rule['name']}, {n:,}, {at}: {then}, not {now}" for rule, n, at, now, then in decided if then != now]
    about = (f"{name} {results.about[name]}" for name in ("device", "torch", "triton") if name in results.about)
    lines = [
        ", ".join(filter(None, (results.head.get("at", "").partition(" ")[0], *about))),
        f"checks: {len(checks) - len(failed)} of {len(checks)} passed{'; failed: ' * bool(failed)}{'; '.join(failed)}",
        f"choices of auto: {len(decided) - len(changed)} of {len(decided)} stay{'; '.join(['', *changed])}"
        f"; {len(choices) - len(decided)} not measured",
    ]
    return "\n".join([*(f"- {line}" for line in lines), "", *(_ratios(results, clock) for clock in OURS)])


def _ratios(results: Results, clock: str) -> str:
    """A table of the summary: the main ratios by a clock."""
    cells = [c for c in results.cells if any(_main(results, ways, *c, clock) != DASH for ways in MAIN.values())]
    table = Table("", LEADS[clock], ("what", *(f"{phase} {length:,}" for length, phase in cells)))
    rows = ((name, *(_main(results, ways, *cell, clock) for cell in cells)) for name, ways in MAIN.items())
    table.rows += [row for row in rows if {*row[1:]} - {DASH}]
    return as_markdown(table).partition("\n\n")[2] if table.rows else ""


def _main(results: Results, ways: tuple[str, str], length: int, phase: str, clock: str) -> str:
    """A cell of the summary."""
    way, bases = (ways[1], BASES[2:]) if phase == DECODING else (ways[0], BASES[:2])
    ratios = [results.ratio(way, base, length, phase, clock) for base in bases]
    return DASH if {*ratios} == {DASH} else " / ".join(ratios)


def fill(path: Path) -> str:
    """The text of a page with the summaries that it names."""

    def found(match: re.Match[str]) -> str:
        results = path.parent / match[2]
        if not results.exists():
            return f"{match[1]}\n{NOT_YET}\n\n{match[3]}"
        return f"{match[1]}\n{summary([parse(line) for line in results.read_text().splitlines()])}\n{match[3]}"

    return PLACE.sub(found, path.read_text())


def verdict(found: str, low: float, high: float) -> str:
    """How a ratio stands to what was predicted."""
    if found == DASH:
        return "not measured"
    return "below" if float(found) < low else "above" if float(found) > high else "as predicted"


def _outcome(record: Record) -> str:
    if "failed" in record or record.get("passed") is False:
        return "failed"
    return "left out" if "left_out" in record else "done"


def _steps(results: Results) -> Table:
    table = Table("What ran", "", ("step", "items", "done", "left out", "failed", "seconds", "ended"))
    for name in dict.fromkeys(record["step"] for record in (*results.items, *results.ended.values())):
        of_step = [record for record in results.items if record["step"] == name]
        counts = Counter(map(_outcome, of_step))
        end = results.ended.get(name, {})
        numbers = (str(counts[each]) for each in ("done", "left out", "failed"))
        seconds = f"{sum(record['seconds'] for record in of_step if 'seconds' in record):.0f}"
        table.rows.append((name, str(len(of_step)), *numbers, seconds, end.get("outcome", "not yet")))
    return table


def _environment(results: Results) -> Table:
    table = Table("Environment", "", ("what", "with"), [*results.about.items()])
    for record in results.items:
        clock = next((clock for clock in OURS if clock in record), None)
        if record["step"] == "first" and clock is not None:
            ms = record[clock][0]
            if "bytes" in record:
                table.rows.append((record["item"], f"{record['bytes'] / ms / 1e6:,.0f} GB/s ({clock})"))
            if "operations" in record:
                table.rows.append((record["item"], f"{record['operations'] / ms / 1e9:,.0f} TFLOP/s ({clock})"))
    return table


def _predictions(results: Results) -> Table:
    table = Table("What was predicted, and what came", "Times of the same text and phase, one over the other.",
                  ("what", "over", "length", "phase", "predicted", "came", "verdict", "why it was"))  # fmt: skip
    for told in results.head["predictions"]:
        came = results.ratio(told["of"], told["over"], told["length"], told["phase"])
        range_ = f"{told['low']:.2f} to {told['high']:.2f}"
        said = verdict(came, told["low"], told["high"])
        table.rows.append(
            (told["of"], told["over"], f"{told['length']:,}", told["phase"], range_, came, said, told["why"])
        )
    return table


def _choices(results: Results) -> Table:
    lead = "The fastest in the device's own time; what is taken stays unless another is faster by more than the margin."
    table = Table("Choices of auto", lead, ("choice", "margin", "length", "phase", "takes", "should take", "so"))
    for rule, length, phase, now, then in results.choices():
        so = then if then == "not measured" else "stays" if then == now else "changes"
        table.rows.append((rule["name"], f"{rule['margin']:.0%}", f"{length:,}", phase, now, then, so))
    return table


def _checks(results: Results) -> Iterator[Table]:
    """What failed first, then the errors of what passed."""
    failed = Table("What failed", "", ("step", "item", "told"))
    for record in results.items:
        if _outcome(record) == "failed":
            told = record.get("failed") or record.get("told") or _too_far(record)
            failed.rows.append((record["step"], record["item"], " ".join(str(told).split())[-400:]))
    yield failed
    table = Table("The largest error for what it may be", "", ("step", "item", "result", "error", "allowed"))
    for record in results.items:
        if "worst" in record:
            error, allowed = record["errors"][record["worst"]]
            table.rows.append((record["step"], record["item"], record["worst"], error, allowed))
    yield table
    left = Table("What was left out", "", ("step", "item", "why"))
    for record in results.items:
        if "left_out" in record:
            left.rows.append((record["step"], record["item"], record["left_out"]))
    yield left


def _too_far(record: Record) -> str:
    if "errors" in record:
        far = {n: pair for n, pair in record["errors"].items() if not float(pair[0]) <= float(pair[1])}
        return "; ".join(f"{name} {error}, allowed {allowed}" for name, (error, allowed) in far.items())
    return f"not the same: {record.get('differ')}"


def _timed(results: Results, length: int, phase: str) -> Iterator[tuple[str, Record]]:
    for name, record in results.times.items():
        if name.startswith(f"{length} {phase} ") and "events" in record:
            yield name.split(" ", 2)[2], record


def _times(results: Results) -> Iterator[Table]:
    for length, phase in results.cells:
        bases = [base for base in BASES if "events" in results.times.get(f"{length} {phase} {base}", {})]
        header = ("what", *OURS, *(f"over {base}" for base in bases))
        table = Table(f"Times: {phase}, {length:,}", "Milliseconds: of a replayed graph, and between events.", header)
        for way, record in _timed(results, length, phase):
            ratios = (results.ratio(way, base, length, phase) for base in bases)
            table.rows.append((way, *(_ms(record.get(clock)) for clock in OURS), *ratios))
        yield table


def _host(results: Results) -> Table:
    lead = "Milliseconds until a call returns, what it adds to the first of its kind, and the device's time of it."
    table = Table("The host", lead, ("what", "length", "phase", "host", "added", "device"))
    for length, phase in results.cells:
        first = ""
        for way, record in _timed(results, length, phase):
            first = first or way
            base = results.times[f"{length} {phase} {first}"]
            numbers = (_ms(record["host"]), f"{record['host'][0] - base['host'][0]:.3f}")
            table.rows.append((way, f"{length:,}", phase, *numbers, f"{record.get('graph', record['events'])[0]:.3f}"))
    return table


def _ms(spread: Sequence[float] | None) -> str:
    if spread is None:
        return DASH
    median, low, high = spread
    return f"{median:.3f} ± {(high - low) / 2:.3f}"


def _profiles(results: Results) -> Table:
    """Profiles and variants."""
    found = [record for record in results.items if "launches" in record]
    ours = sorted({name for record in found for name in record["kernels"] if re.fullmatch("[a-z_]+", name)})
    lead = "Milliseconds of a call on the device, of each kernel in it, and of the host's operations."
    header = ("what", "launches", "device", *ours, "other kernels", "operations", "host")
    table = Table("Launches and profiles", lead, header)
    for record in found:
        kernels = {name: ms for name, (_, ms) in record["kernels"].items() if name in ours}
        cells = (f"{kernels[name]:.3f}" if name in kernels else DASH for name in ours)
        numbers = (f"{record['launches']:g}", f"{record['on_device']:.3f}")
        others = (
            f"{record['on_device'] - sum(kernels.values()):.3f}",
            f"{record['operations']:g}",
            f"{record['host']:.3f}",
        )
        table.rows.append((record["item"], *numbers, *cells, *others))
    return table


def _kernels(results: Results) -> Table:
    """Each kernel once, with the first call that compiled it and how many others did."""
    names = ("registers", "spills", "shared", "warps", "stages")
    users: dict[tuple[str, ...], list[str]] = {}
    for record in results.items:
        for kernel, found in record.get("compiled", {}).items():
            for each in found:
                users.setdefault((kernel, *(str(each[name]) for name in names)), []).append(record["item"])
    table = Table("Kernels as compiled", "", ("kernel", *names, "for", "and others"))
    table.rows += [(*key, items[0], str(len({*items}) - 1)) for key, items in sorted(users.items())]
    return table


if __name__ == "__main__":
    for word in sys.argv[1:]:
        write_whole(Path(word), fill(Path(word)).encode())
