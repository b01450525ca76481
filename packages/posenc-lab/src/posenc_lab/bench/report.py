"""Writes the report of a benchmark: an HTML page, the same tables in Markdown, and the records in JSON."""

import json
from collections.abc import Sequence
from pathlib import Path

from posenc.command.files import write_whole
from posenc_lab.bench.settings import QUICK, Settings
from posenc_lab.bench.tables import Record, busy, environment, tables
from posenc_lab.kit import page, saved
from posenc_lab.kit.command import command_of
from posenc_lab.kit.report import Part, Report, Warn, as_markdown

TITLE = "What position costs"


def write(records: Sequence[Record], out: Path) -> Path:
    """Writes ``bench.json``, ``bench.md`` and ``report.html``, each whole or not at all; returns the path of the
    last."""
    others = busy(records)
    parts = [f"# {TITLE}\n", *([f"**{others}**\n"] if others else []), *map(as_markdown, tables(records))]
    write_whole(out / "bench.json", (json.dumps(list(records), indent=1) + "\n").encode())
    write_whole(out / "bench.md", "\n".join(parts).encode())
    shown: list[Part] = [*([Warn(others)] if others else []), *tables(records)[1:]]
    return page.write(Report(TITLE, TITLE, [], shown, command(out), environment(records)), out)


def command(out: Path) -> str:
    """The command that repeats the benchmark of a folder."""
    settings = saved.from_toml(out / saved.FILE, Settings.from_mapping)
    quick = settings.budget == QUICK["budget"]
    base = Settings.from_mapping(QUICK if quick else {})
    changed = {name: value for name, value in settings.to_dict().items() if value != base.to_dict()[name]}
    return command_of(("posenc", "bench", *["--quick"] * quick), changed, Settings)
