"""The page in a real browser: drawn, moved, read by keyboard, from a server and from disk."""

import html
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch

import posenc
import posenc_lab
from posenc.schemes.catalog import CATALOG
from posenc_lab.explore.content import content
from posenc_lab.explore.page import explorer
from tests.compare import made_up
from tests.explore.browser import FIGURES, VIEWS, Watched, executable, served, violations, watched
from tests.rows import first_of

pytestmark = pytest.mark.skipif(executable() is None, reason="needs chromium: apt-get install chromium")

# --- figures --------------------------------------------------------------------------------------------------------

# By figure, how many canvases, drawings and tables its picture has.
COUNTED = """
    add:4/0/0 allocation:0/0/0 beside:0/1/0 bias:0/1/0 bias-by-distance:1/6/0 clocks:0/16/0 clockwork:0/12/1
    content:0/0/1 decide:0/0/0 distance-aware:2/7/0 doors:0/1/1 images:6/0/0 laws:0/0/1 length-curves:1/5/1
    longer:0/9/0 pair-layouts:1/5/0 relative-2d:6/0/0 rope-decay:2/3/0 scalings:2/12/0 schedule:0/1/1 scheme:3/6/0
    seen:3/1/0 sentence:4/0/1 similarity:3/1/0 stretch:0/8/0 table:0/1/0 turn:0/1/0 vector-table:4/2/0 which:0/0/3
    why:0/0/1 windows:3/1/0
"""
PARTS = dict(cell.split(":") for cell in COUNTED.split())

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


@pytest.mark.parametrize("figure", first_of(FIGURES))
def test_a_figure_has_its_parts_none_of_them_blank_and_moves(figure: str, page: Watched, address: str) -> None:
    page.show(address, figure)
    parts, colours, height = page.page.evaluate(PICTURE, figure)
    assert "/".join(map(str, parts)) == PARTS[figure]
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


@pytest.mark.more
def test_cells_are_read_by_arrow_keys_and_options_are_asked_for(page: Watched, address: str) -> None:
    page.show(address, "scheme", "scheme.scheme=sandwich")
    base, keys = 10_000, ("ArrowDown", "ArrowDown", "ArrowRight")
    zeros = torch.zeros(1, 4, 3, 8, dtype=torch.float64)
    for moved in (False, True):
        if moved:
            page.page.locator('[data-name="options.base"] input').focus()
            count = page.page.evaluate("posenc.timings.scheme.length")
            page.page.keyboard.press("Home")
            page.page.wait_for_function("count => posenc.timings.scheme.length > count", arg=count)
            base, keys = 2, ("ArrowRight", "ArrowLeft")
        page.page.locator(".heat canvas[role=img]").first.focus()
        for key in keys:
            page.page.keyboard.press(key)
        bias = posenc.logits(zeros, zeros, posenc.Sandwich(4, base=base))[0, 0, 2, 1].item()
        words = page.page.locator(".heat output").first.inner_text()
        assert words == f"query 2, key 1: {bias:.4g}".replace("-", "−")


@pytest.mark.more
def test_what_posenc_has_otherwise_is_said_in_sight(browser: Any, address: str) -> None:
    """A number of posenc's that differs is an error of one of the two, and no fact to fold away."""
    other = {"logits": {"shape": [1], "data": [7.0]}, "out": {"shape": [1], "data": [7.0]}}
    with watched(browser) as page:
        page.page.route("**/api/attention", lambda route: route.fulfill(json=other))
        page.show(address, "clocks")
        page.page.locator(".doubt:visible", has_text="one of the two is wrong").wait_for()
        assert page.errors == []


@pytest.mark.more
def test_some_of_many_lines_are_chosen(page: Watched, address: str) -> None:
    """By mouse, by keyboard, and by pointing, for the moment; what is read is of the lines in colour."""
    page.show(address, "bias-by-distance")
    assert page.page.locator(".lines-key:visible button").count() == 0
    assert page.page.locator(".lines-key:visible li").count() == 6
    page.show(address, "bias-by-distance", "bias-by-distance.shaw=true")
    key, read = page.page.locator(".lines-key:visible"), page.page.locator(".lines-read:visible")
    pressed = key.locator('[aria-pressed="true"]')
    assert pressed.all_inner_texts() == ["ALiBi"]
    page.page.locator(".lines:visible").focus()
    page.page.keyboard.press("ArrowRight")
    assert read.inner_text() == "distance (tokens) 1: ALiBi −0.25"
    key.get_by_role("button", name="Sandwich").focus()
    page.page.keyboard.press("Space")
    assert pressed.all_inner_texts() == ["ALiBi", "Sandwich"]
    key.get_by_role("button", name="ALiBi").click()
    key.get_by_role("button", name="KERPLE").hover()
    assert "KERPLE" in read.inner_text()
    assert pressed.all_inner_texts() == ["Sandwich"]
    page.show(address, "scheme", "scheme.options=num_heads:12&scheme.head=9")
    assert pressed.all_inner_texts() == ["head 9"]


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
        page.show(address, "rope-decay")
        there = page.page.evaluate("plots")
        for dark in (True, False, True):
            page.page.evaluate("window.posenc.drawn.clear(); document.getElementById('theme').click()")
            page.page.wait_for_selector(f"html[data-theme={'dark' if dark else 'light'}]")
            page.until_drawn("rope-decay")
        page.page.wait_for_function("there => plots === there", arg=there)
        assert there > 1


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


