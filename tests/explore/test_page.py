"""The page in a real browser: drawn, moved, read by keyboard, from a server and from disk."""

import html
import io
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch

import posenc
from posenc.tools.explore.page import explorer
from tests.explore.browser import FIGURES, VIEWS, Watched, executable, served, watched
from tests.rows import first_of

pytestmark = pytest.mark.skipif(executable() is None, reason="needs chromium: apt-get install chromium")

PICTURES = Path(__file__).with_name("pictures")


# --- pictures -------------------------------------------------------------------------------------------------------


def small(png: bytes, height: int | None = None) -> np.ndarray:
    """A picture 240 pixels wide: letters become grey, so that another machine's fonts do not count. With a ``height``
    it is fitted to it, where rounding would give a row more or less."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    height = height or max(1, round(240 * image.height / image.width))
    return np.asarray(image.resize((240, height), Image.Resampling.BOX), dtype=float)


def drawn(page: Watched, figure: str) -> bytes:
    """The drawing without its formulas, whose letters are of whatever mathematical font the machine has."""
    locator = page.page.locator(f'[data-figure="{figure}"] .picture')
    return locator.screenshot(mask=[locator.locator("math")], mask_color="#ffffff")


@pytest.mark.parametrize("figure", first_of(FIGURES))
def test_a_figure_looks_as_it_did_and_moves(figure: str, page: Watched, address: str) -> None:
    """The drawing alone: a mean difference of 4 of 255, which a shifted curve or other colours exceed. Pictures are
    made anew by ``python -m tests.explore.pictures``. Then its controls are moved."""
    page.open(f"{address}#figure={figure}&theme=light")
    page.until_drawn(figure)
    picture = drawn(page, figure)
    stored = small((PICTURES / f"{figure}.png").read_bytes())
    height = len(small(picture))
    assert abs(height - len(stored)) <= 4, f"the picture is {height} high, and was {len(stored)}"
    difference = np.abs(small(picture, len(stored)) - stored).mean()
    assert difference < 4, f"the mean difference to the stored picture is {difference:.1f} of 255"
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


@pytest.mark.more
@pytest.mark.parametrize(("figure", "label"), first_of([("product", "tokens"), ("vector-table", "positions")]))
def test_a_slider_is_dragged_all_the_way(figure: str, label: str, page: Watched, address: str) -> None:
    """By mouse, where each step changes what other controls may be."""
    page.open(f"{address}#figure={figure}")
    page.until_drawn(figure)
    slider = page.page.locator(".control", has_text=label).first.locator("input")
    place = slider.bounding_box()
    assert place is not None
    row, values = place["y"] + place["height"] / 2, set()
    page.page.mouse.move(place["x"] + 10, row)
    page.page.mouse.down()
    for n in range(1, 9):
        page.page.mouse.move(place["x"] + 10 + n * (place["width"] - 20) / 8, row)
        page.page.wait_for_timeout(80)
        values.add(slider.input_value())
    page.page.mouse.up()
    assert len(values) >= 6, f"the slider stood at {sorted(values)}"


@pytest.mark.more
def test_the_focus_stays_on_a_button_that_is_drawn_anew(page: Watched, address: str) -> None:
    page.open(f"{address}#figure=sentence")
    page.until_drawn("sentence")
    page.page.locator(".picture button").nth(2).focus()
    page.page.keyboard.press("Enter")
    page.page.wait_for_timeout(200)
    assert page.page.evaluate("document.activeElement.tagName") == "BUTTON"


def test_pictures_that_differ_are_told_apart() -> None:
    """The comparison can fail: no figure's stored picture passes for another's."""
    stored = {figure: small((PICTURES / f"{figure}.png").read_bytes()) for figure in FIGURES}
    for one in FIGURES:
        for other in FIGURES:
            rows = min(len(stored[one]), len(stored[other]))
            alike = abs(len(stored[one]) - len(stored[other])) <= 4
            assert one == other or not alike or np.abs(stored[one][:rows] - stored[other][:rows]).mean() > 4


# --- views ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", first_of(VIEWS))
def test_a_view_is_accessible_and_fits(view: str, page: Watched, address: str) -> None:
    """By axe's rules, in light and dark; on a telephone nothing is wider than the screen; no other host is asked."""
    from axe_playwright_python.sync_playwright import Axe

    for dark in (False, True):
        page.open(f"{address}#view={view}&theme={'dark' if dark else 'light'}")
        page.page.wait_for_selector("[data-figure]")
        page.until_drawn(*page.shown())
        results = Axe().run(page.page)
        said = [
            f"{found['id']}: {found['help']}: " + "; ".join(node["html"][:150] for node in found["nodes"][:4])
            for found in results.response["violations"]
        ]
        assert said == []
    page.page.set_viewport_size({"width": 360, "height": 780})
    page.page.wait_for_timeout(200)
    page.page.evaluate("document.querySelectorAll('.checked').forEach(one => (one.open = true))")
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 360
    boxes = "[...document.querySelectorAll('.line pre')].filter(one => one.scrollWidth > one.clientWidth).length"
    assert page.page.evaluate(boxes) == 0, "code runs out of its box"
    tabs = page.page.locator("header nav a")
    assert len({tab.bounding_box()["y"] for tab in tabs.all()}) == 1, "the names of the views take more than a row"  # type: ignore[index]
    places = tabs.evaluate_all("all => all.map(one => one.getBoundingClientRect().toJSON())")
    now = places[VIEWS.index(view)]
    assert 0 <= now["left"] < now["right"] <= 360, "the name of the view is out of sight"
    others = [url for url in page.requests if not url.startswith((address, "data:", "about:"))]
    assert others == []


