"""Steps 4 to 7 of the lesson: the numbers and words of their text are those of their figures, and of posenc."""

from typing import Any

import pytest

import posenc
from posenc.tools.explore import lesson
from tests.explore.node import Node
from tests.explore.test_figures import run

STEPS = {step.name: step for step in lesson.lesson()}


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
