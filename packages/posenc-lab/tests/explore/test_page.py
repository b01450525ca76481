"""The page in a real browser: drawn, moved, read by keyboard, from a server and from disk."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import posenc
import posenc_lab
from posenc.schemes.catalog import CATALOG
from posenc_lab.explore.page import explorer
from tests.explore.browser import VIEWS, Watched, executable, violations

pytestmark = pytest.mark.skipif(executable() is None, reason="needs chromium: apt-get install chromium")

# --- figures --------------------------------------------------------------------------------------------------------

# By figure, one of each kind, how many canvases, drawings and tables its picture has.
PARTS = {
    "scheme": [3, 6, 0],
    "clockwork": [0, 12, 1],
    "length-curves": [1, 5, 1],
    "relative-2d": [6, 0, 0],
    "sentence": [4, 0, 1],
    "models": [1, 4, 0],
    "segments": [6, 0, 1],
}

PICTURE = """name => {
    const box = document.querySelector(`[data-figure="${name}"] .picture`);
    const shown = (what) => [...box.querySelectorAll(what)].filter((one) => one.getClientRects().length);
    const colours = (canvas) => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size;
    };
    const canvases = shown("canvas");
    const parts = [canvases, shown("svg"), shown("table")].map((all) => all.length);
    return [parts, Math.min(9, ...canvases.map(colours)), box.clientHeight];
}"""


@pytest.mark.parametrize("figure", PARTS)
def test_a_figure_has_its_parts_none_of_them_blank_and_moves(figure: str, page: Watched, address: str) -> None:
    page.show(address, figure)
    parts, colours, height = page.page.evaluate(PICTURE, figure)
    assert parts == PARTS[figure]
    assert colours > 2, "a canvas is blank"
    assert height > 80
    move(page, figure)


def move(page: Watched, figure: str) -> None:
    """Every slider to both of its ends by the keyboard, and every choice: a step each, without an error; the address
    says what was set."""
    section = page.page.locator(f'[data-figure="{figure}"]')
    steps = "name => window.posenc.timings[name].length"
    sliders = section.locator(".controls input[type=range]")
    for n in range(sliders.count()):
        for key in ("End", "Home"):
            if n >= sliders.count():  # a control may take others away
                break
            slider = sliders.nth(n)
            before, count = slider.input_value(), page.page.evaluate(steps, figure)
            slider.focus()
            page.page.keyboard.press(key)
            if slider.input_value() != before:
                page.page.wait_for_function(
                    "([name, count]) => window.posenc.timings[name].length > count", arg=[figure, count]
                )
                assert page.page.evaluate("document.activeElement.type") == "range", "the slider has lost the focus"
                if key == "End":
                    page.page.wait_for_function("name => location.hash.includes(`${name}.`)", arg=figure)
            words = section.locator(".error").inner_text()
            assert not words, f"{slider.get_attribute('aria-valuetext')}: {words}"
    choices = section.locator(".controls select")
    for n in range(choices.count()):
        for value in choices.nth(n).locator("option").evaluate_all("all => all.map(one => one.value)")[:6]:
            if n >= choices.count():
                break
            choices.nth(n).select_option(value)
            page.page.wait_for_timeout(40)
            words = section.locator(".error").inner_text()
            assert not words, f"{value}: {words}"


# --- controls -------------------------------------------------------------------------------------------------------


@pytest.mark.more
def test_a_scheme_is_found_by_typing_and_chosen_by_the_keyboard(page: Watched, address: str) -> None:
    page.show(address, "scheme")
    chooser = page.page.get_by_role("combobox", name="scheme")
    options = page.page.locator(".chooser [role=option]")
    chooser.focus()
    page.page.keyboard.press("ArrowDown")
    assert options.count() == len(CATALOG)
    assert violations(page) == []
    labels = options.evaluate_all("all => all.slice(0, 6).map(one => one.getAttribute('aria-label'))")
    assert labels == ["NoPE", "Sinusoidal", "Learned", "RoPE", "ALiBi", "T5"]
    page.page.keyboard.type("no such scheme")
    assert options.inner_text() == "Nothing is named “no such scheme”"
    page.page.keyboard.press("Escape")
    assert chooser.input_value() == "ALiBi"
    for typed, found in (("bloom", "ALiBi"), ("ker", "KERPLE")):  # a model that has it, and its name
        page.page.keyboard.type(typed)
        assert options.get_attribute("aria-label") == found
        page.page.keyboard.press("Enter")
    assert chooser.get_attribute("aria-expanded") == "false"
    page.page.wait_for_function("() => location.hash.includes('scheme.scheme=kerple')")
    assert chooser.input_value() == "KERPLE"
    page.page.set_viewport_size({"width": 360, "height": 780})
    chooser.click()
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 360


# --- trained models -------------------------------------------------------------------------------------------------


def test_models_read_what_is_typed_and_posenc_agrees(page: Watched, address: str) -> None:
    """By the keyboard alone: another text, the words shuffled, YaRN on RoPE, another byte."""
    page.show(address, "models")
    said = page.page.locator(".said")
    said.get_by_text("RoPE suffers most").wait_for()
    page.page.locator(".agreed", has_text="of these numbers too").wait_for(state="attached")
    page.page.locator("textarea").focus()
    page.page.keyboard.press("Control+A")
    page.page.keyboard.type("Now is the winter.")
    said.get_by_text("ends within the 128 bytes").wait_for()
    assert page.page.locator(".letters span").count() == len("Now is the winter.")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Enter")
    said.get_by_text("notices least").wait_for()
    for _ in range(2):
        page.page.keyboard.press("Tab")
    page.page.keyboard.press("Space")
    page.page.locator("th", has_text="RoPE with YaRN").wait_for()
    page.page.locator(".letters span").first.click()
    page.page.locator(".map-title", has_text="byte 1, “").wait_for()
    assert violations(page) == []
    page.page.set_viewport_size({"width": 390, "height": 844})
    page.page.wait_for_timeout(200)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390


# --- views and addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS[1:3])
def test_a_view_is_accessible_and_fits(view: str, page: Watched, address: str) -> None:
    """By axe's rules, in light and dark; on a telephone nothing is wider than the screen; no other host is asked."""
    for theme in ("light", "dark"):
        page.open(f"{address}#view={view}&theme={theme}")
        page.page.wait_for_selector("[data-figure]")
        page.until_drawn(*page.shown())
        assert violations(page) == []
    page.page.set_viewport_size({"width": 360, "height": 780})
    page.page.wait_for_timeout(200)
    page.page.evaluate("document.querySelectorAll('.checked').forEach(one => (one.open = true))")
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 360
    boxes = "[...document.querySelectorAll('.line pre')].filter(one => one.scrollWidth > one.clientWidth).length"
    assert page.page.evaluate(boxes) == 0, "code runs out of its box"
    places = page.page.locator("header nav a").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().toJSON())"
    )
    assert len({place["y"] for place in places}) == 1, "the names of the views take more than a row"
    now = places[VIEWS.index(view)]
    assert 0 <= now["left"] < now["right"] <= 360, "the name of the view is out of sight"
    assert [url for url in page.requests if not url.startswith((address, "data:", "about:"))] == []


