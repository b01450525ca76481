"""The lesson: its text and its modules agree, every answer can be given, and each step can be read, used and passed."""

import re
from html.parser import HTMLParser
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

import posenc
from posenc.tools.explore import lesson
from posenc.tools.explore.page import explorer
from tests.explore.browser import Watched, executable, watched
from tests.explore.node import STATIC, Node
from tests.explore.test_figures import agrees
from tests.rows import first_of

LESSON = lesson.lesson()
NAMES = [step.name for step in LESSON]
DESKTOP, TELEPHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
CONTROLS = {"turn": 2, "decide": 5}  # the positions of the query and of the key; five questions

needs_browser = pytest.mark.skipif(executable() is None, reason="needs chromium: apt-get install chromium")


# --- text -----------------------------------------------------------------------------------------------------------


def words(markdown: str) -> int:
    return len(re.sub(lesson.MATH, "x", markdown).split())


def test_text_modules_and_the_list_of_steps_agree(javascript: Node) -> None:
    assert javascript("steps") == NAMES
    assert {path.stem for path in (STATIC / "steps").glob("*.js")} == set(NAMES)
    assert {path.stem for path in lesson.FOLDER.glob("*.md")} == set(NAMES)


@pytest.mark.parametrize("step", LESSON, ids=lambda step: step.name)
def test_a_text_is_short(step: lesson.Step) -> None:
    paragraphs = step.text.split("\n\n")
    assert len(paragraphs) <= 4
    assert 80 <= words(step.text) <= 160, f"{words(step.text)} words"
    assert words(step.question) <= 60
    assert all(8 <= words(said) <= 60 for said in step.answers.values())
    assert words(step.next) <= 40


@pytest.mark.parametrize("name", NAMES)
def test_a_question_is_answered_by_doing(name: str, figures: Node) -> None:
    """Every answer that has a sentence can be given, no other is, and the step does not open with the right one."""
    keys = list(next(step for step in LESSON if step.name == name).answers)
    found = figures("question", name=name)
    assert found["examples"] == {key: key for key in keys}
    assert found["opening"] in set(keys) - {"right"}


@pytest.mark.parametrize("name", NAMES)
def test_a_step_has_one_control_and_a_short_line(name: str, figures: Node) -> None:
    found = figures("figure", name=name, state="defaults")
    assert len(found["controls"]) <= CONTROLS.get(name, 1)
    assert len([line for line in found["line"].splitlines() if line]) <= 5


ORDERS = [" ".join(order) for order in permutations(["dog", "bites", "man"])]


def test_without_a_mask_no_order_changes_an_output(figures: Node) -> None:
    """And under the causal mask one order leaves that of “man” as it is, beside the given one."""
    says = {order: figures("figure", name="why", state={"order": order})["says"] for order in ORDERS}
    for order in set(ORDERS) - {"dog bites man"}:
        assert "With no mask, the output for each word is identical in every digit shown" in says[order]
    judged = figures("question", name="why", states=[{"order": order} for order in ORDERS])["states"]
    assert [order for order, key in zip(ORDERS, judged, strict=True) if key == "right"] == ["bites dog man"]


@pytest.mark.parametrize("code", ["counting", "one-hot", "binary", "waves"])
def test_each_code_is_that_of_its_python(code: str, figures: Node) -> None:
    agrees(figures("figure", name="add", state={"code": code}))


def test_what_step_2_says_of_its_codes(figures: Node) -> None:
    says = {code: figures("figure", name="add", state={"code": code})["says"] for code in ("counting", "binary")}
    assert "From position 7 to 8 the distance is 1, from 7 to 0 it is 7." in says["counting"]
    vectors = posenc.Sinusoidal(8, base=100).table(posenc.Positions.arange(16), torch.float64)[0]
    for k in range(1, 16):  # the distance of waves depends on how far apart the positions are alone
        found = (vectors[k:] - vectors[:-k]).norm(dim=1)
        assert found.max() - found.min() < 1e-12


