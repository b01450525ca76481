"""The lesson: its text and its modules agree, every answer can be given, and each step can be read, used and passed."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import posenc
from posenc.schemes.catalog import CATALOG
from posenc_lab.explore import data, lesson
from posenc_lab.explore.models import header
from posenc_lab.laws.laws import rotary_bound
from tests.explore.browser import Watched, executable, violations
from tests.explore.node import STATIC, Node
from tests.explore.test_figures import agrees

LESSON = lesson.lesson()
NAMES = [step.name for step in LESSON]
TELEPHONE = {"width": 390, "height": 844}

needs_browser = pytest.mark.skipif(executable() is None, reason="needs chromium: apt-get install chromium")


# --- text -----------------------------------------------------------------------------------------------------------


def words(markdown: str) -> int:
    return len(re.sub(lesson.MATH, "x", markdown).split())


def test_text_modules_and_the_list_of_steps_agree(javascript: Node) -> None:
    assert javascript("steps") == NAMES
    assert {path.stem for path in (STATIC / "steps").glob("*.js")} == set(NAMES)
    assert {path.stem for path in lesson.FOLDER.glob("*.md")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_question_is_answered_by_doing(name: str, figures: Node) -> None:
    """Every answer that has a sentence can be given, no other is, and the step does not open with the right one."""
    step = next(step for step in LESSON if step.name == name)
    keys = list(step.answers)
    found = figures("question", name=name)
    assert found["examples"] == {key: key for key in keys}
    assert found["opening"] in set(keys) - {"right"}
    assert found["predicted"]


def test_the_bound_of_two_vectors_is_what_the_text_says() -> None:
    """By Abel's sum a score is at most sqrt(d) / 2 B(r) times the largest change of q k from pair to pair, then 0."""
    theta = posenc.RoPE(64).frequencies()[0][0].double()
    text = " ".join((lesson.FOLDER / "decay.md").read_text().split())
    b = float(rotary_bound(theta, torch.tensor([60])))
    most = [
        float(4 * torch.cat([2 * torch.exp(-1j * peak * theta), torch.zeros(1)]).diff().abs().max())
        for peak in (0, 60, 255)
    ]
    assert f"{b:.2f} times {most[1]:.2f}" in text
    assert f"It falls to {b * most[1]:.0f} at distance 60" in text
    assert f"the number is {most[0]:.0f} for the peak at 0 and nearly {most[2]:.0f} for one far away" in text


def test_numbers_of_the_text_are_those_of_the_records() -> None:
    texts = {name: " ".join((lesson.FOLDER / f"{name}.md").read_text().split()) for name in NAMES}
    (pieces,) = [one for one in data.records()[0]["measures"] if one["kind"] == "windows"]
    at = {length: pieces["curves"]["alibi"][n][0] for n, length in enumerate(pieces["lengths"])}
    assert f"from {at[128]:.2f} at 128 bytes to {at[1024]:.2f} at 1,024" in texts["longer"]
    extended = next(one for one in data.records() if one["task"] == "extend")["measures"][0]
    n = extended["lengths"].index(8192)
    none, yarn, ntk, linear = (f"{extended['curves'][name][n][0]:.3f}" for name in ("none", "yarn", "ntk", "linear"))
    said = f"{none} bits per byte as it was, {yarn} with YaRN, {ntk} with NTK, and {linear} with interpolation"
    assert said in texts["stretch"]
    shaw = data.tables()["shaw"]
    products = torch.tensor(shaw["queries"]) @ torch.tensor(shaw["key_table"]).mT / 24**0.5
    (e_low, comma_low), (e_high, comma_high) = ([f"{x:.1f}" for x in ends] for ends in products.aminmax(dim=1))
    said = f"from {comma_low} to {comma_high}, where those of the “e” go from {e_low} to {e_high}"
    assert said.replace("-", "−") in texts["bias"]


def test_the_quiz_asks_of_every_step() -> None:
    questions = lesson.quiz()
    assert {one["step"] for one in questions} == set(lesson.STEPS)
    assert len(questions) == len(lesson.STEPS)
    assert all(len(set(one["answers"])) == 3 for one in questions)


# --- the board of properties ----------------------------------------------------------------------------------------

