"""Writes the report of a comparison: a self-contained HTML file, its pictures as PNGs, and a table for the terminal.

An incomplete run can be reported too; the report then lists what is missing.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table as RichTable

from posenc_lab.compare import accuracy, pictures, sentences, tables, trials
from posenc_lab.compare.puzzle import Puzzle
from posenc_lab.compare.summary import Record, Summary
from posenc_lab.compare.task import Task, listed
from posenc_lab.kit import page
from posenc_lab.kit.report import Cell, Column, Items, Paragraph, Part, Report, Section, Table, Warn, as_printed


def write(records: Sequence[Record], out: str | Path) -> Path:
    """Writes ``report.html`` and its pictures into the folder ``out``; returns the path of the report."""
    summary = Summary(records)
    return page.write(content(summary), Path(out), page.drawn(figures(summary.task), summary))


def html(records: Sequence[Record], images: page.Images) -> str:
    """The page, with the images of each figure inside it."""
    return page.html(content(Summary(records)), images)


def figures(task: Task) -> dict[str, Callable[[Summary, bool], Figure]]:
    return accuracy.FIGURES if isinstance(task, Puzzle) else pictures.FIGURES


def content(summary: Summary) -> Report:
    """The contents of the page."""
    right_or_wrong = isinstance(summary.task, Puzzle)
    words = accuracy if right_or_wrong else sentences
    numbers = accuracy.numbers(summary) if right_or_wrong else tables.numbers(summary)
    return Report(
        title=f"posenc compare: {', '.join(summary.schemes)}",
        heading=summary.task.title if isinstance(summary.task, Puzzle) else "Train short, test long",
        lead=[_lead(summary)],
        parts=[
            *_warnings(summary),
            Section("Results", [Items(words.observed(summary) or ["Nothing yet."], "results")]),
            *numbers,
            *trials.sections(summary),
            Section("How to read this", [Items(words.how_to_read(summary))]),
            Section("What must not be concluded", [Items(words.not_concluded(summary)), *_left_out(summary)]),
        ],
        command=tables.command(summary),
        environment=tables.environment(summary),
    )


def _lead(summary: Summary) -> str:
    """A paragraph on the schemes, the lengths and the data."""
    task, lengths = summary.task, summary.test_lengths
    about = str(((summary.records[-1] if summary.records else {}).get("text") or {}).get("about", ""))
    if isinstance(task, Puzzle):
        tested = f" and tested at {lengths[0]:,} to {lengths[-1]:,}" if lengths else ""
        about = about.capitalize() if about.startswith("made") else about
        said = f" {about}." if about else ""
    else:
        tested = f" and tested at up to {lengths[-1]:,}" if lengths else ""
        said = f" Text: {about}." if about else ""
    several = len(summary.schemes) != 1
    count = f"{len(summary.schemes)} positional encodings" if several else "One positional encoding"
    return f"{count} in the same small model, trained at {summary.train_length:,} {task.lengths}{tested}.{said}"


def _warnings(summary: Summary) -> list[Part]:
    found: list[Part] = []
    if missing := summary.missing():
        said = "The report covers what was measured so far. Missing:"
        found.append(Warn("This comparison is not finished.", said, missing, id="missing"))
    elif not summary.records:
        found.append(Warn("There are no records yet.", id="missing"))
    if summary.left_out:
        found.append(Warn(f"{summary.left_out} records of another comparison were ignored."))
    return found


def _left_out(summary: Summary) -> list[Part]:
    left_out = "; ".join(f"{listed(names)} ({reason})" for reason, names in summary.task.left_out().items())
    said = f"Schemes of the catalog that do not apply to this task: {left_out}."
    return [Paragraph(said, faint=True)] if left_out else []


def terminal_table(records: Sequence[Record]) -> RichTable:
    """The main numbers of every scheme, for a terminal of 100 columns."""
    summary = Summary(records)
    notes = sentences.preface(summary)
    table, legend = (_accuracies if isinstance(summary.task, Puzzle) else _all_bits)(summary)
    star = "*: no other scheme is shown to be better; " if summary.enough_seeds()[1:] else ""
    notes += [star + legend, *(f"{s} {words}." for s in summary.schemes if (words := summary.diverged(s)))]
    if missing := len(summary.lacking()):
        notes.append(f"{missing} of {len(summary.trainings)} trainings are incomplete: see the report.")
    shown = as_printed(table)
    shown.title, shown.caption = table.title, "\n".join(notes)
    return shown


def _all_bits(summary: Summary) -> tuple[Table, str]:
    """The table of a task in bits, and its legend."""
    lengths = _few(summary.test_lengths, summary.train_length)
    title = f"Bits per byte at each test length (sliding windows), trained at {summary.train_length:,} bytes"
    names = ("params", "step", "MB", *(f"{length:,} " for length in lengths))
    table = Table(title, "", [Column("scheme", number=False), *map(Column, names)])
    lowest = {length: summary.best(tables.KIND, length) for length in lengths}
    for scheme in summary.schemes:
        once = (
            summary.shown("training", scheme, "parameters", "{:.0f}k", 1e-3) or "–",
            summary.shown("speed", scheme, "step_ratio", "{:.2f}×") or "–",
            summary.shown("training", scheme, "peak_bytes", "{:,.0f}", 1e-6) or "–",
        )
        table.rows.append([scheme, *once, *(_cell(_bits(summary, scheme, n), scheme in lowest[n]) for n in lengths)])
    return table, f"±: half the 95 % interval; step: time ÷ {summary.timed_against}'s; –: not measured."


def _accuracies(summary: Summary) -> tuple[Table, str]:
    """The table of a puzzle, and its legend."""
    lengths = _few(summary.test_lengths, summary.train_length)
    title = f"Share of right answers, trained at {summary.train_length:,} {summary.task.lengths}"
    names = ("step", *(f"{length:,} " for length in lengths))
    table = Table(title, "", [Column("scheme", number=False), *map(Column, names)])
    for scheme in summary.schemes:
        cells = []
        for n in lengths:
            value = summary.bits(accuracy.KIND, scheme, n)
            shown = f"{value.mean:.3f}" if value else "undef." if summary.undefined(scheme, n, accuracy.KIND) else "–"
            cells.append(_cell(shown, scheme in accuracy.highest(summary, n)))
        table.rows.append([scheme, summary.shown("speed", scheme, "step_ratio", "{:.2f}×") or "–", *cells])
    return table, f"step: time ÷ {summary.timed_against}'s; undef.: no such positions."


def _cell(words: str, best: bool) -> Cell:
    return Cell(words + "*", mark="best") if best else Cell(words + " ")


def _bits(summary: Summary, scheme: str, length: int) -> str:
    value = summary.bits(tables.KIND, scheme, length)
    if value is None:
        return summary.no_value(scheme, length, tables.KIND) or "–"
    if not value.finite:
        return "not finite"
    half = (value.high - value.low) / 2
    return f"{value.mean:.2f}±" + (f"{half:.2f}".removeprefix("0") if half < 1 else f"{half:.1f}")


def _few(lengths: Sequence[int], trained: int) -> list[int]:
    """At most five lengths: the shortest, the training length, and the longest ones."""
    if len(lengths) <= 5:
        return list(lengths)
    keep = {lengths[0], trained if trained in lengths else lengths[1]}
    return sorted(keep | set(lengths[-3:]))
