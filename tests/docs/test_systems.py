"""The page of ideas: every step, figure, class and oracle that it names is there."""

import re
from pathlib import Path

import pytest

import posenc
from posenc_lab.explore import lesson, page

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip().strip("`") for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "systems.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "`" in line
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_what_the_page_of_ideas_names_is_there(row: list[str]) -> None:
    _, step, figure, name, oracle = row
    assert step in (*lesson.STEPS, *lesson.ASIDE)
    modules = page.modules()
    source = modules[f"posenc/figures/{figure}.js"].read_text(encoding="utf-8")
    assert re.search(rf'name: "{figure}"', source)
    assert getattr(posenc, name).__doc__
    assert (ROOT / "packages/posenc/tests/oracles" / f"{oracle}.py").is_file()


def test_every_step_but_the_last_has_an_idea() -> None:
    assert {row[1] for row in ROWS} | {"beside", "decide", "past", "shuffle"} == {*lesson.STEPS, *lesson.ASIDE}