WHOLE = lesson.scores(LESSON[len(lesson.STEPS) - 1])
PROPERTIES = [one["name"] for one in WHOLE["properties"]]
BOARD = {row["title"]: dict(zip(PROPERTIES, row["cells"], strict=True)) for row in WHOLE["rows"]}
SCHEMES = {
    "none": "nope",
    "Sinusoid": "sinusoidal",
    "Learned": "learned",
    "RoPE": "rope",
    "ALiBi": "alibi",
    "T5": "t5",
    "Shaw": "shaw",
}


def test_the_board_fills_as_the_steps_go() -> None:
    filled = []
    for step in LESSON[: len(lesson.STEPS)]:
        cells = [verdict for row in lesson.scores(step)["rows"] for verdict, _ in row["cells"]]
        filled.append(sum(map(bool, cells)))
    assert filled == sorted(filled)
    assert 0 < filled[0] < filled[-1] == 5 * len(BOARD)
    assert {verdict for row in BOARD.values() for verdict, _ in row.values()} == {"yes", "no", "partly"}
    assert not any(all(verdict == "yes" for verdict, _ in row.values()) for row in BOARD.values())


@pytest.mark.parametrize("title", SCHEMES)
def test_the_board_says_what_was_measured(title: str) -> None:
    """Losses are those of the study's first record, or Shaw's decoder, at the trained length and at the longest. What
    is learned, and what takes any number of coordinates, is the catalog's to say."""
    name, row = SCHEMES[title], BOARD[title]
    entry = next(entry for entry in CATALOG if entry.name == name)
    (sliding,) = [one for one in data.records()[0]["measures"] if one["kind"] == "sliding"]
    at = [sliding["lengths"].index(length) for length in (128, 1024)]
    measured = [(sliding["curves"][name][n] or [None])[0] for n in at] if name in sliding["curves"] else None
    before, after = measured or [data.tables()[name]["bits"][length] for length in ("128", "1024")]
    verdict, why = row["longer"]
    assert (verdict == "yes") == (after is not None and after < before + 0.05)
    assert header()["configuration"]["steps"] == 4 * data.records()[0]["steps"]
    rope = header()["models"]["rope"]["bits"]["float"]
    beside = f"RoPE {rope['128']:.2f} → {rope['1024']:.2f} there"
    once = "" if measured else f"; trained once, on plays, four times as long: {beside}"
    assert after is None or why == f"{before:.2f} → {after:.2f}{once}"
    assert (row["deterministic"][0] == "yes") == (entry.learned == "nothing")
    assert entry.axes != "any" or row["dimensions"][0] == "yes"


@needs_browser
def test_a_wrong_answer_of_the_quiz_leads_to_its_step(page: Watched, address: str) -> None:
    page.open(f"{address}#step=decide")
    page.until_drawn("decide")
    wrong, right = (page.page.locator(".quiz li").first.locator("button").nth(n) for n in (0, 1))
    right.click()
    assert page.page.locator(".quiz > [role=status]").inner_text() == "1 of 1 answered are right; 9 are left."
    assert page.page.locator(".quiz .judged").first.inner_text() == f"Right. {lesson.quiz()[0]['why']}"
    wrong.click()
    assert page.page.locator(".quiz > [role=status]").inner_text() == "0 of 1 answered are right; 9 are left."
    assert [one.inner_text() for one in page.page.locator(".quiz [aria-pressed=true]").all()] == [wrong.inner_text()]
    page.page.locator(".quiz li a").click()
    page.until_drawn("why")


@pytest.mark.parametrize("code", ["counting", "fraction", "one-hot", "binary", "waves"])
def test_each_code_is_that_of_its_python(code: str, figures: Node) -> None:
    agrees(figures("figure", name="add", state={"code": code}))


