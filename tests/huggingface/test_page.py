"""docs/huggingface.md says what the code does; tests/docs runs its examples."""

from __future__ import annotations

import re
from pathlib import Path

from posenc.huggingface.families import READERS

PAGE = (Path(__file__).parents[2] / "docs" / "huggingface.md").read_text(encoding="utf-8")


def test_every_family_has_a_row_and_every_row_a_family() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", row))}
    assert named == set(READERS)
