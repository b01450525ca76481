"""Plots in the browser: whole-number ticks, waves through their dots, and lines that are chosen out of many."""

from typing import Any

import pytest

from tests.explore.browser import Watched, executable, watched

pytestmark = [
    pytest.mark.skipif(executable() is None, reason="needs chromium: apt-get install chromium"),
    pytest.mark.more,
]

OTHERS = ("inkling", "shaw", "relative_1d", "transformer_xl", "deberta")
MANY = "".join(f"&bias-by-distance.{name}=true" for name in OTHERS)


def test_of_many_lines_some_are_chosen(page: Watched, address: str) -> None:
    """By mouse, by keyboard, and by pointing, for the moment; what is read is of the lines in colour."""
    page.open(f"{address}#figure=bias-by-distance{MANY}")
    page.until_drawn("bias-by-distance")
    key, read = page.page.locator(".lines-key:visible"), page.page.locator(".lines-read:visible")
    pressed = key.locator('[aria-pressed="true"]')
    assert pressed.all_inner_texts() == ["ALiBi"]
    page.page.locator(".lines:visible").focus()
    page.page.keyboard.press("ArrowRight")
    assert read.inner_text() == "distance (tokens) 1: ALiBi −0.25"
    key.get_by_role("button", name="Sandwich").focus()
    page.page.keyboard.press("Space")
    assert pressed.all_inner_texts() == ["ALiBi", "Sandwich"]
    assert "Sandwich" in read.inner_text()
    key.get_by_role("button", name="ALiBi").click()
    assert pressed.all_inner_texts() == ["Sandwich"]
    key.get_by_role("button", name="KERPLE").hover()
    assert "KERPLE" in read.inner_text()
    assert pressed.all_inner_texts() == ["Sandwich"]


def test_few_lines_are_all_in_colour(page: Watched, address: str) -> None:
    page.open(f"{address}#figure=bias-by-distance")
    page.until_drawn("bias-by-distance")
    assert page.page.locator(".lines-key:visible button").count() == 0
    assert page.page.locator(".lines-key:visible li").count() == 6


def test_the_head_that_is_chosen_is_in_colour(page: Watched, address: str) -> None:
    page.open(f"{address}#figure=scheme&scheme.options=num_heads:12&scheme.head=9")
    page.until_drawn("scheme")
    pressed = page.page.locator('.lines-key [aria-pressed="true"]')
    assert pressed.all_inner_texts() == ["head 9"]
    page.page.locator('[data-name="head"] input').focus()
    page.page.keyboard.press("ArrowRight")
    pressed.filter(has_text="head 10").wait_for()
    assert pressed.count() == 1
    assert page.page.locator(".lines-key button").count() == 12


def test_numbers_along_a_matrix_are_whole_and_as_many_as_fit(page: Watched, address: str) -> None:
    page.open(f"{address}#figure=product&product.tokens=36&product.shift=100")
    page.until_drawn("product")
    for way in ("across", "down"):
        numbers = page.page.locator(f".heat-ticks.{way}").first.locator("span").all_inner_texts()
        assert numbers == [str(n) for n in range(100, 136, 5)]
    page.open(f"{address}#figure=sentence")
    page.until_drawn("sentence")
    assert page.page.locator(".heat-ticks span").count() == 0, "words stand there"


WRITTEN = """() => {
    const write = CanvasRenderingContext2D.prototype.fillText;
    globalThis.written = [];
    CanvasRenderingContext2D.prototype.fillText = function (words, x, y) {
        written.push([words, y]);
        return write.call(this, words, x, y);
    };
}"""


def test_ticks_of_what_is_counted_are_whole(browser: Any, address: str) -> None:
    """Four pairs of channels, between which there is room for fractions."""
    with watched(browser) as page:
        page.page.add_init_script(f"({WRITTEN})()")
        page.open(f"{address}#figure=scalings&scalings.dim=8")
        page.until_drawn("scalings")
        rows: dict[float, set[str]] = {}
        for words, y in page.page.evaluate("written"):
            rows.setdefault(y, set()).add(words)
        assert {"0", "1", "2", "3"} in rows.values(), "the numbers in one row, which are those of the axis"