@pytest.mark.parametrize(
    ("file", "right", "wrong", "said"),
    [
        (
            "why.md",
            "## Question",
            "## Query",
            "must have its title between lines of ---, a text, ## Predict and ## Question",
        ),
        ("why.md", "`right`", "`correct`", "must list `right` and then at least two others"),
        ("why.md", "`hidden`", "`Hidden`", "must list its answers as lines of - `key`: sentence"),
        ("why.md", "None of them. |", "None of them.", "must have an answer, a bar and its explanation in 'right'"),
        ("other.md", "`right`", "`right`", "must be named after one of why, add"),
    ],
)
def test_what_is_wrong_in_a_text_is_named(file: str, right: str, wrong: str, said: str, tmp_path: Path) -> None:
    text = (lesson.FOLDER / "why.md").read_text()
    assert right in text
    (tmp_path / file).write_text(text.replace(right, wrong))
    with pytest.raises(ValueError, match=f"^{file} {re.escape(said)}"):
        lesson.read(tmp_path / file)


def test_an_unknown_formula_is_named() -> None:
    with pytest.raises(ValueError, match=r"has a command that is not understood"):
        lesson.html(r"$\nothing{x}$")


# --- in the browser -------------------------------------------------------------------------------------------------


IN_ORDER = "words => [...document.querySelectorAll('.orders button')].map(one => one.textContent).join(' ') === words"


def opened(page: Watched, address: str, name: str, state: str = "") -> Any:
    page.open(f"{address}#step={name}{state}")
    page.until_drawn(name)
    return page.page.locator("main > .step")


@needs_browser
@pytest.mark.parametrize("name", NAMES[4:5])
def test_a_step_is_accessible_and_fits(name: str, page: Watched, address: str) -> None:
    """By axe's rules, in light and dark. On a telephone the page is not wider than the screen, the whole picture stands
    above its controls and covers nothing, and a word that is tapped brings it into sight."""
    for theme in ("light", "dark"):
        opened(page, address, name, f"&theme={theme}")
        page.page.click(".check-answer")
        assert violations(page) == []
    page.page.set_viewport_size(TELEPHONE)
    page.page.wait_for_timeout(150)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
    picture = page.page.locator(".step .picture")
    assert picture.evaluate("box => box.clientHeight >= box.scrollHeight - 1")
    page.page.locator(".check-answer").evaluate("one => one.scrollIntoView({ block: 'end' })")
    controls = page.page.locator(".step .controls").first
    assert picture.bounding_box()["y"] + picture.bounding_box()["height"] <= controls.bounding_box()["y"]
    page.page.evaluate("scrollTo(0, 0)")
    page.page.locator("dfn").first.click()
    assert page.page.evaluate("scrollY") > 0
    assert 0 <= picture.bounding_box()["y"] < TELEPHONE["height"] / 2


@needs_browser
def test_the_lesson_opens_first_and_answers(page: Watched, address: str) -> None:
    page.open(address)
    page.until_drawn(NAMES[0])
    page.page.locator(".predicted button").first.click()
    foreseen = page.page.locator(".predicted .judged")
    assert foreseen.inner_text().startswith("The picture shows otherwise. To attention")
    page.page.wait_for_function(IN_ORDER, arg="man bites dog")
    page.open(f"{address}#step=why")
    page.until_drawn(NAMES[0])
    said = page.page.locator(".asked .judged")
    assert said.inner_text() == ""
    page.page.click(".check-answer")
    assert said.inner_text().startswith("Not yet. The words are still in the given order.")
    page.page.locator(".orders button").first.focus()
    page.page.keyboard.press("ArrowRight")
    page.page.wait_for_function(IN_ORDER, arg="bites dog man")
    page.page.wait_for_function("() => document.querySelector('.asked .judged').textContent === ''")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Enter")
    page.page.wait_for_function("() => document.querySelector('.asked .judged').textContent.startsWith('Right. ')")
    assert page.page.locator(".steps a.done").count() == 1
    page.page.wait_for_function("() => location.hash === '#step=why&why.order=bites+dog+man'")
    places = [one.bounding_box() for one in page.page.locator(".orders button").all()]
    x, y = (places[0]["x"] + 20, places[0]["y"] + 10)
    page.page.mouse.move(x, y)
    page.page.mouse.down()
    page.page.mouse.move(places[2]["x"] + 20, y, steps=6)
    page.page.mouse.up()
    page.page.wait_for_function(IN_ORDER, arg="dog man bites")


# --- trained models within steps ------------------------------------------------------------------------------------

