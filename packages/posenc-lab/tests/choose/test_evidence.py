"""Evidence: each table says where it is from, and has what its page has."""

import re
from pathlib import Path

import pytest

from posenc_lab.choose import evidence

ROOT = Path(__file__).parents[4]
TABLES = evidence.tables()


def cells(page: str) -> list[dict[tuple[str, str], str]]:
    """The tables of a page, each cell by the first cell of its row and the head of its column, in either order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    tables = []
    for lines in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = ([cell.strip(" *") for cell in line.strip("|\n").split("|")] for line in lines.splitlines())
        table = {}
        for row in rows:
            for column, value in zip(head[1:], row[1:], strict=False):
                table[row[0], column] = table[column, row[0]] = value
        tables.append(table)
    return tables


@pytest.mark.parametrize("one", TABLES, ids=lambda one: one.name)
def test_a_table_says_where_it_is_from(one: evidence.PublishedTable) -> None:
    assert all((one.title, one.measured, one.shows, one.heads))
    assert all(row.label and (row.schemes or one.name.startswith("study_")) for row in one.rows)  # a schedule is none
    if one.name.startswith("study_"):  # tests/test_study.py
        return
    if one.url:
        assert re.fullmatch(r"https://[\w./-]+", one.url)
        assert not one.doc
        return
    printed = {
        (row.label, head): figure for row in one.rows for head, figure in zip(one.heads, row.figures, strict=True)
    }
    assert any(printed.items() <= table.items() for table in cells(one.doc))
    assert one.command in (ROOT / one.doc).read_text(encoding="utf-8").replace(" \\\n   ", "")
