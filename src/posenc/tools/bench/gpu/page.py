"""The page of the results, in Markdown, made of their lines alone."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posenc.tools.bench.gpu.journal import Record
from posenc.tools.kit.report import Table, as_markdown

DASH = "–"
OURS = ("graph", "events")  # the device's own time, and what stands for it where a call cannot be captured


class Results:
    """The lines by what they say."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.head = records[0]
        self.items = [record for record in records if "item" in record]
        self.ended = {record["step"]: record for record in records if "item" not in record and "step" in record}
        self.times = {record["item"]: record for record in self.items if record["step"] in ("times", "variants")}

    def medians(self, ways: Mapping[str, str], length: int, phase: str) -> dict[str, float]:
        """The times of these ways, by name, as far as they were measured: all of replayed graphs, or all between
        events."""
        all_of = {name: self.times.get(f"{length} {phase} {way}", {}) for name, way in ways.items()}
        known = {name: record for name, record in all_of.items() if "events" in record}
        clock = "graph" if all("graph" in record for record in known.values()) else "events"
        return {name: record[clock][0] for name, record in known.items()}

    def ratio(self, of: str, over: str, length: int, phase: str) -> float | None:
        """The time of one way over that of another; None if one of them was not measured."""
        found = self.medians({"of": of, "over": over}, length, phase)
        return found["of"] / found["over"] if len(found) == 2 and found["over"] else None

    @property
    def cells(self) -> list[tuple[int, str]]:
        """Lengths and phases that were timed, in order."""
        found = dict.fromkeys(tuple(name.split(" ", 2)[:2]) for name in self.times)
        return [(int(length), phase) for length, phase in found]


def page(records: Sequence[Record]) -> str:
    """All tables that have rows."""
    results = Results(records)
    tables = [
        _steps(results),
        _environment(results),
        _predictions(results),
        _choices(results),
        _settings(results),
        *_checks(results),
        *_times(results),
        _kernels(results),
        _profiles(results),
    ]
    title = f"# posenc on a GPU: {results.head['plan']}\n\n"
    if results.head["is_dry"]:
        title += (
            "A dry run: on the CPU, kernels interpreted, at small sizes. No number here says anything of a GPU.\n\n"
        )
    sources = dict.fromkeys(record["sources"] for record in records if "sources" in record)
    if len(sources) > 1:
        title += f"The sources were changed between runs: these are results of {len(sources)} versions of them.\n\n"
    return title + "\n".join(as_markdown(table) for table in tables if table.rows)


def verdict(found: float | None, low: float, high: float) -> str:
    """How a ratio stands to what was predicted."""
    if found is None:
        return "not measured"
    return "below" if found < low else "above" if found > high else "as predicted"


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
    about: Mapping[str, str] = next((record["about"] for record in results.items if "about" in record), {})
    table = Table("Environment", "", ("what", "with"), [*about.items()])
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
    lead = "Times of the same text and phase, one over the other. Predicted before anything was measured."
    table = Table("What was predicted, and what came", lead,
                  ("what", "over", "length", "phase", "predicted", "came", "verdict", "why it was"))  # fmt: skip
    for told in results.head["predictions"]:
        found = results.ratio(told["of"], told["over"], told["length"], told["phase"])
        range_ = f"{told['low']:.2f} to {told['high']:.2f}"
        came = DASH if found is None else f"{found:.2f}"
        said = verdict(found, told["low"], told["high"])
        table.rows.append(
            (told["of"], told["over"], f"{told['length']:,}", told["phase"], range_, came, said, told["why"])
        )
    return table


def choice(results: Results, rule: Mapping[str, Any], length: int, phase: str) -> tuple[str, str]:
    """What ``auto`` takes now, and what it should: the same, another backend, or "not measured"."""
    now = results.times.get(f"{length} {phase} {rule['now']}", {}).get("auto", DASH)
    known = results.medians(rule["ways"], length, phase)
    if now not in known or len(known) < 2:
        return now, "not measured"
    best = min(known, key=lambda backend: known[backend])
    return now, best if known[best] < (1 - rule["margin"]) * known[now] else now