@pytest.mark.more
def test_the_focus_is_seen_and_stays(page: Watched, address: str) -> None:
    for figure in ("allocation", "sentence"):
        page.show(address, figure)
        stops = page.page.locator("[data-figure] :is(a, button, input, select, summary)").all()
        page.page.keyboard.press("Tab")  # from here on the focus is a keyboard's
        for stop in filter(lambda stop: stop.is_visible(), stops):
            stop.focus()
            outline = stop.evaluate("one => [getComputedStyle(one).outlineStyle, getComputedStyle(one).outlineWidth]")
            assert outline == ["solid", "3px"], stop.evaluate("one => one.outerHTML")
    page.page.locator(".picture button").nth(2).focus()
    page.page.keyboard.press("Enter")  # which draws the button anew
    page.page.wait_for_timeout(200)
    assert page.page.evaluate("document.activeElement.tagName") == "BUTTON"


@pytest.mark.more
def test_the_table_of_laws_is_one_stop_with_arrow_keys_and_all_of_it_is_on_paper(page: Watched, address: str) -> None:
    page.show(address, "laws")
    cell = "[...document.activeElement.closest('tr').cells].indexOf(document.activeElement.parentElement)"
    row = "document.activeElement.closest('tr').dataset.scheme"
    page.page.locator("[data-figure=laws] .scroll").focus()
    page.page.keyboard.press("Tab")
    first = page.page.evaluate(row)
    assert page.page.evaluate(cell) == 1
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.page.keyboard.press(key)
    second = page.page.evaluate(row)
    assert (page.page.evaluate(cell), second != first) == (2, True)
    page.page.keyboard.press("Enter")
    page.page.locator("#measurement", has_text=f"posenc laws --schemes {second}").wait_for()
    page.page.wait_for_function(f"() => location.hash.includes('laws.scheme={second}')")
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.closest('table')") is None
    page.page.keyboard.press("Shift+Tab")
    assert page.page.evaluate(row) == second
    cut = "one => [one.scrollHeight > one.clientHeight + 1, one.scrollWidth > one.clientWidth + 1]"
    frame = page.page.locator(".scroll.tall")
    assert frame.evaluate(cut) == [True, True]
    page.page.emulate_media(media="print")
    assert frame.evaluate(cut) == [False, False]