@pytest.mark.parametrize("figure", ["predict-channel", "predict-far", "predict-order"])
def test_a_question_is_seen_once_until_it_is_answered(figure: str, page: Watched, address: str) -> None:
    page.open(f"{address}#figure={figure}")
    page.until_drawn(figure)
    width = "() => document.querySelector('.said').getBoundingClientRect().width"
    page.page.wait_for_function("() => document.querySelector('.said').textContent")
    assert page.page.locator(".said").text_content() == page.page.locator(".question legend").text_content()
    assert page.page.evaluate(width) <= 1
    page.page.locator(".question input").first.check()
    page.page.wait_for_function(f"{width} > 100")


@pytest.mark.more
def test_a_view_is_whole_without_scrolling_and_on_paper(page: Watched, address: str) -> None:
    """Each figure is drawn, as the page has time; for the printer at once, and light."""
    page.open(f"{address}#view=scores&theme=dark")
    page.page.wait_for_selector("[data-figure]")
    page.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.page.locator(".picture:empty").count() == 0
    page.page.evaluate("posenc.drawn.clear(); dispatchEvent(new Event('afterprint'))")
    assert page.page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.page.wait_for_function(
        "() => [...document.querySelectorAll('[data-figure]')].every(one => posenc.drawn.has(one.dataset.figure))"
    )
    assert page.page.locator(".picture:empty").count() == 0
    assert page.page.evaluate("scrollY") == 0


def test_every_law_is_on_paper(page: Watched, address: str) -> None:
    page.open(f"{address}#figure=laws")
    page.until_drawn("laws")
    cut = "one => [one.scrollHeight > one.clientHeight + 1, one.scrollWidth > one.clientWidth + 1]"
    frame = page.page.locator(".scroll.tall")
    assert frame.evaluate(cut) == [True, True]
    page.page.emulate_media(media="print")
    assert frame.evaluate(cut) == [False, False]


@pytest.mark.more
def test_speed_and_precision_are_behind_a_button(page: Watched, address: str) -> None:
    page.open(f"{address}#figure=clocks")
    page.until_drawn("clocks")
    facts = page.page.locator(".facts")
    page.page.wait_for_selector(".agreed:not(:empty)", state="attached")
    assert not facts.locator("p").first.is_visible()
    facts.locator("summary").focus()
    page.page.keyboard.press("Enter")
    assert facts.inner_text().count("ms.") == 1
    assert "posenc computed" in facts.inner_text()
    assert not page.page.locator(".doubt").is_visible()


@pytest.mark.more
def test_what_posenc_has_otherwise_is_said_in_sight(browser: Any, address: str) -> None:
    """A number of posenc's that differs is an error of one of the two, and no fact to fold away."""
    other = {"logits": {"shape": [1], "data": [7.0]}, "out": {"shape": [1], "data": [7.0]}}
    with watched(browser) as page:
        page.page.route("**/api/attention", lambda route: route.fulfill(json=other))
        page.open(f"{address}#figure=clocks")
        page.until_drawn("clocks")
        doubt = page.page.locator(".doubt")
        doubt.wait_for(state="visible")
        assert "one of the two is wrong" in doubt.inner_text()
        assert page.errors == []


