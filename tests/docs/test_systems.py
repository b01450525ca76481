"""The pages that lead into the lesson: every step, figure, class, oracle and paper that they name is there."""

import re
from pathlib import Path

import pytest

import posenc
from posenc.schemes.catalog import CATALOG
from posenc_lab.explore import lesson, page
from tests.docs.pages import PAGES

ROOT = Path(__file__).parents[2]
ROWS = [
    [re.sub(r"\[(\w+)\]\(.*\)", r"\1", cell.strip()).strip("`") for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "systems.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "`" in line
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_what_the_page_of_ideas_names_is_there(row: list[str]) -> None:
    _, step, figure, name, oracle = row
    assert step in (*lesson.STEPS, *lesson.ASIDE)
    modules = page.modules()
    file = f"posenc/{'steps' if figure == step else 'figures'}/{figure}.js"
    source = modules[file].read_text(encoding="utf-8")
    assert re.search(rf'name: "{figure}"', source)
    assert getattr(posenc, name).__doc__
    assert (ROOT / "packages/posenc/tests/oracles" / f"{oracle}.py").is_file()


def test_every_step_but_the_last_has_an_idea() -> None:
    assert {row[1] for row in ROWS} | {"beside", "decide", "past", "shuffle"} == {*lesson.STEPS, *lesson.ASIDE}


def test_history_is_of_the_papers_that_the_catalog_names() -> None:
    """Each scheme of the line of history stands with the first author of its paper; the years go on one by one."""
    text = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
    schemes = {entry.name: entry for entry in CATALOG}
    named = [(item, name) for item in text.split("\n- ") for name in re.findall(r"schemes\.md#([a-z]\w+)\)", item)]
    assert len(named) > 30
    for item, name in named:
        author = re.split(r"[ ,]", schemes[name].paper)[0]
        assert author in item, (name, author)
    assert re.findall(r"^## (\d+)", text, re.M) == [str(year) for year in range(2017, 2027)]


def test_the_glossary_is_in_order() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| (\w[^|]+) \|", text, re.M)[1:]
    assert words == sorted(words, key=str.lower)


def test_links_into_the_lesson_name_steps() -> None:
    """The site makes of learn/index.md#turn the page of that step."""
    found = {
        name for page in PAGES for name in re.findall(r"learn/index\.md#([\w-]+)\)", page.read_text(encoding="utf-8"))
    }
    assert found
    assert found <= {*lesson.STEPS, *lesson.ASIDE}
