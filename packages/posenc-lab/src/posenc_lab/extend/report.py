"""Writes the report of an extension: a self-contained HTML file, its pictures as PNGs, and a table for the terminal."""

import math
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table as Printed

from posenc_lab.compare.summary import multiple
from posenc_lab.extend import pictures
from posenc_lab.extend.settings import PUZZLES, Extension
from posenc_lab.extend.summary import Record, Summary
from posenc_lab.extend.verdicts import LEAST_PIECES, MARGIN, TOO_FEW, Gain
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
from posenc_lab.kit.statistics import Interval, wilson

SEEN = (
    "The model may have been trained on the test text; posenc cannot know. {} Memorised text has a lower loss than new "
    "text, so the losses may be too low. Differences between scalings are less affected, since they compare the same "
    "model on the same tokens. But memorised text needs little context, so the gain from more context may look too "
    "small. Use --text with text that is newer than the model."
)
ANSWERS = "An answer is found if each of its tokens is the most likely one; bits are the loss of the whole answer."
MARKS = {"lower": " <", "tied": " =", "higher": " >", "undecided": " ?", TOO_FEW: " ?"}  # in the table for the terminal


def write(records: Sequence[Record], out: str | Path) -> Path:
    """Writes ``report.html`` and its pictures into the folder ``out``; returns the path of the report."""
    summary = Summary(records)
    return page.write(content(summary), Path(out), page.drawn(pictures.figures(summary), summary))


def content(summary: Summary) -> Report:
    """The contents of the page."""
    latest = summary.records[-1]
    parts: list[Part] = []
    if missing := summary.missing():
        said = "The report covers what was measured so far. Missing:"
        parts.append(Warn("This run is not finished.", said, missing, id="missing"))
    if found := observed(summary):
        parts.append(Section("Results", [Items(found)]))
    if summary.lengths_of("final"):
        parts += _final(summary)
    for kind in summary.kinds():
        caption = "Answers found, by depth and length. Dotted: the trained length."
        table = Table("", "", ["scaling", *_heads(summary, kind)], _puzzle_rows(summary, kind), id=kind)
        parts.append(Section(f"{kind}: {PUZZLES[kind]}", [Figures({kind: caption}), table]))
    return Report(
        title=f"posenc extend: {', '.join(summary.scalings)}",
        heading="Context extension",
        lead=[latest["model"], latest["text"]["about"]],
        parts=[
            *parts,
            Section("How to read this", [Items([*_scores(summary), *reading(summary), ANSWERS])]),
            Section("What the model may have been trained on", [Paragraph(SEEN.format(latest["card"]), id="seen")]),
        ],
        command=command(summary),
        environment=made_with(summary.records, lambda record: {**record["versions"], **record["machine"]}),
    )


def _final(summary: Summary) -> list[Part]:
    """The figures and tables of the final tokens."""
    dashed = " Dashed: the unscaled model, given no more context than it was trained on." if summary.dashed() else ""
    captions = {
        "final": f"Bits per byte of the same final tokens against context length.{dashed} Bars: 95 % intervals over "
        "pieces of text.",
        "by_position": "Bits per token by position in the longest pieces, as means over intervals of positions; "
        "dotted: the trained length.",
    }
    lead = f"Bits per byte, with 95 % intervals over pieces of text (Student's t). {compared(summary)}"
    heads: list[str | Column] = ["file", Column("byte"), *map(Column, summary.scalings)]
    rows = [_row(summary, scaling) for scaling in summary.scalings]
    about = "The file and byte offset of each piece, and the bits per byte of its final tokens at the longest length."
    return [
        Figures(captions),
        Table("The same final tokens", lead, ["scaling", *_heads(summary, "final")], rows, id="scalings"),
        Table("The pieces", about, heads, _pieces(summary), id="pieces"),
    ]


def _heads(summary: Summary, kind: str) -> list[Column]:
    """The lengths of a table, each with how many times the trained one it is."""
    return [Column(f"{length:,}", multiple(length, summary.trained)) for length in summary.lengths_of(kind)]