# --- controls -------------------------------------------------------------------------------------------------------


@pytest.mark.more
def test_a_cell_is_read_by_the_arrow_keys(page: Watched, address: str) -> None:
    page.open(f"{address}#figure=seen")
    page.until_drawn("seen")
    page.page.locator(".heat canvas[role=img]").first.focus()
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowRight")
    words = page.page.locator(".heat output").first.inner_text()
    zeros = torch.zeros(1, 4, 3, 8, dtype=torch.float64)
    bias = posenc.logits(zeros, zeros, posenc.Sandwich(4))[0, 0, 2, 1].item()
    assert words == f"query 2, key 1: {bias:.4g}".replace("-", "−")


@pytest.mark.more
def test_the_focus_is_seen_on_every_stop_of_the_tab_key(page: Watched, address: str) -> None:
    for figure in ("allocation", "sentence"):
        page.open(f"{address}#figure={figure}")
        page.until_drawn(figure)
        stops = page.page.locator("[data-figure] :is(a, button, input, select, summary)").all()
        page.page.keyboard.press("Tab")  # from here on the focus is a keyboard's
        for stop in filter(lambda stop: stop.is_visible(), stops):
            stop.focus()
            outline = stop.evaluate("one => [getComputedStyle(one).outlineStyle, getComputedStyle(one).outlineWidth]")
            assert outline == ["solid", "3px"], stop.evaluate("one => one.outerHTML")


@pytest.mark.more
def test_the_table_of_laws_is_one_stop_with_arrow_keys(page: Watched, address: str) -> None:
    page.open(f"{address}#figure=laws")
    page.until_drawn("laws")
    cell = "[...document.activeElement.closest('tr').cells].indexOf(document.activeElement.parentElement)"
    row = "document.activeElement.closest('tr').dataset.scheme"
    page.page.locator("[data-figure=laws] .scroll").focus()
    page.page.keyboard.press("Tab")
    first = page.page.evaluate(row)
    assert page.page.evaluate(cell) == 1
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.page.keyboard.press(key)
    assert page.page.evaluate(cell) == 2
    second = page.page.evaluate(row)
    assert second != first
    page.page.keyboard.press("Enter")
    page.page.wait_for_selector("#measurement")
    assert page.page.evaluate(row) == second
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.closest('table')") is None
    page.page.keyboard.press("Shift+Tab")
    assert page.page.evaluate(row) == second
    heads = "document.querySelector('.laws thead').getBoundingClientRect().bottom"
    names = "document.querySelector('.laws tbody th').getBoundingClientRect().right"
    for key in ("End", *["ArrowDown"] * 30, *["ArrowUp"] * 30, "Home"):
        page.page.keyboard.press(key)
        place = page.page.evaluate("(({ left, top }) => [left, top])(document.activeElement.getBoundingClientRect())")
        left, top = page.page.evaluate(f"[{names}, {heads}]")
        assert place[0] >= left - 1, "the cell is under the names of the schemes"
        assert place[1] >= top - 1, "the cell is under the heads of the columns"


@pytest.mark.more
def test_what_the_address_says_wrong_is_said_in_place(browser: Any, address: str) -> None:
    with watched(browser) as page:
        page.open(f"{address}#figure=seen&seen.head=99")
        page.until_drawn("seen")
        assert page.page.locator(".error").inner_text() == "seen.head must be from 1 to 4, got 99"
        page.open(f"{address}#view=nothing")
        page.page.wait_for_selector(".error >> text=there are")
        assert "names a view, a step or a figure that there is not" in page.page.locator(".error").first.inner_text()


@pytest.mark.more
def test_an_address_cannot_reach_what_objects_inherit(page: Watched, address: str) -> None:
    page.open(f"{address}#figure=seen&__proto__.scheme=found&constructor.entries=1&seen.head=2")
    page.until_drawn("seen")
    assert page.page.evaluate("[{}.scheme ?? '', typeof Object.entries]") == ["", "function"]
    assert page.page.locator(".control output").first.inner_text() == "2"
    page.open(f"{address}#figure=constructor")
    page.page.wait_for_selector(".error >> text=there are")
    page.open(f"{address}#figure=seen&seen.toString=1")
    page.page.wait_for_selector(".error >> text=seen has no toString")


