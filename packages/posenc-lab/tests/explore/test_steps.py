"""The numbers and words of the lesson's text are those of its figures, of posenc, and of the shipped records."""

import math
from typing import Any

import pytest
import torch

import posenc
from posenc.schemes.t5 import T5
from posenc_lab.explore import lesson
from tests.explore.node import Node
from tests.explore.test_figures import run

STEPS = {step.name: step for step in lesson.lesson()}
TEXT = {name: " ".join(f"{step.text} {step.question} {step.answers}".split()) for name, step in STEPS.items()}
THETA = posenc.RoPE(16).frequencies()[0][0]


@pytest.fixture
def figure(figures: Node) -> Any:
    """What a figure says in a state."""
    return lambda name, **state: figures("figure", name=name, state=state)


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


@pytest.mark.parametrize("scheme", ["none", "steep", "gentle", "buckets", "shaw"])
def test_every_bias_is_posencs(scheme: str, figure: Any) -> None:
    found = figure("bias", scheme=scheme)
    computed = run(found["line"]).detach()
    assert (computed - found["compared"]).abs().max() < 1e-12
    assert (computed[0] == computed[1]).all() == (scheme != "shaw")  # Shaw's depends on the query


def divided(scaling: Any) -> list[float]:
    """What the frequencies of RoPE(16) are divided by."""
    return (THETA / posenc.RoPE(16, scaling=scaling).frequencies()[0][0]).tolist()


def test_what_each_scaling_divides_by() -> None:
    ntk, yarn = divided(posenc.scalings.NTKAware(4)), divided(posenc.scalings.YaRN(4, 2048))
    assert divided(posenc.scalings.PositionInterpolation(4)) == pytest.approx([4.0] * 8)
    assert (ntk[0], ntk[7], yarn[:3], yarn[6:]) == (1, pytest.approx(4), [1, 1, 1], pytest.approx([4, 4]))
    assert all(1 < x < 4 for x in (*ntk[1:7], *yarn[3:6]))
    assert (2048 * THETA[5] / (2 * math.pi)) > 1  # "had seen their whole circle in training"


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
