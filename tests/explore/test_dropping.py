"""Records that are named or dropped in, and the cells of the laws, in a real browser."""

import json
from pathlib import Path
from typing import Any

import pytest

from posenc.tools.explore.content import content
from posenc.tools.explore.page import explorer
from tests.compare import made_up
from tests.explore.browser import Watched, executable

pytestmark = pytest.mark.skipif(executable() is None, reason="needs chromium: apt-get install chromium")


def saved(folder: Path, name: str, records: list[dict[str, Any]]) -> Path:
    (folder / name).mkdir(exist_ok=True)
    path = folder / name / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def exported(folder: Path, **given: Any) -> str:
    path = folder / "explorer.html"
    path.write_text(explorer(content(**given), server=False), encoding="utf-8")
    return f"file://{path}"


CURVES, COST = ('[data-figure="length-curves"]', '[data-figure="length-cost"]')


@pytest.mark.more
def test_what_ships_is_drawn_and_then_the_files_that_are_chosen(page: Watched, tmp_path: Path) -> None:
    """From disk, without a server: both figures show what was chosen in one, and a wrong file is named in place."""
    shipped = content()["records"]
    page.open(f"{exported(tmp_path)}#view=length")
    page.until_drawn("length-curves", "length-cost")
    curves = page.page.locator(CURVES)
    assert curves.locator("canvas").first.is_visible()
    assert curves.locator("caption").inner_text().startswith(f"{shipped[0]['name']}, sliding windows")
    assert shipped[0]["verdict"] in curves.inner_text()

    good = saved(tmp_path, "one", made_up.records())
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("{}\n")
    chooser = curves.locator("input[type=file]")
    chooser.set_input_files([str(wrong)])
    said = curves.locator(".drop .wrong")
    said.wait_for(state="visible")
    assert said.inner_text() == "wrong.jsonl, line 1, is not a record (kind is missing)"

    chooser.set_input_files([str(good), str(saved(tmp_path, "two", made_up.records(seeds=(0, 1))))])
    page.page.wait_for_function(
        f"() => document.querySelector('{CURVES} caption').textContent.startsWith('records.jsonl (2), ')"
    )
    assert not said.is_visible()
    assert curves.locator("canvas").first.is_visible()
    assert "records.jsonl (2), sliding windows" in curves.locator("caption").inner_text()
    row = curves.locator("tbody tr", has_text="learned").inner_text()
    assert row.count("undefined") == 3
    assert page.page.locator(f"{COST} tbody tr").count() == len(made_up.SCHEMES)
    curves.locator(".controls select").first.select_option(str(len(shipped)))
    page.page.wait_for_function(
        f"() => document.querySelector('{CURVES} caption').textContent.startsWith('records.jsonl, ')"
    )


@pytest.mark.more
def test_a_file_that_is_dropped_is_drawn(page: Watched, tmp_path: Path) -> None:
    page.open(f"{exported(tmp_path)}#figure=length-curves")
    page.until_drawn("length-curves")
    text = saved(tmp_path, "one", made_up.records()).read_text()
    given = page.page.evaluate_handle(
        "text => { const all = new DataTransfer(); all.items.add(new File([text], 'records.jsonl')); return all; }",
        text,
    )
    page.page.dispatch_event(f"{CURVES} .drop", "drop", {"dataTransfer": given})
    page.page.wait_for_function(
        f"() => document.querySelector('{CURVES} caption').textContent.startsWith('records.jsonl, ')"
    )


@pytest.mark.more
def test_records_that_are_named_are_drawn(page: Watched, tmp_path: Path) -> None:
    folder = saved(tmp_path, "run", made_up.records(seeds=(0, 1))).parent
    at = exported(tmp_path, records=[folder])
    page.open(f"{at}#view=length")
    page.until_drawn("length-curves", "length-cost")
    assert page.page.locator(f"{CURVES} .below > .line code").inner_text() == f"posenc explore --records {folder}"
    cells = page.page.locator(f"{CURVES} tbody tr", has_text="alibi").inner_text()
    value = content(records=[folder])["records"][0]["measures"][0]["curves"]["alibi"][-1]
    assert f"{value[0]:.3f}" in cells
    assert f"{value[1]:.2f}–{value[2]:.2f}" in cells
    page.page.locator(f"{CURVES} .controls select").last.select_option(label="the final bytes")
    page.page.wait_for_function(f"() => document.querySelector('{CURVES} caption').textContent.includes('final bytes')")
    page.open(f"{at}#figure=length-curves&length-curves.records=99")
    page.page.wait_for_selector(".error:not([hidden])")
    assert (
        f"records must be from 0 to {len(content()['records'])}, got 99"
        in page.page.locator(".error:visible").inner_text()
    )


@pytest.mark.more
def test_a_cell_of_the_laws_opens_by_the_keyboard(page: Watched, tmp_path: Path) -> None:
    page.open(f"{exported(tmp_path)}#figure=laws")
    page.until_drawn("laws")
    known = content()
    alibi = next(entry for entry in known["catalog"] if entry["name"] == "alibi")
    assert page.page.locator("tbody tr").count() == len(known["catalog"])
    law = list(known["law_tables"].values())[1][0]
    column = [each for laws in known["law_tables"].values() for each in laws].index(law)
    button = page.page.locator('tr[data-scheme="alibi"] button').nth(column)
    button.focus()
    page.page.keyboard.press("Enter")
    page.page.wait_for_selector("#measurement")
    words = page.page.locator("#measurement").inner_text()
    assert alibi["measured"][law]["words"] in words
    assert known["laws"][law]["says"] in words
    assert "posenc laws --schemes alibi" in words
    assert button.get_attribute("aria-expanded") == "true"
    assert page.page.evaluate("document.activeElement.getAttribute('aria-controls')") == "measurement"
    page.page.wait_for_function("() => location.hash.includes('laws.scheme=alibi')")
    page.page.keyboard.press("Enter")
    page.page.wait_for_selector("#measurement", state="detached")
    page.page.locator(".controls select").first.select_option("add")
    page.page.wait_for_function("() => document.querySelectorAll('tbody tr').length < 10")


@pytest.mark.more
def test_which_scheme_changes_with_what_is_asked(page: Watched, tmp_path: Path) -> None:
    page.open(f"{exported(tmp_path)}#figure=which&which.longer=yes")
    page.until_drawn("which")
    told = page.page.locator('ul[aria-label="Evidence for"] > li').all_inner_texts()
    assert any(words.startswith("ALiBi") for words in told)
    links = page.page.locator(".picture a").evaluate_all("all => all.map(one => [one.href, one.target])")
    assert links
    assert all(href.startswith("https://") and target == "_blank" for href, target in links)
    page.page.get_by_label("Is there a causal mask?").select_option("encoder")
    page.page.wait_for_function("() => location.hash.includes('which.for=encoder')")
    assert page.page.locator('ul[aria-label="First choice"]').inner_text().startswith("Why: They distinguish order")
    assert "No evidence here of which of two words comes first" in page.page.locator(".picture").inner_text()