TRAINED = {
    "why": ("Shuffle the words", "NoPE notices least"),
    "bias": ("", "ends within the 128 bytes"),
    "longer": ("", "RoPE suffers most"),
    "stretch": ("YaRN on RoPE", "With YaRN, factor 4"),
}


@needs_browser
@pytest.mark.parametrize(
    "name", ["why", "stretch", *(pytest.param(x, marks=pytest.mark.more) for x in ("bias", "longer"))]
)
def test_a_step_has_trained_models_that_are_read_when_they_come_into_sight(
    name: str, page: Watched, address: str
) -> None:
    page.page.set_viewport_size(TELEPHONE)
    opened(page, address, name)
    page.page.wait_for_timeout(300)
    assert not [url for url in page.requests if "/models/" in url]
    page.until_drawn(f"{name}-models")
    assert {url.rpartition("/")[2] for url in page.requests if "/models/" in url} == {
        "nope.bin",
        "rope.bin",
        "alibi.bin",
        "t5.bin",
    }
    section = page.page.locator(f'[data-figure="{name}-models"]')
    pressed, said = TRAINED[name]
    if pressed:
        section.locator("button, label", has_text=pressed).first.click()
    section.locator(".said", has_text=said).wait_for()
    assert violations(page) == []
    assert page.page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]


# --- parts of the pictures ------------------------------------------------------------------------------------------

BOUND = {step.name: set(lesson.PART.findall(step.text)) for step in LESSON if lesson.PART.search(step.text)}
LIT = """([name, also]) => [
    ...document.querySelectorAll(`[data-part~="${name}"], ${also}[data-name="${name}"]`)
].map((one) => {
    const { filter, boxShadow } = getComputedStyle(one);
    return filter !== "none" || boxShadow !== "none";
})"""


@needs_browser
@pytest.mark.parametrize("name", BOUND)
def test_a_word_and_its_part_of_the_picture_light_each_other(name: str, page: Watched, address: str) -> None:
    """By pointer and by keyboard; and of the word nothing else is lit. A control that is pointed at needs no light."""
    opened(page, address, name)
    for part in {part for _, part in BOUND[name]}:
        word = page.page.locator(f'dfn[data-part="{part}"]').first
        pictured = page.page.locator(f':is(.picture [data-part~="{part}"], [data-part~="{part}"]:is(.line, .beneath))')
        control = page.page.locator(f'.control[data-name="{part}"]')
        is_question = name == "decide" and control.count()  # of its words, some are controls alone
        assert pictured.count() or is_question, f"{part} is not in the picture"
        for use in (word.hover, word.focus):
            use()
            assert all(page.page.evaluate(LIT, [part, ".control"]))
            word.blur()
            page.page.mouse.move(0, 0)
            page.page.wait_for_function(f"asked => !({LIT})(asked).some(Boolean)", arg=[part, ".control"])
        shown = pictured if pictured.count() else control
        shown.first.dispatch_event("pointerover")
        assert all(page.page.evaluate(LIT, [part, ".control" if pictured.count() else "dfn"]))
        page.page.mouse.move(0, 1)


@needs_browser
@pytest.mark.parametrize(
    ("name", "number", "by", "state"),
    [
        ("turn", 0, (60, -20), r"turn\.query=1[345]$"),
        ("turn", 1, (30, 60), r"turn\.key=0$"),
        ("turn", 2, (50, 0), r"turn\.query=1[567]$"),
        ("bias", 0, (0, 70), r"bias\.head=1$"),
        ("table", 0, (60, 0), r"table\.position=2[345]$"),
        ("longer", 1, (60, 0), r"longer\.tokens=1[12]\d{3}$"),
        ("longer", 4, (-25, 0), r"longer\.tokens=3[456]\d\d$"),
        ("stretch", 0, (0, -30), r"stretch\.factor=1[3456]$"),
        ("stretch", 1, (0, -30), r"stretch\.base=[56]\d{4}$"),
        ("clockwork", 1, (0, 40), r"clockwork\.k=1[234]$"),
    ],
)
def test_arrows_and_curves_are_dragged(
    name: str, number: int, by: tuple[int, int], state: str, page: Watched, address: str
) -> None:
    opened(page, address, name)
    place = page.page.locator(".picture .dragged").nth(number).bounding_box()
    assert place
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    page.page.mouse.move(x, y)
    page.page.mouse.down()
    page.page.mouse.move(x + by[0], y + by[1], steps=8)
    page.page.mouse.up()
    page.page.wait_for_function("state => new RegExp(state).test(location.hash)", arg=state)


