"""posenc gives the numbers that the authors' own code gave, and the page of them is up to date."""

import re
from typing import Any

import pytest
import torch

from tests.authors import __main__ as page
from tests.authors import comparison
from tests.rounding import of_angles, of_sums

ENTRIES = comparison.entries()
DTYPES = {"double": torch.float64, "single": torch.float32}


def furthest(given: dict[str, Any]) -> float:
    """The largest position of a case, or a number beyond it."""
    return float(max(given.get(name, 0) for name in ("n", "length", "side", "h", "w", "f", "most")))


@pytest.mark.parametrize("name", ENTRIES)
def test_the_numbers_are_those_of_the_authors_code(name: str) -> None:
    """As exact as that code: sums of up to 512 numbers, and angles of one radian per position."""
    entry = ENTRIES[name]
    dtype = DTYPES[entry["precision"]]
    for case, error in zip(entry["cases"], comparison.errors(name, entry), strict=True):
        size = max(1.0, error.largest)
        assert error.worst <= of_sums(dtype, 512, size) + of_angles(dtype, furthest(case["given"]), size), case["given"]


def test_each_entry_has_its_function_and_origin() -> None:
    assert comparison.known() | {"leaky_re_rope"} == set(ENTRIES)
    for entry in ENTRIES.values():
        assert re.fullmatch(r"[0-9a-f]{40}", entry["commit"])
        assert all(case["numbers"] for case in entry["cases"])
        assert len({str(case["given"]) for case in entry["cases"]}) == len(entry["cases"])


def test_the_page_has_every_entry() -> None:
    """But for the errors themselves, which differ in their last digit from machine to machine."""
    written = page.PAGE.read_text(encoding="utf-8").partition(page.BEGIN)[2].partition(page.END)[0]
    lines = written.strip().splitlines()
    rows = [line.rpartition(" | ")[0] for line in lines[2:-2]]
    assert lines[-1] == f"Without a row: {', '.join(page.without())}."
    assert rows == [page.row(entry) for entry in ENTRIES.values()]


def test_other_numbers_are_noticed() -> None:
    """A base that is not the case's."""
    entry = ENTRIES["gpt_neox"]
    cases = [{**case, "given": {**case["given"], "base": 9_000.0}} for case in entry["cases"]]
    assert min(error.worst for error in comparison.errors("gpt_neox", {**entry, "cases": cases})) > 1e-3
