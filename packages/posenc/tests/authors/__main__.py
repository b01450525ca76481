"""Writes the table of ``docs/authors.md``: ``python -m tests.authors``."""

import re
from pathlib import Path
from typing import Any

from posenc.schemes.catalog import CATALOG
from tests.authors.comparison import entries, errors

PAGE = Path(__file__).parents[4] / "docs" / "authors.md"
BEGIN, END = "<!-- made by python -m tests.authors -->", "<!-- end -->"


def row(entry: dict[str, Any]) -> str:
    """The scheme, its code, what was compared, and in how many cases and numbers."""
    repository, commit, cases = entry["repository"], entry["commit"], entry["cases"]
    code = f"[{repository}](https://github.com/{repository}/tree/{commit}) at `{commit[:10]}`: {entry['where']}"
    count = f"{len(cases)} cases, {sum(len(case['numbers']) for case in cases)} numbers"
    return f"| {entry['scheme']} | {code} | {entry['compared']} | {count} | {entry['precision']}"


def table() -> str:
    """All entries, with the worst error of each."""
    rows = [
        "| scheme | code | compared | how many | precision of that code | worst error |",
        "|---|---|---|---|---|---|",
    ]
    for name, entry in entries().items():
        worst = max(each.worst / max(1.0, each.largest) for each in errors(name, entry))
        rows.append(f"{row(entry)} | {f'{worst:.0e}' if worst else '0'} |")
    return "\n".join(rows) + f"\n\nWithout a row: {', '.join(without())}.\n"


def without() -> list[str]:
    """The schemes of the catalog that no entry is about."""
    about = {word for entry in entries().values() for word in re.findall(r"\w+", entry["scheme"])}
    return [entry.title for entry in CATALOG if entry.title not in about]


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