@needs_browser
def test_a_pair_and_a_slope_are_chosen_by_a_click(page: Watched, address: str) -> None:
    for name, number, state in (("turn", 5, "turn.pair=5"), ("bias", 6, "bias.head=8")):
        opened(page, address, name)
        page.page.locator(".picture .chosen-by-click").nth(number).dispatch_event("click")
        page.page.wait_for_function("state => location.hash.endsWith(state)", arg=state)


@needs_browser
def test_the_skew_goes_on_by_steps_lines_and_keys(page: Watched, address: str, figures: Node) -> None:
    """Without motion, as these pages are, nothing plays. The address has the moment, and may be anyone's."""
    opened(page, address, "grid", "&grid.moment=2.5")
    skew = page.page.locator(".skew")
    assert skew.get_by_text("Play").is_hidden()

    def reaches(moment: str, said: str) -> None:
        page.page.wait_for_function("moment => location.hash.endsWith(`grid.moment=${moment}`)", arg=moment)
        assert skew.locator(".ends").inner_text().startswith(said)

    skew.get_by_text("Step ▸").click()
    reaches("3", "35: zeros at the end")
    skew.get_by_text("x = x[:4, 3:]").click()
    reaches("5", "4 × 4: ")
    assert skew.locator("[aria-pressed=true]").inner_text() == "x = x[:4, 3:]"
    skew.locator("input").focus()
    page.page.keyboard.press("ArrowLeft")
    reaches("4.95", "4 × 4: ")
    skew.get_by_text("◂ Step").click()
    reaches("4", "5 × 7: ")
    for refused in (9, -1):
        with pytest.raises(AssertionError, match=rf"grid\.moment must be from 0 to 5, got {refused}"):
            figures("figure", name="grid", state={"moment": refused})
        page.open(f"{address}#step=grid&grid.moment={refused}")  # without an error of the page's own
        page.page.locator(".error", has_text=f"got {refused}").wait_for()


@needs_browser
def test_the_skew_plays_while_the_question_is_answered(page: Watched, address: str) -> None:
    """With motion. Steps add up, what is said stays, a hand on the slider stops it."""
    page.page.emulate_media(reduced_motion="no-preference")
    try:
        opened(page, address, "grid")
        skew = page.page.locator(".skew")
        slider = skew.locator("input")
        for _ in range(3):
            skew.get_by_text("Step ▸").click()
        page.page.wait_for_function("() => location.hash.endsWith('grid.moment=3')")
        skew.get_by_role("button", name="Play").click()
        page.page.locator(".check-answer").click()
        said = page.page.locator(".asked .judged").inner_text()
        assert said.startswith("Not yet.")
        page.page.wait_for_function("() => Number(document.querySelector('.skew input').value) > 3.2")
        assert page.page.locator(".asked .judged").inner_text() == said
        skew.get_by_role("button", name="Pause").wait_for()
        slider.focus()
        page.page.keyboard.press("Home")
        skew.get_by_role("button", name="Play").wait_for()
        page.page.wait_for_function("() => location.hash === '#step=grid'")
    finally:
        page.page.emulate_media(reduced_motion="reduce")


@needs_browser
def test_words_in_another_order_are_read_out_and_undone_where_the_button_stands(page: Watched, address: str) -> None:
    opened(page, address, "why")
    page.until_drawn("why-models")
    card = page.page.locator('[data-figure="why-models"]')
    button, read = card.get_by_role("button", name="Shuffle the words"), card.locator(".beneath .ends")
    typed, place = read.inner_text(), button.bounding_box()
    button.click()
    page.page.wait_for_function("() => document.querySelector('.trained .ends').textContent.startsWith('Shuffled')")
    assert sorted(read.inner_text().split()[3:]) == sorted(typed.split()[2:])
    assert button.bounding_box() == place
    card.locator("select").select_option("only who can prevent forest fires")
    page.page.wait_for_function("() => document.querySelector('.trained .ends').textContent.endsWith('forest fires')")
