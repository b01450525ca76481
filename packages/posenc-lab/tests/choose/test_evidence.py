"""Claims: each says what was published and what was found here, and one that is wrong is named."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from posenc_lab.choose import evidence
from study import claims as checks

PLAN = Path(__file__).parents[4] / "research" / "study" / "plan.md"
FOUND = {
    "status": "measured",
    "mean": -0.12,
    "low": -0.15,
    "high": -0.09,
    "verdict": "lower",
    "seeds": 10,
    "agrees": "no",
}


def claim(found: Any = None, **changed: Any) -> dict[str, Any]:
    """The claim that RoPE is higher than ALiBi beyond the trained length, with this found on Python."""
    (one,) = (each for each in evidence.claims() if each["name"] == "rope_alibi_longer")
    return {**copy.deepcopy(one), "ours": {"python": found, "plays": None}, **changed}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in FOUND.items() if key != name}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ("lower", "must be null or an object, got 'lower'"),
        ({**FOUND, "status": "begun"}, "status must be 'measured' or 'not run', got 'begun'"),
        ({"status": "not run"}, "why is missing"),
        (without("seeds"), "seeds is missing"),
        ({**FOUND, "mean": "low"}, 'mean must be a finite number, got "low"'),
        ({**FOUND, "p": 0.1}, "must have status, mean, low, high, verdict, seeds, agrees alone, got p"),
        ({**FOUND, "low": -0.1}, "mean must be from low to high, got -0.12 of -0.1 to -0.09"),
        ({**FOUND, "seeds": 2}, "seeds must be a whole number of at least 3, got 2"),
        ({**FOUND, "verdict": "less"}, "verdict must be 'lower', 'higher', 'tied' or 'undecided', got 'less'"),
        ({**FOUND, "high": 0.1}, "verdict must be of an interval without zero, got 'lower' of -0.15 to 0.1"),
        (
            {**FOUND, "verdict": "higher", "agrees": "yes"},
            "verdict must be of an interval without zero, got 'higher' of -0.15 to -0.09",
        ),
        ({**FOUND, "agrees": "maybe"}, "agrees must be 'yes', 'no' or 'undecided', got 'maybe'"),
        (
            {**FOUND, "agrees": "yes"},
            "agrees must be 'no', since 'higher' is published and 'lower' was found, got 'yes'",
        ),
    ],
)
def test_a_finding_that_is_wrong_is_named(found: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^rope_alibi_longer, ours, python: {re.escape(message)}$"):
        checks.check(claim(found))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"length": 0}, "rope_alibi_longer: length must be a whole number of at least 1, got 0"),
        ({"contrast": ["rope"]}, "rope_alibi_longer: contrast must be two schemes, got ['rope']"),
        ({"ours": {"plays": None}}, "rope_alibi_longer, ours: must have the texts python, plays, got plays"),
        ({"ours": {}}, "rope_alibi_longer, ours: must have the texts python, plays, got none"),
        ({"published": {"claim": "higher"}}, "rope_alibi_longer, published: verdict is missing"),
        (
            {"published": {"claim": "?", "verdict": "better", "source": "?", "url": "?"}},
            "rope_alibi_longer, published: verdict must be 'lower', 'higher' or 'tied', got 'better'",
        ),
    ],
)
def test_a_claim_that_is_wrong_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        checks.check(claim(**changed))


# --- tables ---------------------------------------------------------------------------------------------------------

ROOT = PLAN.parents[2]
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
