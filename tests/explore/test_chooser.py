"""A scheme is chosen by typing, by the keyboard and by the mouse, as a screen reader expects of a combobox."""

import pytest

from posenc.schemes.catalog import CATALOG
from tests.explore.browser import Watched, executable

pytestmark = pytest.mark.skipif(executable() is None, reason="needs chromium: apt-get install chromium")

FIRST = ["NoPE", "Sinusoidal", "Learned", "RoPE", "ALiBi", "T5"]


@pytest.mark.more
def test_a_scheme_is_found_by_typing_and_chosen_by_the_keyboard(page: Watched, address: str) -> None:
    page.open(f"{address}#figure=scheme")
    page.until_drawn("scheme")
    chooser = page.page.get_by_role("combobox", name="scheme")
    assert chooser.input_value() == "ALiBi"
    chooser.focus()
    page.page.keyboard.press("ArrowDown")
    options = page.page.locator(".chooser [role=option]")
    assert options.count() == len(CATALOG)
    assert [options.nth(n).get_attribute("aria-label") for n in range(6)] == FIRST
    assert page.page.locator(".chooser [aria-selected=true]").get_attribute("aria-label") == "ALiBi"
    page.page.keyboard.type("ker")
    assert options.all_inner_texts()[0].startswith("KERPLE")
    assert page.page.locator(".chooser [role=status]").inner_text() == f"1 of {len(CATALOG)}"
    assert chooser.get_attribute("aria-activedescendant") == options.first.get_attribute("id")
    page.page.keyboard.press("Enter")
    assert chooser.get_attribute("aria-expanded") == "false"
    page.page.wait_for_function("() => location.hash.includes('scheme.scheme=kerple')")
    assert chooser.input_value() == "KERPLE"


@pytest.mark.more
def test_a_chooser_gives_back_what_was_chosen_and_finds_by_models(page: Watched, address: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page.open(f"{address}#figure=scheme")
    page.until_drawn("scheme")
    chooser = page.page.get_by_role("combobox", name="scheme")
    chooser.click()
    page.page.keyboard.type("no such scheme")
    assert page.page.locator(".chooser [role=option]").inner_text() == "Nothing is named “no such scheme”"
    page.page.keyboard.press("Enter")
    page.page.keyboard.press("Escape")
    assert chooser.input_value() == "ALiBi"
    page.page.keyboard.type("bloom")
    assert page.page.locator(".chooser [role=option]").get_attribute("aria-label") == "ALiBi"
    page.page.keyboard.press("Escape")
    chooser.click()
    assert Axe().run(page.page).response["violations"] == []
    page.page.locator(".chooser [aria-label=T5]").click()
    page.page.wait_for_function("() => location.hash.includes('scheme.scheme=t5')")
    page.page.set_viewport_size({"width": 360, "height": 780})
    chooser.click()
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 360
    page.page.keyboard.press("Tab")
    assert not page.page.get_by_role("listbox").is_visible()
    assert chooser.input_value() == "T5"
