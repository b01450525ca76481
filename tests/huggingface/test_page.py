"""The table of families in docs/huggingface.md is that of the last run; tests/docs runs the page's examples."""

from __future__ import annotations

import json

import pytest

from posenc.huggingface.families import READERS
from tests.huggingface.families import PAGE, RECORD, described, page, written

KEPT = json.loads(RECORD.read_text(encoding="utf-8"))
AGAIN = "python -m tests.huggingface.families"


def test_the_table_is_that_of_the_kept_run_which_has_every_family() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, written(KEPT)) == text, AGAIN
    assert set(KEPT["families"]) == set(READERS), AGAIN
    assert max(row["worst"] for row in KEPT["families"].values()) < 1e-4


@pytest.mark.more
def test_its_words_and_keys_are_those_of_today() -> None:
    for name, row in KEPT["families"].items():
        assert row == row | described(name), AGAIN
