"""Makes the tables of a report, as rows of formatted text."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.summary import Record, Summary, multiple
from posenc_lab.kit.command import command_of
from posenc_lab.kit.page import joined, strong
from posenc_lab.kit.records import made_with
from posenc_lab.kit.report import Cell, Column, Figures, Paragraph, Part, Row, Section, Table

# The measurement shown in the tables: it scores the same bytes at every length.
KIND = "sliding"


CAPTIONS = {
    "sliding": "Bits per byte against test length, over sliding windows. The same bytes are scored at every length. "
    "Bars: 95 % intervals.",
    "windows": "Bits per byte against test length, over separate windows: every byte is scored, including the first of "
    "a window.",
    "final_tokens": "Bits per byte of the same final bytes as their context grows. A line below its dashed line: "
    "context beyond the training length helps.",
    "by_position": "Bits per byte by position in the longest window, with 95 % intervals over windows.",
    "training": "Training loss against step, a line for each seed.",
    "training_by_time": "Training loss against time, a line for each seed: steps times the time of a step.",
}


def command(summary: Summary) -> str:
    """The command that repeats this comparison."""
    seeds = sorted({seed for _, seed in summary.trainings})
    given = {**summary.configuration, "schemes": list(summary.schemes), "seeds": seeds}
    return command_of(("posenc", "compare"), given, CompareConfig)


def numbers(summary: Summary) -> list[Part]:
    """The part of the page that is specific to text."""
    header: list[str | Column] = ["scheme", *columns(summary), *costs_of(summary)]
    rows = [row(summary, scheme) for scheme in summary.schemes]
    lead = "Bits per byte over sliding windows at each test length, with 95 % intervals."
    if summary.enough_seeds()[1:]:
        lead += " Shaded: the schemes that no other is shown to beat at that length."
    means = Table("", "", ["scheme", "measurement", *columns(summary)], _means(summary), id="means")
    return [
        figures("sliding", "windows"),
        Table("All schemes", lead, header, rows, id="schemes"),
        *why_undefined(summary),
        *_differences(summary),
        Section(
            "Loss by position and use of context",
            [
                figures("final_tokens", "by_position", "training", "training_by_time"),
                Section("Numbers of the other figures", [means], folded=True),
            ],
        ),
    ]


def figures(*names: str) -> Figures:
    return Figures({name: CAPTIONS[name] for name in names})


def columns(summary: Summary) -> list[Column]:
    """A column for each test length, with how many times the training length it is."""
    return [Column(f"{n:,}", multiple(n, summary.train_length)) for n in summary.test_lengths]


def costs_of(summary: Summary) -> list[Column]:
    """The columns of `costs`."""
    return [
        Column("parameters", "positional"),
        Column("step time", f"÷ {summary.timed_against}'s"),
        Column("memory", "peak of a step"),
    ]


def costs(summary: Summary, scheme: str) -> list[Cell]:
    def shown(kind: str, name: str, form: str, scale: float = 1) -> str:
        absent = "diverged" if kind == "training" and summary.diverged(scheme) else "missing"
        return summary.shown(kind, scheme, name, form, scale) or absent

    ends = filter(None, (summary.shown("speed", scheme, end, "{:.2f}") for end in ("low", "high")))
    return [
        Cell(shown("training", "parameters", "{:,.0f}"), [shown("training", "position_parameters", "{:,.0f}")]),
        Cell(shown("speed", "step_ratio", "{:.2f}×"), ["–".join(ends)]),
        Cell(shown("training", "peak_bytes", "{:,.0f} MB", 1e-6)),
    ]


def name_cell(summary: Summary, scheme: str, measured: str = KIND) -> Cell:
    """A scheme, with where it is undefined or diverged."""
    return Cell(scheme, [summary.end(scheme, measured), summary.diverged(scheme)])


def why_undefined(summary: Summary, measured: str = KIND) -> list[Part]:
    """A paragraph for each scheme that is undefined at some length."""
    found: list[Part] = []
    for scheme in summary.schemes:
        if why := next((why for n in summary.test_lengths if (why := summary.undefined(scheme, n, measured))), ""):
            found.append(Paragraph(f"{scheme} is {summary.end(scheme, measured)}: {why}", faint=True))
    return found


def row(summary: Summary, scheme: str) -> Row:
    """A row of the main table."""
    lengths = summary.test_lengths
    bits = [cell(summary, KIND, scheme, n, best=scheme in summary.best(KIND, n)) for n in lengths]
    return [name_cell(summary, scheme), *bits, *costs(summary, scheme)]


def cell(summary: Summary, kind: str, scheme: str, length: int, *notes: str, best: bool = False) -> Cell:
    """A mean and its interval, or one word that says why there is none."""
    value = summary.bits(kind, scheme, length)
    if value is None:
        return Cell(summary.no_value(scheme, length, kind) or "missing", mark="absent")
    if not value.finite:
        return Cell("not finite", mark="absent")
    return Cell(f"{value.mean:.3f}", [f"{value.low:.2f}–{value.high:.2f}", *notes], "best" if best else "")


def _differences(summary: Summary) -> list[Part]:
    """Every other scheme minus the reference, paired, with a verdict."""
    rows: list[Row] = []
    reference, most = summary.reference, 0
    for scheme in summary.schemes:
        if scheme == reference:
            continue
        gaps = [summary.difference(KIND, scheme, reference, length) for length in summary.test_lengths]
        seeds = max((g.seeds for g in gaps if g), default=0)
        rows.append([scheme, *(gap(summary, KIND, scheme, reference, n) for n in summary.test_lengths), str(seeds)])
        most = max(most, seeds)
    if not rows:
        return []
    lead = joined(
        f"Each scheme's bits per byte minus {reference}'s, on the same windows{' and with the same seeds' * (most > 1)}"
        f"; below zero is better than {reference}. ",
        "The intervals cover windows and seeds." if most > 1 else strong("Over windows, with one seed."),
    )
    caption = (
        f"Difference from {reference} in bits per byte against test length, over sliding windows, with paired 95 % "
        "intervals."
    )
    table = Table("", "", ["scheme", *columns(summary), Column("seeds")], rows, id="differences")
    lengths = dict.fromkeys((summary.train_length, max(summary.lengths(KIND), default=0)))
    matrices = [matrix(summary, KIND, n, f"At {n:,} {summary.task.lengths}") for n in lengths]
    parts = [Paragraph(lead), Figures({"differences": caption}), table, *pairs(matrices)]
    return [Section(f"Paired differences from {reference}", parts)]


def gap(summary: Summary, kind: str, scheme: str, other: str, length: int) -> Cell:
    """A paired difference, its interval and the verdict, or one word that says why there is none."""
    value = summary.difference(kind, scheme, other, length)
    if value is None:
        both = [cell(summary, kind, name, length).text for name in (scheme, other)]
        word = next((word for word in ("diverged", "undefined") if word in both), "missing")
        return Cell(word, mark="absent")
    if not value.finite:
        return Cell("not finite", mark="absent")
    mean, interval = f"{value.mean:+.3f}", f"{value.low:+.3f} to {value.high:+.3f}"
    return Cell(mean.replace("-", "−"), [interval.replace("-", "−"), summary.verdict(value)])


def matrix(summary: Summary, kind: str, length: int, title: str) -> Table:
    """Every scheme that has a number at a length minus every other; without rows for fewer than two."""
    schemes = [scheme for scheme in summary.schemes if summary.bits(kind, scheme, length)]
    table = Table(title, "", ["minus", *map(Column, schemes)])
    for one in schemes if schemes[1:] else ():
        table.rows.append([one, *(gap(summary, kind, one, s, length) if one != s else "" for s in schemes)])
    return table


def pairs(matrices: Sequence[Table]) -> list[Part]:
    """The matrices, folded; nothing where none has rows."""
    found = [replace(each, id=f"pairs-{i}") for i, each in enumerate((m for m in matrices if m.rows), 1)]
    lead = (
        "The scheme of the row minus that of the column, on the same examples and with the same seeds, with 95 % "
        "intervals. There is no correction for multiple comparisons: of twenty pairs of equal schemes, about one is "
        "called different."
    )
    return [Section("Differences between all pairs", [Paragraph(lead), *found], folded=True)] if found else []


def _means(summary: Summary) -> list[Row]:
    """The other measurements made per length."""
    kinds = {"windows": "separate windows", "truncated": "truncated", "final_tokens": "final bytes"}

    def at(kind: str, scheme: str, length: int) -> Cell:
        return cell(summary, kind, scheme, length) if length in summary.lengths(kind) else Cell("–", mark="absent")

    return [
        [scheme, what, *(at(kind, scheme, n) for n in summary.test_lengths)]
        for kind, what in kinds.items()
        for scheme in summary.schemes
    ]


def environment(summary: Summary) -> list[tuple[str, str]]:
    """The text, versions and machine that the records were made with."""
    labels = {"about": "text", "digest": "digest of the text"}

    def facts(record: Record) -> dict[str, Any]:
        parts = [record.get(part) or {} for part in ("text", "versions", "machine")]
        return {labels.get(name, name): value for part in parts for name, value in part.items()}

    return made_with(summary.records, facts)