PLOTS = """
globalThis.plots = 0;
const [add, remove] = [addEventListener, removeEventListener].map((each) => each.bind(window));
window.addEventListener = (event, ...rest) => (add(event, ...rest), (plots += event === "dppxchange"));
window.removeEventListener = (event, ...rest) => (remove(event, ...rest), (plots -= event === "dppxchange"));
"""


@pytest.mark.more
def test_plots_that_have_left_the_page_are_let_go(browser: Any, address: str) -> None:
    """Each plot of uPlot's listens to the window for changes of the ratio of pixels, as long as it is there."""
    with watched(browser) as page:
        page.page.add_init_script(PLOTS)
        page.open(f"{address}#figure=rope-decay")
        page.until_drawn("rope-decay")
        there = page.page.evaluate("plots")
        for dark in (True, False, True):
            page.page.evaluate("window.posenc.drawn.clear(); document.getElementById('theme').click()")
            page.page.wait_for_selector(f"html[data-theme={'dark' if dark else 'light'}]")
            page.until_drawn("rope-decay")
        page.page.wait_for_function("there => plots === there", arg=there)
        assert there > 1
        assert page.errors == []


@pytest.mark.more
def test_light_and_dark_by_the_button(page: Watched, address: str) -> None:
    page.open(address)
    page.page.wait_for_selector("[data-figure]")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.page.evaluate(paper) == "rgb(255, 255, 255)"
    page.page.click("#theme")
    assert page.page.evaluate(paper) == "rgb(20, 23, 28)"
    assert "theme=dark" in page.page.url


@pytest.mark.more
def test_the_keyboard_skips_to_the_figures(page: Watched, address: str) -> None:
    page.open(f"{address}#view={VIEWS[1]}")
    page.page.wait_for_selector("[data-figure]")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Enter")
    assert page.page.evaluate("document.activeElement.tagName") == "MAIN"
    assert f"#view={VIEWS[1]}" in page.page.url


@pytest.mark.more
def test_going_back_shows_what_was_there(page: Watched, address: str) -> None:
    page.open(f"{address}#view={VIEWS[0]}")
    page.page.wait_for_selector("[data-figure]")
    page.page.click(f'nav a[data-view="{VIEWS[1]}"]')
    page.page.wait_for_selector(f'nav a[data-view="{VIEWS[1]}"][aria-current]')
    page.page.go_back()
    page.page.wait_for_selector(f'nav a[data-view="{VIEWS[0]}"][aria-current]')


@pytest.mark.more
def test_a_control_that_has_just_moved_is_there_on_the_way_back(page: Watched, address: str) -> None:
    page.open(f"{address}#view=length")
    page.page.wait_for_selector("[data-figure]")
    page.page.click('nav a[data-view="sentence"]')
    page.until_drawn("sentence")
    page.page.locator(".control input[type=checkbox]").first.focus()
    page.page.evaluate("document.activeElement.click(); document.querySelector('nav a[data-view=laws]').click()")
    page.page.wait_for_selector('nav a[data-view="laws"][aria-current]')
    page.page.go_back()
    page.page.wait_for_function("() => location.hash.startsWith('#view=sentence&sentence.')")


@pytest.mark.more
def test_escape_goes_from_full_screen_to_where_the_figure_stands(page: Watched, address: str) -> None:
    page.open(f"{address}#view=scores")
    page.until_drawn("scheme", "windows")
    page.page.locator('[href="#figure=windows"]').click()
    page.page.wait_for_selector("body.alone")
    page.page.keyboard.press("Escape")
    page.page.wait_for_selector("body:not(.alone)")
    assert page.page.evaluate("document.activeElement.getAttribute('href')") == "#figure=windows"
    assert page.page.evaluate("scrollY > 500")
    page.page.keyboard.press("Escape")  # there is nothing more to leave
    assert page.page.evaluate("location.hash") == "#view=scores"
    page.open(f"{address}#figure=scheme")
    page.until_drawn("scheme")
    page.page.locator("[role=combobox]").press("ArrowDown")
    page.page.keyboard.press("Escape")  # closes the list alone
    page.page.wait_for_selector("[role=listbox]", state="hidden")
    assert page.page.evaluate("location.hash") == "#figure=scheme"


