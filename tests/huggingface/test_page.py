"""The table of families in docs/huggingface.md is that of the last run; tests/docs runs the page's examples."""

from __future__ import annotations

import json

import pytest

from posenc.huggingface.families import READERS
from tests.huggingface.families import PAGE, RECORD, compare, described, page, written

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


@pytest.mark.more
@pytest.mark.parametrize(
    "name", ["deit", "distilbert", "esm", "megatron-bert", "siglip_vision_model", "xlm-roberta-xl"]
)
def test_a_table_is_that_of_the_model(name: str) -> None:
    _, worst = compare(name)
    assert worst <= {"esm": 2000 * 2**-22}.get(name, 2**-46)
