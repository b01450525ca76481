"""The numbers and words of the lesson's text are those of its figures, of posenc, and of the shipped records."""

import math
from typing import Any

import pytest
import torch

import posenc
from posenc.schemes.t5 import T5
from posenc.tools.explore import data, lesson
from tests.explore.browser import Watched, executable
from tests.explore.node import Node
from tests.explore.test_figures import run

STEPS = {step.name: step for step in lesson.lesson()}
TEXT = {name: " ".join(f"{step.text} {step.answers}".split()) for name, step in STEPS.items()}


@pytest.fixture(scope="module")
def figure(figures: Node) -> Any:
    """What a figure says in a state."""
    return lambda name, **state: figures("figure", name=name, state=state)


@pytest.mark.parametrize("position", [32, 39])
def test_the_words_at_the_edge_of_the_table_are_those_of_posenc(position: int, figure: Any) -> None:
    found = figure("table", position=position)
    with pytest.raises(posenc.PositionError) as refused:
        run(found["line"])
    assert f"posenc says: {refused.value}." in found["says"]
    assert found["compared"] is None


def test_the_question_of_turn_has_the_numbers_that_it_opens_with(figure: Any) -> None:
    says = figure("turn")["says"]
    asked = STEPS["turn"].question
    assert "between them are 59°" in says
    assert "59° between the arrows" in asked
    assert "the score is 2.56" in says
    assert "a score of 2.56" in asked


def test_an_arrow_pushes_the_other_along(javascript: Node, figure: Any) -> None:
    figure("turn")
    moved = javascript("figure", name="turn", state={"query": 7, "key": 3}, change=["key", 20])
    assert moved["values"] == {"query": 20, "key": 20}
    moved = javascript("figure", name="turn", state={"query": 7, "key": 3}, change=["query", 1])
    assert moved["values"] == {"query": 1, "key": 1}


def test_the_answers_of_bias_have_its_numbers(figure: Any) -> None:
    assert figure("bias", scheme="steep")["says"].endswith("the bias is −3, so the weight is multiplied by 0.05.")
    assert "$e^{-3}$ = 0.05" in STEPS["bias"].answers["right"]
    assert figure("bias", scheme="gentle")["says"].endswith("multiplied by 0.69.")
    assert "0.69" in STEPS["bias"].answers["gentle"]


@pytest.mark.parametrize("scheme", ["none", "steep", "gentle", "buckets", "shaw"])
def test_every_bias_is_posencs(scheme: str, figure: Any) -> None:
    found = figure("bias", scheme=scheme)
    computed = run(found["line"]).detach()
    assert (computed - found["compared"]).abs().max() < 1e-12
    assert (computed[0] == computed[1]).all() == (scheme != "shaw")  # Shaw's depends on the query


def test_weights_under_alibi_stay_where_the_query_is_further_on(figure: Any) -> None:
    near, far = (figure("beside", query=query)["says"].partition("under RoPE ")[2] for query in (8, 40))
    assert near.partition("under ALiBi ")[2] == far.partition("under ALiBi ")[2] != ""
    assert near != far


def test_t5_has_one_bucket_from_113_on() -> None:
    t5 = T5(1)
    assert t5.edges[-1] == 113
    assert "from 113 on into its last bucket" in TEXT["longer"]


def test_a_turn_of_pair_6() -> None:
    theta = posenc.RoPE(16).frequencies()[0][0]
    turns = 2047 * theta / (2 * math.pi)
    assert round(2 * math.pi / theta[6].item()) == 6283
    assert "about 6,283 tokens for one turn, and training showed it a third" in TEXT["longer"]
    assert turns[6] == pytest.approx(1 / 3, abs=0.01)
    new = [k for k in range(8) if turns[k] < 1]
    assert new == [6, 7]