WRONG = {
    "figure=scheme&scheme.scheme=sandwich&scheme.head=99": "scheme.head must be from 1 to 4, got 99",
    "figure=scheme&scheme.toString=1": "scheme has no toString",
    "figure=length-curves&length-curves.records=99": "records must be from 0 to",
    "figure=constructor": "names no existing view, step or figure",
    "view=nothing": "names no existing view, step or figure",
}


@pytest.mark.more
@pytest.mark.parametrize("state", WRONG)
def test_what_the_address_says_wrong_is_said_in_place(state: str, page: Watched, address: str) -> None:
    page.open(f"{address}#{state}&__proto__.scheme=found&constructor.entries=1")
    page.page.locator(".error:visible", has_text=WRONG[state]).wait_for()
    assert page.page.evaluate("[{}.scheme ?? '', typeof Object.entries]") == ["", "function"]


# --- from disk ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, plain: dict[str, Any]) -> Path:
    path = tmp_path_factory.mktemp("export") / "explorer.html"
    path.write_text(explorer(plain, server=False), encoding="utf-8")
    return path


@pytest.mark.parametrize("view", VIEWS[:1])
def test_the_export_is_small_and_works_from_disk(view: str, page: Watched, exported: Path) -> None:
    assert exported.stat().st_size < 4_000_000
    page.open(f"file://{quote(str(exported))}#view={view}")
    page.page.wait_for_selector("[data-figure]")
    page.until_drawn(*page.shown())
    page.show(page.page.url.split("#")[0], "models")  # whose weights are in the file
    assert [x for x in page.requests if not x.startswith(("data:", "about:")) and exported.name not in x] == []
    assert page.page.locator("input[type=file]").count() == 0, "a file of records needs posenc"


@pytest.mark.more
def test_a_frame_in_a_notebook_answers(page: Watched, tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.html"
    notebook.write_text(posenc_lab.show(posenc.RoPE(16) + posenc.ALiBi(6))._repr_html_(), encoding="utf-8")
    page.open(f"file://{quote(str(notebook))}")
    frame = page.page.frame_locator("iframe")
    frame.locator("input[type=range]").focus()
    page.page.keyboard.press("End")
    assert frame.locator(".control output").inner_text() == "6"
    frame.locator(".said", has_text="RoPE + ALiBi: score, for 65 tokens and 6 heads that differ.").wait_for()
