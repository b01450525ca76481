"""docs/conformance.md says what the code does."""

import re
from pathlib import Path

import pytest

from posenc_check.checks import CHECKS
from posenc_check.trial import THREADS, Check

PAGE = (Path(__file__).parents[4] / "docs" / "conformance.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line.startswith("| ")]
LISTED = {int(row[0]): row[1:] for row in ROWS if row[0].isdigit() and row[1] in {check.name for check in CHECKS}}
PAINS = {int(row[0]): row[1:] for row in ROWS if row[0].isdigit() and row[1] not in {check.name for check in CHECKS}}


def test_checks_are_numbered_through_and_have_names_of_their_own() -> None:
    assert [check.number for check in CHECKS] == list(range(1, len(CHECKS) + 1))
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_page_has_every_check_as_it_is(check: Check) -> None:
    assert LISTED[check.number] == [check.name, check.rule, ", ".join(map(str, check.pains))]


@pytest.mark.parametrize("pain", THREADS)
def test_the_page_has_every_pain_with_its_threads_and_checks(pain: int) -> None:
    _, threads, checks = PAINS[pain]
    assert threads.split(", ") == list(THREADS[pain])
    assert [int(number) for number in re.findall(r"\d+", checks)] == [c.number for c in CHECKS if pain in c.pains]


def test_the_page_has_every_claim_with_the_checks_that_try_it() -> None:
    tried: dict[str, set[int]] = {}
    for check in CHECKS:
        for trial in check.trials:
            for claim in trial.claims:
                tried.setdefault(claim, set()).add(check.number)
    rows = {tuple(re.findall(r"`(\w+)`", row[0])): row[2] for row in ROWS if row[0].startswith("`") and len(row) == 3}
    assert set(tried) <= {claim for claims in rows for claim in claims}
    for claims, checks in rows.items():
        numbers = sorted(set[int]().union(*(tried.get(claim, set()) for claim in claims)))
        assert checks == (", ".join(map(str, numbers)) or "–"), claims


def test_every_check_ends_a_pain() -> None:
    assert all(check.pains for check in CHECKS)