@pytest.mark.more
def test_files_of_records_are_chosen_or_dropped_and_a_wrong_one_is_named(
    browser: Any, address: str, tmp_path: Path
) -> None:
    def saved(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    good = "".join(json.dumps(record) + "\n" for record in made_up.records())
    caption = "words => document.querySelector('caption').textContent.startsWith(words)"
    with watched(browser) as page:  # which logs the answer of a refusal
        page.show(address, "length-curves")
        chooser = page.page.locator("input[type=file]")
        chooser.set_input_files([saved("wrong.jsonl", "{}\n")])
        said = "wrong.jsonl, line 1, is not a record (kind is missing)"
        page.page.locator(".drop .wrong:visible", has_text=said).wait_for()
        chooser.set_input_files([saved("one.jsonl", good), saved("two.jsonl", good)])
        page.page.wait_for_function(caption, arg="two.jsonl, ")
        assert page.page.locator("tbody tr", has_text="learned").inner_text().count("undefined") == 3
        given = page.page.evaluate_handle(
            "text => { const all = new DataTransfer(); all.items.add(new File([text], 'two.jsonl')); return all; }",
            good,
        )
        page.page.dispatch_event(".drop", "drop", {"dataTransfer": given})
        page.page.wait_for_function(caption, arg="two.jsonl (2), ")
        page.page.locator(".controls select").last.select_option(label="the final bytes")
        page.page.locator("caption", has_text="final bytes").wait_for()


# --- views and addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", first_of(VIEWS))
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


@pytest.mark.more
def test_a_view_is_drawn_without_scrolling_and_light_on_paper(page: Watched, address: str) -> None:
    """Each figure is drawn, as the page has time; for the printer at once."""
    theme, empty = "document.documentElement.dataset.theme", page.page.locator(".picture:empty")
    page.open(address)
    page.page.wait_for_selector("[data-figure]")
    page.page.click("#theme")
    page.page.click('nav a[data-view="scores"]')
    page.page.wait_for_selector('[data-figure="windows"]')
    page.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert (page.page.evaluate(theme), empty.count()) == ("light", 0)
    page.page.evaluate("posenc.drawn.clear(); dispatchEvent(new Event('afterprint'))")
    page.page.wait_for_function(
        "() => [...document.querySelectorAll('[data-figure]')].every(one => posenc.drawn.has(one.dataset.figure))"
    )
    assert (page.page.evaluate(theme), empty.count(), page.page.evaluate("scrollY")) == ("dark", 0, 0)
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"


WRONG = {
    "figure=scheme&scheme.scheme=sandwich&scheme.head=99": "scheme.head must be from 1 to 4, got 99",
    "figure=scheme&scheme.toString=1": "scheme has no toString",
    "figure=length-curves&length-curves.records=99": "records must be from 0 to",
    "figure=constructor": "names a view, a step or a figure that there is not",
    "view=nothing": "names a view, a step or a figure that there is not",
}


@pytest.mark.more
@pytest.mark.parametrize("state", WRONG)
def test_what_the_address_says_wrong_is_said_in_place(state: str, page: Watched, address: str) -> None:
    page.open(f"{address}#{state}&__proto__.scheme=found&constructor.entries=1")
    page.page.locator(".error:visible", has_text=WRONG[state]).wait_for()
    assert page.page.evaluate("[{}.scheme ?? '', typeof Object.entries]") == ["", "function"]


@pytest.mark.more
def test_the_way_back_has_what_was_there(page: Watched, address: str) -> None:
    """By the keyboard to the figures, to another view, and back to a control that had just moved."""
    page.open(f"{address}#view=length")
    page.page.wait_for_selector("[data-figure]")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Enter")
    assert page.page.evaluate("document.activeElement.tagName") == "MAIN"
    assert "#view=length" in page.page.url
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
    page.show(address, "scheme")
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
    texts, dots = page.page.locator(".step .text, .step .asked"), page.page.locator(".steps .dot")
    assert {*texts.evaluate_all("all => all.map(one => getComputedStyle(one).fontSize)")} == {"32px"}
    ends = dots.evaluate_all("all => all.map(one => one.getBoundingClientRect().right)")
    assert (len(ends), max(ends) <= 390) == (10, True)


# --- from disk ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "explorer.html"
    path.write_text(explorer(content(is_saved=True), server=False), encoding="utf-8")
    return path


@pytest.mark.parametrize("view", first_of(VIEWS))
def test_the_export_is_small_and_works_from_disk(view: str, page: Watched, exported: Path) -> None:
    assert exported.stat().st_size < 4_500_000
    page.open(f"file://{quote(str(exported))}#view={view}")
    page.page.wait_for_selector("[data-figure]")
    page.until_drawn(*page.shown())
    assert [x for x in page.requests if not x.startswith(("data:", "about:")) and exported.name not in x] == []
    assert page.page.locator("input[type=file]").count() == 0, "a file of records needs posenc"


@pytest.mark.more
def test_a_saved_page_has_a_few_settings(page: Watched, exported: Path) -> None:
    page.show(f"file://{quote(str(exported))}", "scheme", "scheme.scheme=xpos&scheme.options=base:300")
    base = page.page.locator('[data-name="options.base"] select')
    assert base.locator("option").all_inner_texts() == ["10000", "100", "1000000"]
    assert base.input_value() == "100"
    page.page.locator(".said", has_text="It is drawn with base 100 in place of 300.").wait_for()
    base.select_option("1000000")
    page.page.locator(".said", has_text="It goes by the distance alone. This saved page has a few settings").wait_for()


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


@pytest.mark.more
@pytest.mark.parametrize("sandbox", first_of(['sandbox="allow-scripts"', ""]))
@pytest.mark.parametrize("is_srcdoc", first_of([True, False]))
def test_links_of_the_lesson_work_in_a_frame(
    sandbox: str, is_srcdoc: bool, page: Watched, exported: Path, tmp_path: Path
) -> None:
    whole = html.escape(exported.read_text(encoding="utf-8"))
    source = f'srcdoc="{whole}"' if is_srcdoc else f'src="{exported.as_uri()}"'
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
            page.show(at, "clocks")
        page.page.locator("input[type=range]").first.focus()
        page.page.keyboard.press("ArrowRight")
        page.page.wait_for_selector(".doubt >> text=posenc did not check this: the server no longer answers.")
