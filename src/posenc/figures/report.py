"""The report of a comparison: one HTML file that needs nothing else, its pictures as PNGs, a table for the terminal.

Whatever the records hold can be reported: a run that was interrupted gives a report that says what it lacks.
"""

import base64
import io
import os
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import jinja2
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from posenc.figures import sentences, style, tables
from posenc.figures.compare import FIGURES
from posenc.figures.summary import Record, Summary, multiple

FILE = "report.html"
TEMPLATE = "report.html.j2"
FOLDER = "figures"


def write(records: Sequence[Record], out: str | Path) -> Path:
    """Writes ``report.html`` into the folder ``out``, its pictures below it, and gives the path of the report.

    Each file is written whole or not at all, so a reader never meets half of one.
    """
    out = Path(out)
    images = {name: {dark: png(records, name, dark) for dark in (False, True)} for name in FIGURES}
    for name, pair in images.items():
        for dark, data in pair.items():
            _write(out / FOLDER / f"{name}{'-dark' if dark else ''}.png", data)
    page = html(records, images)
    _write(out / FILE, page.encode())
    return out / FILE


def png(records: Sequence[Record], name: str, dark: bool = False) -> bytes:
    """One of the figures, as the bytes of a PNG."""
    buffer = io.BytesIO()
    with style.context(dark):
        FIGURES[name](records, dark).savefig(buffer, format="png")
    return buffer.getvalue()


def html(records: Sequence[Record], images: dict[str, dict[bool, bytes]]) -> str:
    """The page, with the PNGs of each figure (by whether they are dark) inside it."""
    summary = Summary(records)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(files("posenc.figures").joinpath(TEMPLATE).read_text(encoding="utf-8"))
    latest = summary.records[-1] if summary.records else {}
    return template.render(
        summary=summary,
        about=(latest.get("text") or {}).get("about", ""),
        images={name: {dark: _uri(data) for dark, data in pair.items()} for name, pair in images.items()},
        missing=summary.missing(),
        observed=sentences.observed(summary),
        how_to_read=sentences.how_to_read(summary),
        not_concluded=sentences.not_concluded(summary),
        rows=[tables.row(summary, scheme) for scheme in summary.schemes],
        differences=tables.differences(summary),
        means=tables.means(summary),
        times=[multiple(length, summary.train_length) for length in summary.test_lengths],
        environment=tables.environment(summary),
        command=tables.command(summary),
        theme={dark: style.theme(dark) for dark in (False, True)},
    )


def terminal_table(records: Sequence[Record]) -> Table:
    """The main numbers of every scheme, for a terminal of 100 columns."""
    summary = Summary(records)
    lengths = _few(summary.test_lengths, summary.train_length)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.title = f"Bits per byte at each test length (sliding windows), trained at {summary.train_length:,} tokens"
    table.add_column("scheme", overflow="fold", max_width=16)
    for name in ("params", "tokens/s", "step", "MB", *(f"{length:,} " for length in lengths)):
        table.add_column(name, justify="right", overflow="fold")
    lowest = {length: sentences.best(summary, tables.KIND, length) for length in lengths}
    for scheme in summary.schemes:
        once = (
            _short(summary.number("training", scheme, "parameters"), "{:.0f}k", 1e-3),
            _short(summary.number("training", scheme, "tokens_per_second"), "{:,.0f}k", 1e-3),
            _short(summary.number("speed", scheme, "step_ratio"), "{:.2f}×"),
            _short(summary.number("training", scheme, "peak_bytes"), "{:,.0f}", 1e-6),
        )
        bits = [
            Text(_bits(summary, scheme, n) + "*", style="bold")
            if scheme in lowest[n]
            else Text(_bits(summary, scheme, n) + " ")
            for n in lengths
        ]
        table.add_row(Text(scheme), *once, *bits)
    unit = f"step: time ÷ {summary.timed_against}'s"
    notes = [f"* lowest, or tied with it; ±: half the 95 % interval; {unit}; –: not measured."]
    notes += [f"{scheme} {words}." for scheme in summary.schemes if (words := summary.diverged(scheme))]
    missing = len(summary.lacking())
    if missing:
        notes.append(
            f"{missing} of {len(summary.trainings)} trainings are not complete: the report says what is missing."
        )
    table.caption = "\n".join(notes)
    return table


def _short(value: float | None, form: str, scale: float = 1) -> str:
    return "–" if value is None else form.format(value * scale)


def _bits(summary: Summary, scheme: str, length: int) -> str:
    value = summary.bits(tables.KIND, scheme, length)
    if value is None:
        return summary.no_value(scheme, length, tables.KIND) or "–"
    if not value.finite:
        return "not finite"
    half = (value.high - value.low) / 2
    return f"{value.mean:.2f}±" + (f"{half:.2f}".removeprefix("0") if half < 1 else f"{half:.1f}")


def _few(lengths: Sequence[int], trained: int) -> list[int]:
    """As many lengths as a terminal has room for: the shortest, the training length, and the longest ones."""
    if len(lengths) <= 5:
        return list(lengths)
    keep = {lengths[0], trained if trained in lengths else lengths[1]}
    return sorted(keep | set(lengths[-3:]))


def _uri(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".writing")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        # mkstemp's files are private; a report may be read by whoever may read the folder.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
