"""The report of an extension: one HTML file that needs nothing else, its pictures as PNGs, a table for the terminal."""

import base64
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from posenc.extend import pictures
from posenc.extend.settings import PUZZLES, Extension
from posenc.extend.summary import Record, Summary, verdict
from posenc.lab.summary import Interval, multiple
from posenc.workbench import style
from posenc.workbench.files import write_whole
from posenc.workbench.page import page
from posenc.workbench.records import made_with

FILE = "report.html"
FOLDER = "figures"


def write(records: Sequence[Record], out: str | Path) -> Path:
    """Writes ``report.html`` into the folder ``out``, its pictures below it, and gives the path of the report."""
    out, summary = Path(out), Summary(records)
    images: dict[str, dict[bool, str]] = {}
    for name, draw in pictures.figures(summary).items():
        for dark in (False, True):
            data = style.saved(draw(summary, dark), dark=dark)
            write_whole(out / FOLDER / f"{name}{'-dark' if dark else ''}.png", data)
            images.setdefault(name, {})[dark] = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    latest = summary.records[-1]
    html = page(
        "posenc.extend",
        "report.html.j2",
        summary=summary,
        images=images,
        about=[latest["model"], latest["text"]["about"]],
        final_lengths=_heads(summary, "final"),
        rows=[_row(summary, s) for s in summary.scalings],
        compared=compared(summary),
        puzzles=[(kind, PUZZLES[kind], _heads(summary, kind), _puzzle_rows(summary, kind)) for kind in summary.kinds()],
        observed=observed(summary),
        command=command(summary),
        environment=made_with(summary.records, _facts),
    )
    write_whole(out / FILE, html.encode())
    return out / FILE


def _facts(record: Record) -> dict[str, Any]:
    return {**record["versions"], **record["machine"]}


def _heads(summary: Summary, kind: str) -> list[tuple[str, str]]:
    """The lengths of a table, each with how many times the trained one it is."""
    return [(f"{length:,}", multiple(length, summary.trained)) for length in summary.lengths_of(kind)]


def compared(summary: Summary) -> str:
    """What the final tokens at longer lengths are compared with, or that it is missing; empty where there are none."""
    if not any(length > summary.trained for length in summary.lengths_of("final")):
        return ""
    text = f"text cropped to {summary.trained:,} tokens"
    if summary.configuration.get("train"):
        there = any(summary.bits(s, summary.trained) for s in summary.scalings)
        words = f"the same fine-tuned model on {text}"
    else:
        there = summary.cropped() is not None
        mean, interval = _shown(summary.cropped())
        words = f"the plain model on {text}, which has {mean}{f' ({interval})' if interval else ''}"
    if not there:
        return f"What the longer context brings cannot be told yet: {words.partition(', which')[0]} is missing."
    return f"Past the trained length also the paired difference from {words}: below zero the longer context helps."


def _shown(value: Interval | None) -> tuple[str, str]:
    if value is None:
        return "missing", ""
    if not math.isfinite(value.mean):
        return "not finite", ""
    return f"{value.mean:.3f}", f"{value.low:.3f}–{value.high:.3f}" if math.isfinite(value.high) else "one piece"


def _row(summary: Summary, scaling: str) -> dict[str, Any]:
    cells = []
    for length in summary.lengths_of("final"):
        gain = summary.gain(scaling, length) if length > summary.trained else None
        word = "" if gain is None else f"{gain.mean:+.3f} {verdict(gain)}".replace("-", "−")
        cells.append((*_shown(summary.bits(scaling, length)), word))
    return {"scaling": scaling, "cells": cells}


def _puzzle_rows(summary: Summary, kind: str) -> list[dict[str, Any]]:
    rows = []
    for scaling in summary.scalings:
        cells = []
        for length in summary.lengths_of(kind):
            found, bits = summary.found(kind, scaling, length), summary.answer_bits(kind, scaling, length)
            cells.append((f"{found[0]} of {found[1]}" if found else "missing", f"{bits.mean:.1f} bits" if bits else ""))
        rows.append({"scaling": scaling, "cells": cells})
    return rows


def observed(summary: Summary) -> list[str]:
    """What the numbers say past the trained length, and of short texts, with ties called ties."""
    found: list[str] = []
    whose = "its own" if summary.configuration.get("train") else "the plain model's"
    for length in [n for n in summary.lengths if n > summary.trained]:
        words: dict[str, list[str]] = {}
        for scaling in summary.scalings:
            if (gain := summary.gain(scaling, length)) is not None:
                words.setdefault(verdict(gain), []).append(f"{scaling} ({gain.mean:+.3f})".replace("-", "−"))
        said = "; ".join(f"{word}: {', '.join(names)}" for word, names in sorted(words.items()))
        if said:
            found.append(
                f"At {length:,} tokens, {multiple(length, summary.trained)} the trained length, bits per byte against "
                f"{whose} on text cropped to {summary.trained:,} tokens: {said}."
            )
    plain = next((s for s in summary.scalings if s.partition(",")[0] == "none"), "")
    short = [n for n in summary.lengths if n <= summary.trained]
    hurt = []
    for scaling in summary.scalings if plain and short else ():
        gain = summary.gain(scaling, short[-1], plain) if scaling != plain else None
        if gain is not None and verdict(gain) == "worse":
            hurt.append(f"{scaling} ({gain.mean:+.3f})")
    if hurt:
        seen = f"On {short[-1]:,} tokens, no more than the model was trained on"
        found.append(f"{seen}, worse than {plain}: {', '.join(hurt)}.")
    return found


def command(summary: Summary) -> str:
    """The command that makes these records again."""
    given = summary.asked().to_dict()
    words = ["posenc", "extend", str(given.pop("model"))]
    default = Extension().to_dict()
    for name, value in given.items():
        if value == default.get(name):
            continue
        option = "--" + name.replace("_", "-")
        if isinstance(value, list):
            items = [str(item) for item in value]
            words += [option, *(items if name == "text" else [",".join(items)])] if items else []
        elif value is not None:
            words += [option, str(value)]
    return shlex.join(words)


def terminal_table(records: Sequence[Record]) -> Table:
    """The main numbers, for a terminal."""
    summary = Summary(records)
    title = "Bits per byte of the same final tokens, by the tokens before them"
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title=title)
    table.add_column("scaling")
    for length in summary.lengths:
        table.add_column(f"{length:,}", justify="right")
    for kind in summary.kinds():
        table.add_column(kind, justify="right")
    marked = False
    for scaling in summary.scalings:
        cells = []
        for length in summary.lengths:
            value = summary.bits(scaling, length)
            gain = summary.gain(scaling, length) if length > summary.trained else None
            mark = {"better": " <", "worse": " >", "tie": " ="}.get(verdict(gain), "") if gain else ""
            marked = marked or bool(mark)
            cells.append("–" if value is None else f"{value.mean:.3f}{mark}")
        for kind in summary.kinds():
            counts = [f for n in summary.lengths if n > summary.trained and (f := summary.found(kind, scaling, n))]
            cells.append(f"{sum(a for a, _ in counts)}/{sum(b for _, b in counts)}" if counts else "–")
        table.add_row(scaling, *cells)
    said = []
    if marked:
        plain = summary.cropped()
        cropped = f"cropped to {summary.trained:,}"
        begin, other = (f"{cropped}: {plain.mean:.3f}; ", "that") if plain else ("", f"itself on text {cropped}")
        said.append(f"{begin}<, =, >: better, tied, worse than {other}.")
    if summary.kinds():
        said.append("Puzzles: found past the trained length.")
    table.caption = " ".join(said)
    return table
