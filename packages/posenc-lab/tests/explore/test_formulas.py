"""Formulas: whole on every screen, and each control that has a symbol marks it."""

import re
from typing import Any

import pytest

from posenc_lab.explore.lesson import PART, lesson
from posenc_lab.explore.mathml import mathml
from posenc_lab.explore.page import formulas
from tests.explore.node import Node

# --- from LaTeX -----------------------------------------------------------------------------------------------------

PIECES = r"a = b, \qquad c \allowbreak + d \\ \text{e \quad f} \quad \begin{cases} g \\ h \end{cases}"


@pytest.mark.parametrize(
    ("latex", "part", "count"),
    [
        (PIECES, "<math ", 5),
        (PIECES, 'class="part"', 4),
        (PIECES, 'class="cases"', 1),
        ("a\n\nb", "<p>", 2),
        (r"\begin{array}{l} a \\ b \end{array}", "<p>", 2),  # separators within an environment are none
        (r"a \allowbreak + b", "<mrow><mrow /><mo>+</mo><mi>b</mi></mrow>", 1),  # no sign, which has no space
        ("% base: base\n% dim: d\n" + r"\mathrm{base}^{-2k/d} \mathrm{dim}", '<mi data-control="base">base</mi>', 1),
        ("% base: base\n% dim: d\n" + r"\mathrm{base}^{-2k/d} \mathrm{dim}", '<mi data-control="dim">d</mi>', 1),
        ("% base: base\n% dim: d\n" + r"\mathrm{base}^{-2k/d} \mathrm{dim}", "%", 0),
        (r"a \sin b + \sin(c) |x|", '<mspace width="0.167em" />', 2),
        (r"a \sin b + \sin(c) |x|", 'lspace="0"', 2),
    ],
)
def test_latex_becomes_mathml(latex: str, part: str, count: int) -> None:
    assert mathml(latex).count(part) == count


# --- symbols of controls --------------------------------------------------------------------------------------------


def marked(made: str) -> set[str]:
    """The controls that a formula has symbols of."""
    return set(" ".join(re.findall(r'data-control="([^"]*)"', made)).split())


def controls(figures: Node, figure: str, *states: Any) -> set[str]:
    """Its controls in these states."""
    found = (figures("figure", name=figure, state=state)["controls"] for state in states)
    return {name.removeprefix("options.") for names in found for name in names}


# What the formula of a figure is not about: how much is drawn, of what, and other random numbers.
DRAWN = {"weighed", "tokens", "length", "seed", "draw", "scheme", "measure", "rows", "columns", "side", "causal"}

# Controls without a symbol, though the formula has others.
WITHOUT = {
    "schedule": {"family", "layer"},
    "similarity": {"layout"},
    "stretch": {"base"},
    "windows": {"layout"},
}


SYMBOLS = [name for name in formulas() if name not in ("doors", "sentence")]


@pytest.mark.parametrize("figure", SYMBOLS)
def test_a_control_finds_its_symbol_and_a_symbol_its_control(figure: str, figures: Node) -> None:
    states: list[Any] = ["defaults", "another"]
    if figure == "similarity":
        states += [{"scheme": name, "tokens": 48} for name in ("fourier_features", "exponential_decay")]
    if figure == "windows":
        states += [{"causal": False}]
    there = controls(figures, figure, *states)
    words = {part for step in lesson() if step.name == figure for _, part in PART.findall(step.text)}
    symbols = marked(formulas()[figure])
    assert symbols <= there | words, "a symbol of a control, or of words of a step, that does not exist"
    assert there - symbols - DRAWN == WITHOUT.get(figure, set())