def compared(summary: Summary) -> str:
    """A sentence on the baseline of longer lengths, or that it is missing; empty without longer lengths."""
    if not any(length > summary.trained for length in summary.lengths_of("final")):
        return ""
    text = f"text cropped to {summary.trained:,} tokens"
    if summary.configuration.get("train"):
        there = any(summary.bits(s, summary.trained) for s in summary.scalings)
        words = f"the same fine-tuned model on {text}"
    else:
        there = summary.cropped() is not None
        mean, interval = _shown(summary.cropped())
        words = f"the unscaled model on {text}, which has {mean}{f' ({interval})' if interval else ''}"
    if not there:
        return f"The gain of longer context is not known yet: {words.partition(', which')[0]} is missing."
    return f"Beyond the trained length also the paired difference from {words}; below zero, longer context helps."


def _shown(value: Interval | None) -> tuple[str, str]:
    if value is None:
        return "missing", ""
    if not math.isfinite(value.mean):
        return "not finite", ""
    return f"{value.mean:.3f}", f"{value.low:.3f}–{value.high:.3f}" if math.isfinite(value.high) else "one piece"


def _row(summary: Summary, scaling: str) -> Row:
    """The final bits of a scaling by length, with their paired differences."""
    row: list[str | Cell] = [scaling]
    for length in summary.lengths_of("final"):
        gain = summary.gain(scaling, length) if length > summary.trained else None
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


def _puzzle_rows(summary: Summary, kind: str) -> list[Row]:
    rows: list[Row] = []
    for scaling in summary.scalings:
        row: list[str | Cell] = [scaling]
        for length in summary.lengths_of(kind):
            found, bits = summary.found(kind, scaling, length), summary.answer_bits(kind, scaling, length)
            paired = summary.against_plain(kind, scaling, length)
            share = wilson(*found) if found else None
            notes = [f"{share.low:.0%} to {share.high:.0%}"] if share else []
            notes += [f"{bits.mean:.1f} bits"] if bits else []
            notes += [f"+{paired.mine} −{paired.theirs}, p {paired.p_value:.2g}: {paired.verdict}"] if paired else []
            row.append(Cell(f"{found[0]} of {found[1]}", notes) if found else Cell("missing", notes, "absent"))
        rows.append(row)
    return rows


def _pieces(summary: Summary) -> list[Row]:
    """The file and byte offset of each piece, and the bits of its final tokens with each scaling at the longest
    length."""
    found: list[Row] = []
    for number, (file, byte) in sorted(summary.pieces().items()):
        rows = [summary.rows("final", s, summary.lengths_of("final")[-1]).get(number) for s in summary.scalings]
        bits = ["missing" if r is None else "not finite" if r["bits"] is None else f"{r['bits']:.3f}" for r in rows]
        found.append([file, f"{byte:,}", *bits])
    return found


def _scores(summary: Summary) -> list[str]:
    """Sentences on what the numbers are of."""
    steps = summary.configuration.get("train")
    return [
        "The same tokens are scored at every length, so only the context before them differs. A scaling that does no "
        "better than the cropped text makes no use of the context further back.",
        f"Each scaling was fine-tuned for {steps} steps, which is brief."
        if steps
        else "Nothing was fine-tuned: the scalings were applied zero-shot. Some models then fail where a short "
        "fine-tuning would suffice, so this does not show how good a scaling is after training.",
        "none is the model unchanged, with the scaling of its configuration, if any.",
    ]


def reading(summary: Summary) -> list[str]:
    """Sentences on how the verdicts are made."""
    sentences = []
    longer = [length for length in summary.lengths_of("final") if length > summary.trained]
    gains = [gain for s in summary.scalings for n in longer if (gain := summary.gain(s, n))]
    if any(gain.verdict != TOO_FEW for gain in gains):
        sentences += [
            f"lower and higher: the 95 % interval of the paired difference (Student's t) excludes zero. tied: its 90 % "
            f"interval lies within ±{MARGIN:g} bits per byte (two one-sided tests at 5 %). undecided: neither; the "
            "pieces are too few or differ too much.",
        ]
    if any(gain.verdict == TOO_FEW for gain in gains):
        sentences += [
            f"{TOO_FEW}: fewer than {LEAST_PIECES}, so that nothing is known of other text, however large the "
            "difference: a property of a third of all text is absent from all of them in over 5 of 100 cases.",
        ]
    if summary.kinds():
        sentences.append(
            "Puzzles: the share found has Wilson's 95 % interval."
            + (
                f" +3 −1: the scaling found three that {summary.plain} did not, and missed one that it found; p is the "
                "p-value of McNemar's exact test, and below .05 the scaling finds more, or fewer."
                if summary.plain
                else ""
            )
        )
    sentences.append(
        "There is no correction for multiple comparisons: of twenty without a difference, about one is called "
        "different."
    )
    return sentences