def _choices(results: Results) -> Table:
    lead = "The fastest in the device's own time; what is taken stays unless another is faster by more than the margin."
    table = Table("Choices of auto", lead, ("choice", "margin", "length", "phase", "takes", "should take", "so"))
    for rule in results.head["rules"]:
        for length, phase in results.cells:
            if phase in rule["phases"]:
                now, then = choice(results, rule, length, phase)
                so = then if then == "not measured" else "stays" if then == now else "changes"
                table.rows.append((rule["name"], f"{rule['margin']:.0%}", f"{length:,}", phase, now, then, so))
    return table


def _settings(results: Results) -> Table:
    table = Table("Settings", "", ("setting", "over", "length", "phase", "ratio", "so"))
    for told in results.head["settings"]:
        for length, phase in results.cells:
            if phase in told["phases"]:
                found = results.ratio(told["other"], told["taken"], length, phase)
                so = "not measured" if found is None else told["then"] if found < 1 - told["margin"] else "stays"
                came = DASH if found is None else f"{found:.2f}"
                table.rows.append((f"{told['name']}: {told['other']}", told["taken"], f"{length:,}", phase, came, so))
    return table


def _checks(results: Results) -> Iterator[Table]:
    """What failed first, then the errors of what passed."""
    failed = Table("What failed", "", ("step", "item", "told"))
    for record in results.items:
        if _outcome(record) == "failed":
            told = record.get("failed") or record.get("told") or _too_far(record)
            failed.rows.append((record["step"], record["item"], " ".join(str(told).split())[-400:]))
    yield failed
    for step, title in (("real", "Real sizes"), ("small", "Small sizes"), ("flex", "Flex")):
        table = Table(f"{title}: the largest error for what it may be", "", ("item", "result", "error", "allowed"))
        for record in results.items:
            if record["step"] == step and "worst" in record:
                table.rows.append((record["item"], record["worst"], *record["errors"][record["worst"]]))
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


def _times(results: Results) -> Iterator[Table]:
    for length, phase in results.cells:
        lead = "Milliseconds: of a replayed graph, between events, and of the host until the call returns."
        table = Table(f"Times: {phase}, {length:,}", lead, ("what", "graph", "events", "host", "over flash"))
        for name, record in results.times.items():
            if name.startswith(f"{length} {phase} ") and "events" in record:
                way = name.split(" ", 2)[2]
                cells = (_ms(record.get(clock)) for clock in ("graph", "events", "host"))
                ratio = results.ratio(way, "flash", length, phase)
                table.rows.append((way, *cells, DASH if ratio is None else f"{ratio:.2f}"))
        yield table


def _ms(spread: Sequence[float] | None) -> str:
    if spread is None:
        return DASH
    median, low, high = spread
    return f"{median:.3f} ± {(high - low) / 2:.3f}"


def _kernels(results: Results) -> Table:
    table = Table("Kernels as compiled", "", ("for", "kernel", "registers", "spills", "shared", "warps", "stages"))
    names = ("registers", "spills", "shared", "warps", "stages")
    for record in results.items:
        for kernel, found in record["kernels"].items() if record["step"] == "compiled" and "kernels" in record else ():
            rows = dict.fromkeys(tuple(str(each[name]) for name in names) for each in found)
            table.rows += [(record["item"], kernel, *row) for row in rows]
    return table


def _profiles(results: Results) -> Table:
    table = Table("Launches and profiles", "Milliseconds of one call. Most time: launches × time.",
                  ("what", "launches", "on the device", "operations", "host", "most time"))  # fmt: skip
    for record in results.items:
        if "launches" in record:
            top = "; ".join(f"{kernel}: {count} × {ms:.3f}" for kernel, (count, ms) in record["kernels"].items())
            numbers = (f"{record['on_device']:.3f}", str(record["operations"]), f"{record['host']:.3f}")
            table.rows.append((record["item"], str(record["launches"]), *numbers, top or DASH))
    return table