def test_one_k_turns_the_first_clock_three_times(figures: Node) -> None:
    judged = figures("question", name="clockwork", states=[{"k": k} for k in range(33)])["states"]
    assert [k for k, key in enumerate(judged) if key == "right"] == [19]
    assert [k for k, key in enumerate(judged) if key == "other-turns"] == [0, 6, 12, 13, 25, 31, 32]


WRONG = {
    "no question": ("## Question", "## Query", "must have its title between lines of ---, a text, ## Question"),
    "the right answer is not the first": ("`right`", "`correct`", "must list `right` and then at least two others"),
    "a key of capitals": ("`hidden`", "`Hidden`", "must list its answers as lines of - `key`: sentence"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_in_a_text_is_named(fault: str, tmp_path: Path) -> None:
    right, wrong, said = WRONG[fault]
    text = (lesson.FOLDER / "why.md").read_text()
    assert right in text
    (tmp_path / "why.md").write_text(text.replace(right, wrong))
    with pytest.raises(ValueError, match=f"^why.md {re.escape(said)}"):
        lesson.read(tmp_path / "why.md")


def test_an_unknown_step_and_an_unknown_formula_are_named(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text((lesson.FOLDER / "why.md").read_text())
    with pytest.raises(ValueError, match=r"^other.md must be named after one of why, add"):
        lesson.read(tmp_path / "other.md")
    with pytest.raises(ValueError, match=r"has a command that is not understood"):
        lesson.html(r"$\nothing{x}$")


# --- without JavaScript ---------------------------------------------------------------------------------------------


class Headings(HTMLParser):
    """The headings of the second order, as text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.within = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "h2":
            self.found.append("")
        self.within = tag == "h2" or (self.within and tag == "span")

    def handle_endtag(self, tag: str) -> None:
        self.within = self.within and tag != "h2"

    def handle_data(self, data: str) -> None:
        if self.within:
            self.found[-1] += data


def test_the_page_has_the_text_of_all_steps_in_their_order(plain: dict[str, Any]) -> None:
    text = explorer(plain, server=False)
    parser = Headings()
    parser.feed(text)
    assert parser.found == [f"{step.number} {step.title}" if step.number else step.title for step in LESSON]
    for step in LESSON:
        for said in step.answers.values():
            assert lesson.html_of_line(said) in text


@needs_browser
@pytest.mark.more
def test_the_text_is_shown_without_javascript(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False, viewport=TELEPHONE)
    page = context.new_page()
    page.goto(address)
    assert page.locator("main > noscript").inner_text().startswith("The figures need JavaScript.")
    tops = [
        page.locator(f'[data-step="{name}"] .text').bounding_box()["y"]
        for name in NAMES
        if page.locator(f'[data-step="{name}"]').is_visible()
    ]
    assert len(tops) == len(NAMES)
    assert tops == sorted(tops)
    assert not page.locator("#theme, .late").filter(visible=True).count()
    context.close()


@needs_browser
@pytest.mark.more
def test_scripts_that_do_not_arrive_are_said(browser: Any, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.route("**/static/**", lambda route: route.abort())
    page.goto(address)
    said = page.locator("main > .late")
    assert not said.is_visible()
    said.wait_for(state="visible", timeout=8000)
    page.unroute("**/static/**")
    page.reload()
    page.wait_for_selector("[data-figure]")
    assert said.count() == 0
    context.close()


# --- in the browser -------------------------------------------------------------------------------------------------


def opened(page: Watched, address: str, name: str, state: str = "") -> Any:
    page.open(f"{address}#step={name}{state}")
    page.until_drawn(name)
    return page.page.locator("main > .step")


@needs_browser
@pytest.mark.parametrize("name", first_of(NAMES))
def test_a_step_is_accessible_and_fits(name: str, page: Watched, address: str) -> None:
    """By axe's rules, in light and dark. On a telephone the page is not wider than the screen, and the whole picture
    takes at most 45 % of its height and stays in sight above the control."""
    from axe_playwright_python.sync_playwright import Axe

    for theme in ("light", "dark"):
        opened(page, address, name, f"&theme={theme}")
        page.page.click(".check-answer")
        found = Axe().run(page.page).response["violations"]
        assert [(one["id"], [node["html"][:150] for node in one["nodes"]]) for one in found] == []
    page.page.set_viewport_size(TELEPHONE)
    page.page.wait_for_timeout(150)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
    picture = page.page.locator(".step .picture")
    shown, whole = picture.evaluate("box => [box.clientHeight, box.scrollHeight]")
    assert whole <= shown + 1, f"the picture is {whole} pixels high"
    assert shown <= 0.45 * TELEPHONE["height"] + 1
    page.page.locator(".check-answer").evaluate("one => one.scrollIntoView({ block: 'end' })")
    top = picture.bounding_box()["y"]
    assert top >= 0, f"the picture is {-top} pixels out of sight when the question is answered"


@needs_browser
def test_the_lesson_opens_first_and_answers(page: Watched, address: str) -> None:
    page.open(address)
    page.until_drawn(NAMES[0])
    said = page.page.locator(".judged")
    assert said.inner_text() == ""
    page.page.click(".check-answer")
    assert said.inner_text().startswith("Not yet. The words still stand as they were given.")
    page.page.locator(".orders button").first.focus()
    page.page.keyboard.press("ArrowRight")
    page.page.wait_for_function("() => document.querySelector('.orders button').innerText === 'bites'")
    assert page.page.locator(".orders button").all_inner_texts() == ["bites", "dog", "man"]
    page.page.wait_for_function("() => document.querySelector('.judged').textContent === ''")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Enter")
    page.page.wait_for_function("() => document.querySelector('.judged').textContent.startsWith('Right. ')")
    page.page.wait_for_function("() => location.hash === '#step=why&why.order=bites+dog+man'")


@needs_browser
@pytest.mark.more
def test_a_word_is_dragged(page: Watched, address: str) -> None:
    opened(page, address, "why")
    places = [one.bounding_box() for one in page.page.locator(".orders button").all()]
    x, y = (places[0]["x"] + 20, places[0]["y"] + 10)
    page.page.mouse.move(x, y)
    page.page.mouse.down()
    page.page.mouse.move(places[2]["x"] + 20, y, steps=6)
    page.page.mouse.up()
    assert page.page.locator(".orders button").all_inner_texts() == ["bites", "man", "dog"]


@needs_browser
@pytest.mark.more
def test_arrow_keys_links_and_the_address_go_from_step_to_step(browser: Any, address: str) -> None:
    with watched(browser) as page:
        current = '.steps [aria-current="step"]'
        opened(page, address, NAMES[0])
        page.page.keyboard.press("ArrowRight")
        page.until_drawn(NAMES[1])
        assert page.page.evaluate("location.hash") == f"#step={NAMES[1]}"
        assert page.page.evaluate("document.activeElement.tagName") == "H2"
        assert page.page.title() == f"{LESSON[1].title} · posenc"
        page.page.keyboard.press("ArrowLeft")
        page.page.wait_for_selector(f'{current} >> text="1"')
        page.page.keyboard.press("ArrowLeft")  # there is none before it
        page.page.click('.going-on [rel="next"]')
        page.page.wait_for_selector(f'{current} >> text="2"')
        page.page.go_back()
        page.page.wait_for_selector(f'{current} >> text="1"')
        page.page.click("#theme")
        page.page.click(f'.steps a[href="#step={NAMES[1]}"]')
        page.until_drawn(NAMES[1])
        assert page.page.locator("html").get_attribute("data-theme") == "dark"
        page.open(f"{address}#step=nothing")
        said = page.page.wait_for_selector("main > .error").inner_text()
        assert said.startswith("The address names a view, a step or a figure that there is not; there are start")
        assert NAMES[1] in said
        assert page.errors == []
