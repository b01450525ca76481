"""Writes the report of an extension: a self-contained HTML file, its pictures as PNGs, and a table for the terminal."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table as Printed

from posenc_lab.compare.pictures import Line, draw
from posenc_lab.compare.summary import Estimate, multiple
from posenc_lab.extend.settings import CROPPED, PLAIN, Extension
from posenc_lab.extend.summary import MARGIN, MIN_PIECES, STRETCHES, TOO_FEW, Gain, Record, Summary
from posenc_lab.kit import page
from posenc_lab.kit.command import command_of
from posenc_lab.kit.records import made_with
from posenc_lab.kit.report import (
    Cell,
    Column,
    Figures,
    Items,
    Paragraph,
    Part,
    Report,
    Row,
    Section,
    Table,
    Warn,
    as_printed,
)
from posenc_lab.kit.statistics import Interval

OBSERVATIONS = (
    "The model may have been trained on the test text; posenc cannot know. {} Memorised text has a lower loss than new "
    "text, so the losses may be too low. Differences between scalings are less affected, since they compare the same "
    "model on the same tokens. But memorised text needs little context, so the gain from more context may look too "
    "small. Use --text with text that is newer than the model."
)
MARKS = {"lower": " <", "tied": " =", "higher": " >", "undecided": " ?", TOO_FEW: " ?"}  # in the table for the terminal
MAX_BITS_DRAWN = 1.5  # bits above the cropped baseline; larger values are drawn as arrows at the edge


def write(records: Sequence[Record], out: str | Path) -> Path:
    """Writes ``report.html`` and its pictures into the folder ``out``; returns the path of the report."""
    summary = Summary(records)
    return page.write(content(summary), Path(out), page.drawn(figures(summary), summary))


def content(summary: Summary) -> Report:
    """The contents of the page."""
    latest = summary.records[-1]
    parts: list[Part] = []
    if missing := summary.missing():
        said = "The report covers what was measured so far. Missing:"
        parts.append(Warn("This run is not finished.", said, missing, id="missing"))
    if found := observed(summary):
        parts.append(Section("Results", [Items(found)]))
    if summary.test_lengths:
        parts += _final(summary)
    return Report(
        title=f"posenc extend: {', '.join(summary.schemes)}",
        heading="Context extension",
        lead=[latest["model"], latest["text"]["about"]],
        parts=[
            *parts,
            Section("How to read this", [Items([*SCORES, *reading(summary)])]),
            Section(
                "What the model may have been trained on", [Paragraph(OBSERVATIONS.format(latest["card"]), id="seen")]
            ),
        ],
        command=command(summary),
        environment=made_with(summary.records, lambda record: {**record["versions"], **record["machine"]}),
    )


def _final(summary: Summary) -> list[Part]:
    """The figures and tables of the final tokens."""
    dashed = " Dashed: the unscaled model, given no more context than it was trained on." if _dashed(summary) else ""
    captions = {
        "final": f"Bits per byte of the same final tokens against context length.{dashed} Bars: 95 % intervals over "
        "pieces of text.",
        "by_position": "Bits per token by position in the longest pieces, as means over intervals of positions; "
        "dotted: the trained length.",
    }
    lead = f"Bits per byte, with 95 % intervals over pieces of text (Student's t). {compared(summary)}"
    heads: list[str | Column] = ["file", Column("byte"), *map(Column, summary.schemes)]
    heads_of_lengths = [Column(f"{n:,}", multiple(n, summary.train_length)) for n in summary.test_lengths]
    rows = [_row(summary, scaling) for scaling in summary.schemes]
    about = "The file and byte offset of each piece, and the bits per byte of its final tokens at the longest length."
    return [
        Figures(captions),
        Table("The same final tokens", lead, ["scaling", *heads_of_lengths], rows, id="scalings"),
        Table("The pieces", about, heads, _pieces(summary), id="pieces"),
    ]


def compared(summary: Summary) -> str:
    """A sentence on the baseline of longer lengths, or that it is missing; empty without longer lengths."""
    if not summary.longer:
        return ""
    words = f"the unscaled model on text cropped to {summary.train_length:,} tokens"
    mean, interval = _shown(summary.cropped())
    if mean == "missing":
        return f"The gain of longer context is not known yet: {words} is missing."
    return (
        f"Beyond the trained length also the paired difference from {words}, which has {mean}"
        f"{f' ({interval})' if interval else ''}; below zero, longer context helps."
    )


def _shown(value: Interval | None) -> tuple[str, str]:
    if value is None:
        return "missing", ""
    if not math.isfinite(value.mean):
        return "not finite", ""
    return f"{value.mean:.3f}", f"{value.low:.3f}–{value.high:.3f}" if math.isfinite(value.high) else "one piece"


def _row(summary: Summary, scaling: str) -> Row:
    """The final bits of a scaling by length, with their paired differences."""
    row: list[str | Cell] = [scaling]
    for length in summary.test_lengths:
        gain = summary.gain(scaling, length) if length > summary.train_length else None
        mean, interval = _shown(summary.bits(scaling, length))
        notes = [interval, "" if gain is None else _difference(gain)]
        row.append(Cell(mean, notes, "" if interval else "absent"))
    return row


def _difference(gain: Gain) -> str:
    """A paired difference with its interval and its verdict, if there are enough pieces for one."""
    if not math.isfinite(gain.mean):
        return gain.verdict
    interval = f" ({gain.low:+.3f} to {gain.high:+.3f})" if math.isfinite(gain.high) else ""
    verdict = "" if gain.verdict == TOO_FEW else gain.verdict  # which the observations say of all at once
    return f"{gain.mean:+.3f}{interval} {verdict}".strip().replace("-", "−")


def _pieces(summary: Summary) -> list[Row]:
    """The file and byte offset of each piece, and the bits of its final tokens with each scaling at the longest
    length."""
    found: list[Row] = []
    for number, (file, byte) in sorted(summary.pieces.items()):
        rows = [summary.rows("final", s, summary.test_lengths[-1]).get(number) for s in summary.schemes]
        bits = ["missing" if r is None else "not finite" if r["bits"] is None else f"{r['bits']:.3f}" for r in rows]
        found.append([file, f"{byte:,}", *bits])
    return found


SCORES = (
    "The same tokens are scored at every length, so only the context before them differs. A scaling that does no "
    "better than the cropped text makes no use of the context further back.",
    "Nothing was fine-tuned: the scalings were applied zero-shot. Some models then fail where a short fine-tuning "
    "would suffice, so this does not show how good a scaling is after training.",
    "none is the model unchanged, with the scaling of its configuration, if any.",
)


def reading(summary: Summary) -> list[str]:
    """Sentences on how the verdicts are made."""
    sentences = []
    gains = [gain for s in summary.schemes for n in summary.longer if (gain := summary.gain(s, n))]
    if any(gain.verdict != TOO_FEW for gain in gains):
        sentences += [
            f"lower and higher: the 95 % interval of the paired difference (Student's t) excludes zero. tied: its 90 % "
            f"interval lies within ±{MARGIN:g} bits per byte (two one-sided tests at 5 %). undecided: neither; the "
            "pieces are too few or differ too much.",
        ]
    if any(gain.verdict == TOO_FEW for gain in gains):
        sentences += [
            f"{TOO_FEW}: fewer than {MIN_PIECES}, so that nothing is known of other text, however large the "
            "difference: a property of a third of all text is absent from all of them in over 5 of 100 cases.",
        ]
    sentences.append(
        "There is no correction for multiple comparisons: of twenty without a difference, about one is called "
        "different."
    )
    return sentences


def observed(summary: Summary) -> list[str]:
    """Sentences on the results beyond the trained length and at short lengths, and on the number of pieces needed."""
    found: list[str] = []
    needed: list[str] = []
    for length in summary.longer:
        words: dict[str, list[str]] = {}
        for scaling in summary.schemes:
            if (gain := summary.gain(scaling, length)) is not None:
                words.setdefault(gain.verdict, []).append(f"{scaling} ({gain.mean:+.3f})".replace("-", "−"))
                needed += [f"{scaling} at {length:,} tokens {gain.needed:,}"] if gain.needed else []
        verdicts = "; ".join(f"{word}: {', '.join(names)}" for word, names in sorted(words.items()))
        if verdicts:
            found.append(
                f"At {length:,} tokens, {multiple(length, summary.train_length)} the trained length, bits per byte "
                f"compared with the unscaled model's on text cropped to {summary.train_length:,} tokens: {verdicts}."
            )
    if needed:
        found.append(
            f"Estimated number of pieces for a 95 % interval of ±{MARGIN:g} bits per byte: {', '.join(needed)}."
        )
    short = [n for n in summary.test_lengths if n <= summary.train_length]
    hurt = []
    for scaling in summary.schemes if PLAIN in summary.schemes and short else ():
        gain = summary.gain(scaling, short[-1], PLAIN) if scaling != PLAIN else None
        if gain is not None and gain.verdict == "higher":
            hurt.append(f"{scaling} ({gain.mean:+.3f})")
    if hurt:
        where = f"At {short[-1]:,} tokens, within the trained length"
        found.append(f"{where}, higher than {PLAIN}: {', '.join(hurt)}.")
    return found


def command(summary: Summary) -> str:
    """The command that repeats this run."""
    given, default = summary.asked().to_dict(), Extension().to_dict()
    model = str(given.pop("model"))
    changed = {name: value for name, value in given.items() if value != default[name]}
    return command_of(("posenc", "extend", model), changed, Extension)


def terminal_table(records: Sequence[Record]) -> Printed:
    """The main numbers, for a terminal."""
    summary = Summary(records)
    title = "Bits per byte of the same final tokens, by context length"
    table = Table(title, "", ["scaling", *(Column(f"{length:,}") for length in summary.test_lengths)])
    verdicts = set()
    for scaling in summary.schemes:
        cells = []
        for length in summary.test_lengths:
            value = summary.bits(scaling, length)
            gain = summary.gain(scaling, length) if length > summary.train_length else None
            mark = MARKS.get(gain.verdict.partition(",")[0], "") if gain else ""
            verdicts |= {gain.verdict} if gain and mark else set()
            cells.append("–" if value is None else f"{value.mean:.3f}{mark}")
        table.rows.append([scaling, *cells])
    notes = []
    if verdicts - {TOO_FEW}:
        cropped = f"cropped to {summary.train_length:,}: {_shown(summary.cropped())[0]}"
        notes.append(f"{cropped}; <, =, >, ?: lower than that, tied, higher, undecided.")
    if TOO_FEW in verdicts:
        said = f"nothing can be said on {len(summary.pieces)} of them, a verdict takes {MIN_PIECES} (--windows)"
        notes.append(f"?: too few pieces of text; {said}.")
    shown = as_printed(table)
    shown.title, shown.caption = title, " ".join(notes)
    return shown


# --- pictures -------------------------------------------------------------------------------------------------------


def figures(summary: Summary) -> dict[str, Callable[[Summary, bool], Figure]]:
    """The figures that have data."""
    return {"final": final, "by_position": by_position} if summary.test_lengths else {}


def final(summary: Summary, dark: bool) -> Figure:
    """Bits per byte of the same final tokens against context length, and those of the cropped text."""
    lengths = summary.test_lengths
    lines = [_line(s, ((n, v) for n in lengths if (v := summary.bits(s, n)))) for s in summary.schemes]
    cropped = _dashed(summary)
    baselines = [_line(CROPPED, ((n, cropped) for n in dict.fromkeys((lengths[0], lengths[-1]))))] if cropped else []
    title, xlabel = "The same final tokens, more context", "tokens shown"
    words = f"dashed: the unscaled model on the last {summary.train_length:,}" if baselines else ""
    limits = _limits(summary, [*lines, *baselines])
    return draw(summary, lines, limits, dark, title, xlabel, "bits per byte", baselines=baselines, words=words)


def by_position(summary: Summary, dark: bool) -> Figure:
    """Bits per token against position in the longest pieces, averaged over a few intervals."""
    lines = [_line(s, summary.by_position(s)) for s in summary.schemes]
    title = f"Where the loss is: means over {STRETCHES} stretches of a text"
    return draw(summary, lines, _limits(summary, lines), dark, title, "position in the text (tokens)", "bits per token")


def _dashed(summary: Summary) -> Interval | None:
    """The cropped baseline, if it is finite."""
    found = summary.cropped()
    return found if found and math.isfinite(found.mean) else None


def _line(scaling: str, points: Iterable[tuple[float, Interval]]) -> Line:
    """A scaling's line. Of a single piece an interval has no ends."""

    def estimate(mean: float, low: float, high: float) -> Estimate:
        return Estimate(mean, *((low, high) if math.isfinite(high) else (mean, mean)), windows=0, seeds=1)

    return Line(scaling, tuple((float(x), estimate(*value)) for x, value in points))


def _limits(summary: Summary, lines: Iterable[Line]) -> tuple[float, float]:
    """Around the best, up to `MAX_BITS_DRAWN` above the worst of those near it within the trained length."""
    points = [(x, value.mean) for line in lines for x, value in line.finite()]
    if not points:
        return 0.0, 1.0
    low = min(mean for _, mean in points)
    cap = (
        max(mean for x, mean in points if mean == low or (x <= summary.train_length and mean <= low + MAX_BITS_DRAWN))
        + MAX_BITS_DRAWN
    )
    return low, min(max(mean for _, mean in points), cap)