def test_rope_gets_worse_past_its_length_and_the_others_do_not() -> None:
    """In the first comparison on text, which the figure shows, by more than the intervals."""
    first = next(record for record in data.records() if record["task"] == "text")
    (sliding,) = [each for each in first["measures"] if each["kind"] == "sliding"]
    assert sliding["lengths"][1:] == [128, 256, 512, 1024]
    assert "The loss of RoPE rises soon after the trained length, that of ALiBi and T5 does not" in TEXT["longer"]
    _, trained, *longer = sliding["curves"]["rope"]
    assert all(low > trained[2] for _, low, _, _ in longer)
    for scheme in ("alibi", "t5"):
        _, (_, low, high, _), *longer = sliding["curves"][scheme]
        assert all(low < mean < high for mean, *_ in longer)


def frequencies(scaling: Any) -> torch.Tensor:
    return posenc.RoPE(16, scaling=scaling).frequencies()[0][0]


def test_what_each_scaling_divides_by() -> None:
    plain = frequencies(None)
    linear, ntk, yarn = (
        plain / frequencies(scaling)
        for scaling in (
            posenc.scalings.PositionInterpolation(4),
            posenc.scalings.NTKAware(4),
            posenc.scalings.YaRN(4, 2048),
        )
    )
    assert linear.tolist() == pytest.approx([4.0] * 8)
    assert (ntk[0], ntk[7]) == (1, pytest.approx(4))
    assert all(1 < x < 4 for x in ntk[1:7])
    assert yarn[:3].tolist() == [1, 1, 1]
    assert all(1 < x < 4 for x in yarn[3:6])
    assert yarn[6:].tolist() == pytest.approx([4, 4])
    assert "keeps pairs 0 to 2 exactly, divides pairs 6 and 7 by 4" in TEXT["stretch"]
    assert (2048 * plain[5] / (2 * math.pi)) > 1  # "had seen their whole circle in training"
    degrees = [round(math.degrees(theta[0])) for theta in (plain, plain / linear)]
    assert "{}° away in training and is {}° away now".format(*degrees) in TEXT["stretch"]


def test_the_layers_of_llama_4_and_gemma_3() -> None:
    llama, gemma = posenc.schedules.llama4(), posenc.schedules.gemma3()
    far = [layer for layer, (_, window) in enumerate(llama) if window is None]
    assert far[:3] == [3, 7, 11]
    assert "Every fourth (3, 7, 11, ..., counted from 0) has no position" in TEXT["stretch"]
    assert {window.size for _, window in llama if isinstance(window, posenc.Chunk)} == {8192}
    bases = [scheme.base for scheme, _ in gemma][:6]
    assert bases == [10_000] * 5 + [1_000_000]
    assert (
        "five layers with a window and base 10,000, then one with the whole text and base 1,000,000" in TEXT["stretch"]
    )


def test_the_gates_of_a_picked_word() -> None:
    counted, kept = torch.tensor([6.0, -6.0]).sigmoid().tolist()
    assert f"$g$ = {counted:.3f} and $f$ = {kept:.3f}" in TEXT["content"]


@pytest.mark.more
@pytest.mark.skipif(executable() is None, reason="needs chromium: apt-get install chromium")
def test_words_are_picked_and_questions_answered_by_keyboard(page: Watched, address: str) -> None:
    said = page.page.locator(".judged")

    def checked() -> str:
        page.page.locator(".check-answer").focus()
        page.page.keyboard.press("Enter")
        return said.inner_text()[:9]

    page.open(f"{address}#step=content")
    page.until_drawn("content")
    for word, verdict, picked in ((5, "Not yet. ", ""), (3, "Not yet. ", "3"), (7, "Right. Th", "3-7")):
        page.page.locator(".wound button").nth(word).focus()
        page.page.keyboard.press("Space")
        page.page.wait_for_function("() => document.querySelector('.judged').textContent === ''")
        page.page.wait_for_function("n => location.hash.endsWith(`content.picked=${n}`)", arg=picked)
        assert checked() == verdict
    page.open(f"{address}#step=longer")
    page.until_drawn("longer")
    page.page.locator(".controls input").focus()
    for _ in range(18):  # steps of 128 tokens, from 4,096 to 6,400
        page.page.keyboard.press("ArrowRight")
    page.page.wait_for_function("() => location.hash.endsWith('longer.tokens=6400')")
    assert checked() == "Right. Pa"