@pytest.mark.more
def test_text_grows_as_a_reader_has_set_it(page: Watched, address: str) -> None:
    page.open(f"{address}#step=turn")
    page.until_drawn("turn")
    page.page.set_viewport_size({"width": 390, "height": 844})
    page.page.add_style_tag(content=":root { font-size: 200%; }")
    sizes = page.page.locator(".step .text, .step .asked").evaluate_all(
        "all => all.map(one => getComputedStyle(one).fontSize)"
    )
    assert {*sizes} == {"32px"}
    ends = page.page.locator(".steps .dot").evaluate_all("all => all.map(one => one.getBoundingClientRect().right)")
    assert len(ends) == 10
    assert max(ends) <= 390


@pytest.mark.more
def test_in_forced_colours_one_view_is_marked(browser: Any, address: str) -> None:
    context = browser.new_context(forced_colors="active")
    page = context.new_page()
    page.goto(f"{address}#view=scores")
    page.wait_for_selector("header nav [aria-current]")
    lines = page.locator("header nav a").evaluate_all("all => all.map(one => getComputedStyle(one).borderBottomColor)")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert [line != paper for line in lines] == [view == "scores" for view in VIEWS]
    context.close()


# --- from disk ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(shown: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "explorer.html"
    path.write_text(explorer(shown, server=False), encoding="utf-8")
    return path


def test_the_export_is_below_3_mb(exported: Path) -> None:
    assert exported.stat().st_size < 3_000_000


@pytest.mark.parametrize("view", first_of(VIEWS))
def test_the_export_works_from_disk(view: str, page: Watched, exported: Path) -> None:
    page.open(f"file://{quote(str(exported))}#view={view}")
    page.page.wait_for_selector("[data-figure]")
    page.until_drawn(*page.shown())
    asked = [url for url in page.requests if not url.startswith(("data:", "about:")) and exported.name not in url]
    assert asked == []


@pytest.mark.more
def test_a_frame_in_a_notebook_answers(page: Watched, tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.html"
    notebook.write_text(posenc.show(posenc.RoPE(16) + posenc.ALiBi(6))._repr_html_(), encoding="utf-8")
    page.open(f"file://{quote(str(notebook))}")
    frame = page.page.frame_locator("iframe")
    frame.locator("input[type=range]").focus()
    page.page.keyboard.press("End")
    assert frame.locator(".control output").inner_text() == "6"
    frame.locator(".said", has_text="RoPE + ALiBi: score, for 65 tokens and 6 heads that differ.").wait_for()


@pytest.mark.more
@pytest.mark.parametrize("sandbox", first_of(['sandbox="allow-scripts"', ""]))
@pytest.mark.parametrize("is_srcdoc", first_of([True, False]))
def test_links_of_the_lesson_work_in_a_frame(
    sandbox: str, is_srcdoc: bool, page: Watched, exported: Path, tmp_path: Path
) -> None:
    source = (
        f'srcdoc="{html.escape(exported.read_text(encoding="utf-8"))}"' if is_srcdoc else f'src="{exported.as_uri()}"'
    )
    around = tmp_path / "around.html"
    around.write_text(f"<!doctype html><iframe {sandbox} {source} width=1000 height=700></iframe>", encoding="utf-8")
    page.open(around.as_uri())
    frame = page.page.frame_locator("iframe")
    frame.locator('.going-on [rel="next"]').click()
    frame.locator('.steps [aria-current="step"]', has_text="2").wait_for()
    page.page.keyboard.press("ArrowRight")
    frame.locator('.steps [aria-current="step"]', has_text="3").wait_for()
    frame.locator('nav a[data-view="sentence"]').click()
    frame.locator('[data-figure="sentence"] canvas').first.wait_for()


@pytest.mark.more
def test_a_server_that_has_ended_is_said(browser: Any, shown: dict[str, Any]) -> None:
    with watched(browser) as page:
        with served(shown) as at:
            page.open(f"{at}#figure=product")
            page.until_drawn("product")
        page.page.locator("input[type=range]").first.focus()
        page.page.keyboard.press("ArrowRight")
        page.page.wait_for_selector(".doubt >> text=posenc did not check this: the server no longer answers.")
