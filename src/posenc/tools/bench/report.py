"""Writes the report of a benchmark: an HTML page, the same tables in Markdown, and the records in JSON."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from posenc.tools.bench import pictures
from posenc.tools.bench.cells import Record
from posenc.tools.bench.settings import QUICK, Settings
from posenc.tools.bench.tables import busy, environment, tables
from posenc.tools.kit import page, saved
from posenc.tools.kit.command import command_of
from posenc.tools.kit.files import write_whole
from posenc.tools.kit.report import Figures, Part, Report, Warn, as_markdown

TITLE = "What position costs"
CAPTIONS = {
    "price": "Ratios to plain attention at the longest length that most schemes were measured at.",
    "price_by_length": "The same ratios against length.",
    "growth": "Time and peak memory against length.",
    "rope": "Time of rotating queries and keys, over cloning them, by precision.",
    "peers": "Other ways to compute the same biases, over plain attention.",
    "decode": "One token against a cache, over the same without positions.",
    "mine": "An attention of your own and posenc's, over plain attention.",
}
FILE, DATA = "bench.md", "bench.json"


def write(records: Sequence[Record], out: Path) -> Path:
    """Writes ``bench.json``, ``bench.md`` and ``report.html`` with its pictures, each whole or not at all; returns the
    path of the last."""
    images = page.drawn(pictures.FIGURES, records)
    write_whole(out / DATA, (json.dumps(list(records), indent=1) + "\n").encode())
    write_whole(out / FILE, markdown(records, images).encode())
    return page.write(content(records, command(out)), out, images)


def content(records: Sequence[Record], command: str = "") -> Report:
    """The contents of the page."""
    others = busy(records)
    parts: list[Part] = [Warn(others)] if others else []
    return Report(TITLE, TITLE, [], [*parts, Figures(CAPTIONS), *tables(records)[1:]], command, environment(records))


def markdown(records: Sequence[Record], names: Iterable[str] = ()) -> str:
    """All tables, and the pictures of these names."""
    parts = [f"# {TITLE}\n"] + ([f"**{busy(records)}**\n"] if busy(records) else [])
    parts += map(as_markdown, tables(records))
    parts += [f"![{name}]({page.FIGURES}/{name}.png)\n" for name in names]
    return "\n".join(parts)


def command(out: Path) -> str:
    """The command that repeats the benchmark of a folder."""
    settings = saved.from_toml(out / saved.FILE, Settings.from_mapping)
    quick = settings.budget == QUICK["budget"]
    base = Settings.from_mapping(QUICK if quick else {})
    changed = {name: value for name, value in settings.to_dict().items() if value != base.to_dict()[name]}
    return command_of(("posenc", "bench", *["--quick"] * quick), changed, Settings)
