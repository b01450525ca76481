"""The numbers and words of the lesson's text are those of its figures, of posenc, and of the shipped records."""

import math
from typing import Any

import pytest
import torch

import posenc
from posenc.schemes.t5 import T5
from posenc_lab.explore import data, lesson
from tests.explore.node import Node
from tests.explore.test_figures import run

STEPS = {step.name: step for step in lesson.lesson()}
TEXT = {name: " ".join(f"{step.text} {step.question} {step.answers}".split()) for name, step in STEPS.items()}
THETA = posenc.RoPE(16).frequencies()[0][0]


@pytest.fixture
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


@pytest.mark.parametrize(
    ("step", "state", "says", "told"),
    [
        ("turn", {}, "between them are 59°", "59° between the arrows"),
        ("turn", {}, "the score is 2.56", "a score of 2.56"),
        ("bias", {"scheme": "steep"}, "the bias is −3, so the weight is multiplied by 0.05.", "$e^{-3}$ = 0.05"),
        ("bias", {"scheme": "gentle"}, "multiplied by 0.69.", "0.69"),
        ("add", {"code": "counting"}, "From position 7 to 8 the distance is 1, from 7 to 0 it is 7.", ""),
    ],
)
def test_a_text_has_the_numbers_of_its_figure(step: str, state: Any, says: str, told: str, figure: Any) -> None:
    assert says in figure(step, **state)["says"]
    assert told in TEXT[step]


def test_an_arrow_pushes_the_other_along(figures: Node) -> None:
    for change, both in ((["key", 20], 20), (["query", 1], 1)):
        moved = figures("figure", name="turn", state={"query": 7, "key": 3}, change=change)
        assert moved["values"] == {"query": both, "key": both}


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


def test_rope_gets_worse_past_its_length_and_the_others_do_not() -> None:
    """In the first comparison on text, which the figure shows, by more than the intervals."""
    first = next(record for record in data.records() if record["task"] == "text")
    (sliding,) = [each for each in first["measures"] if each["kind"] == "sliding"]
    assert sliding["lengths"][1:] == [128, 256, 512, 1024]
    _, trained, *longer = sliding["curves"]["rope"]
    assert all(low > trained[2] for _, low, _, _ in longer)
    for scheme in ("alibi", "t5"):
        _, (_, low, high, _), *longer = sliding["curves"][scheme]
        assert all(low < mean < high for mean, *_ in longer)


def divided(scaling: Any) -> list[float]:
    """What the frequencies of RoPE(16) are divided by."""
    return (THETA / posenc.RoPE(16, scaling=scaling).frequencies()[0][0]).tolist()


def test_what_each_scaling_divides_by() -> None:
    ntk, yarn = divided(posenc.scalings.NTKAware(4)), divided(posenc.scalings.YaRN(4, 2048))
    assert divided(posenc.scalings.PositionInterpolation(4)) == pytest.approx([4.0] * 8)
    assert (ntk[0], ntk[7], yarn[:3], yarn[6:]) == (1, pytest.approx(4), [1, 1, 1], pytest.approx([4, 4]))
    assert all(1 < x < 4 for x in (*ntk[1:7], *yarn[3:6]))
    assert (2048 * THETA[5] / (2 * math.pi)) > 1  # "had seen their whole circle in training"


def test_the_layers_of_llama_4_and_gemma_3() -> None:
    llama, gemma = posenc.schedules.llama4(), posenc.schedules.gemma3()
    assert [layer for layer, (_, window) in enumerate(llama) if window is None][:3] == [3, 7, 11]
    assert {window.size for _, window in llama if isinstance(window, posenc.Chunk)} == {8192}
    assert [scheme.base for scheme, _ in gemma][:6] == [10_000] * 5 + [1_000_000]


GATES = torch.tensor([6.0, -6.0]).sigmoid().tolist()
DEGREES = [round(math.degrees(THETA[0] / by)) for by in (1, 4)]
TURNS = 2047 * THETA / (2 * math.pi)


@pytest.mark.parametrize(
    ("holds", "step", "words"),
    [
        (T5(1).edges[-1] == 113, "longer", "from 113 on into its last bucket"),
        (
            round(2 * math.pi / THETA[6].item()) == 6283 and abs(TURNS[6] - 1 / 3) < 0.01,
            "longer",
            "about 6,283 tokens for one turn, and training showed it a third",
        ),
        ([k for k in range(8) if TURNS[k] < 1] == [6, 7], "longer", ""),
        (True, "longer", "The loss of RoPE rises soon after the trained length, that of ALiBi and T5 does not"),
        (True, "stretch", "keeps pairs 0 to 2 exactly, divides pairs 6 and 7 by 4"),
        (True, "stretch", "{}° away in training and is {}° away now".format(*DEGREES)),
        (True, "stretch", "Every fourth (3, 7, 11, ..., counted from 0) has no position"),
        (True, "stretch", "five layers with a window and base 10,000, then one with the whole text and base 1,000,000"),
        (True, "content", f"$g$ = {GATES[0]:.3f} and $f$ = {GATES[1]:.3f}"),
    ],
)
def test_what_the_text_says_is_so(holds: bool, step: str, words: str) -> None:
    assert holds
    assert words in TEXT[step]