def observed(summary: Summary) -> list[str]:
    """Sentences on the results beyond the trained length and at short lengths, and on the number of pieces needed."""
    found: list[str] = []
    whose = "its own" if summary.configuration.get("train") else "the unscaled model's"
    needed: list[str] = []
    for length in [n for n in summary.lengths if n > summary.trained]:
        words: dict[str, list[str]] = {}
        for scaling in summary.scalings:
            if (gain := summary.gain(scaling, length)) is not None:
                words.setdefault(gain.verdict, []).append(f"{scaling} ({gain.mean:+.3f})".replace("-", "−"))
                needed += [f"{scaling} at {length:,} tokens {gain.needed:,}"] if gain.needed else []
        verdicts = "; ".join(f"{word}: {', '.join(names)}" for word, names in sorted(words.items()))
        if verdicts:
            found.append(
                f"At {length:,} tokens, {multiple(length, summary.trained)} the trained length, bits per byte compared "
                f"with {whose} on text cropped to {summary.trained:,} tokens: {verdicts}."
            )
    if needed:
        found.append(
            f"Estimated number of pieces for a 95 % interval of ±{MARGIN:g} bits per byte: {', '.join(needed)}."
        )
    short = [n for n in summary.lengths if n <= summary.trained]
    hurt = []
    for scaling in summary.scalings if summary.plain and short else ():
        gain = summary.gain(scaling, short[-1], summary.plain) if scaling != summary.plain else None
        if gain is not None and gain.verdict == "higher":
            hurt.append(f"{scaling} ({gain.mean:+.3f})")
    if hurt:
        where = f"At {short[-1]:,} tokens, within the trained length"
        found.append(f"{where}, higher than {summary.plain}: {', '.join(hurt)}.")
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
    names = (*(f"{length:,}" for length in summary.lengths), *summary.kinds())
    table = Table(title, "", ["scaling", *map(Column, names)])
    marked = few = False
    for scaling in summary.scalings:
        cells = []
        for length in summary.lengths:
            value = summary.bits(scaling, length)
            gain = summary.gain(scaling, length) if length > summary.trained else None
            mark = MARKS.get(gain.verdict.partition(",")[0], "") if gain else ""
            marked = marked or bool(mark and gain and gain.verdict != TOO_FEW)
            few = few or (gain is not None and gain.verdict == TOO_FEW)
            cells.append("–" if value is None else f"{value.mean:.3f}{mark}")
        for kind in summary.kinds():
            counts = [f for n in summary.lengths if n > summary.trained and (f := summary.found(kind, scaling, n))]
            cells.append(f"{sum(a for a, _ in counts)}/{sum(b for _, b in counts)}" if counts else "–")
        table.rows.append([scaling, *cells])
    notes = []
    if marked:
        plain = summary.cropped()
        cropped = f"cropped to {summary.trained:,}"
        begin, other = (f"{cropped}: {plain.mean:.3f}; ", "that") if plain else ("", f"itself on text {cropped}")
        notes.append(f"{begin}<, =, >, ?: lower than {other}, tied, higher, undecided.")
    if few:
        said = f"nothing can be said on {len(summary.pieces())} of them, a verdict takes {LEAST_PIECES} (--windows)"
        notes.append(f"?: too few pieces of text; {said}.")
    if summary.kinds():
        notes.append("Puzzles: found beyond the trained length.")
    shown = as_printed(table)
    shown.title, shown.caption = title, " ".join(notes)
    return shown
