"""Which scheme: what passes does so by the data, what does not says why, and evidence is quoted as it stands."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from posenc.schemes.catalog import CATALOG
from posenc_lab.choose.questions import answer_to, answers, questions
from posenc_lab.explore.catalog import evidence
from tests.explore.node import Node

NOTHING = {"longer": False, "cheap": False, "free": False, "direction": False}
RECORDS = {record.name: record for record in evidence()}
COSTS = {name for name, record in RECORDS.items() if record.question == "cost"}


@pytest.fixture
def choose(figures: Node) -> Any:
    def asked(model: str = "decoder", tokens: str = "line", **needs: bool) -> Any:
        return figures("choose", asked={"model": model, "tokens": tokens, **NOTHING, **needs})

    return asked


@pytest.fixture
def judged(choose: Any, figures: Node, plain: dict[str, Any]) -> Iterator[Any]:
    """The same, had all evidence seeds enough."""
    figures("content", **{**plain, "evidence": [{**record, "too_few": ""} for record in plain["evidence"]]})
    yield choose
    figures("content", **plain)


def kept(found: Any) -> dict[str, Any]:
    return {name: answer for group in found["groups"].values() for name, answer in group.items()}


@pytest.mark.parametrize(("model", "tokens"), list(product(("decoder", "encoder"), ("line", "image", "video"))))
def test_every_scheme_is_kept_or_left_out_with_a_source(model: str, tokens: str, choose: Any) -> None:
    found = choose(model, tokens, **dict.fromkeys(NOTHING, True))
    assert {*kept(found), *found["out"]} == {entry.name for entry in CATALOG}
    assert not {*kept(found)} & {*found["out"]}
    for name, fact in found["out"].items():
        assert (fact["passes"], fact["words"] != "") == (False, True)
        assert fact["source"] in {f"posenc schemes {name}", f"posenc laws --schemes {name}", *COSTS}, fact
    assert all(fact["passes"] for answer in kept(found).values() for fact in answer["facts"])


@pytest.mark.parametrize(
    ("model", "needs", "good", "bad"),
    [
        ("decoder", {"longer": True}, {"alibi"}, {"sinusoidal", "rope"}),
        ("decoder", {"cheap": True}, {"alibi", "rope", "t5"}, set()),
        ("decoder", {"cheap": True, "longer": True}, set(), set()),
        ("encoder", {"direction": True}, {"rope", "shaw", "sinusoidal", "learned"}, {"alibi"}),
        ("encoder", {"direction": True, "longer": True}, set(), set()),
    ],
)
def test_a_group_is_what_its_lines_say_and_quotes_figures_as_they_stand(
    model: str, needs: dict[str, bool], good: set[str], bad: set[str], judged: Any
) -> None:
    """To be cheap speaks for none where more is asked: what is dear is left out already."""
    groups = judged(model, **needs)["groups"]
    assert good <= {*groups.get("for", {})}
    assert bad <= {*groups.get("against", {})}
    for group, group_answers in groups.items():
        for name, answer in group_answers.items():
            for line in answer["lines"]:
                rows = [row for row in RECORDS[line["record"]].rows if name in row.schemes]
                assert any(row.label in line["words"] and row.figures[-1] in line["words"] for row in rows), line
            counted = [line for line in answer["lines"] if line["record"] not in COSTS or needs == {"cheap": True}]
            verdicts = {line["verdict"] for line in counted}
            said = ("for" in verdicts, "against" in verdicts)
            mixed = {(True, False): "for", (False, True): "against"}.get(said, "mixed")
            assert group == (mixed if counted else "none"), (name, verdicts)


def test_the_page_asks_what_the_terminal_asks_and_leads_where_it_leads(figures: Node) -> None:
    figure = figures("figure", name="which", state="defaults")
    asked, found = questions(), answers()
    assert figure["controls"] == [question.name for question in asked]
    assert figure["values"] == {question.name: question.values[0] for question in asked}
    for values in product(*(question.values for question in asked)):
        given = dict(zip(figure["controls"], values, strict=True))
        answer = answer_to(given, found)
        said = figures("answer", given=given)
        needs = [option.needs for q in asked for option in q.options if option.value == given[q.name]]
        wanted = None if None in needs else {k: v for need in needs for k, v in need.items()}
        assert said == {"name": answer.name, "needs": wanted}
        shown = figures("figure", name="which", state=given)
        assert shown["line"].endswith(answer.code)
        strength = f"Evidence for it: {answer.strength_in_words}."
        assert shown["says"].startswith(f"{answer.case}: begin with {answer.begin}. {strength}")
        if given["weights"] != "no":  # their scheme is kept, and no list of others follows
            assert shown["says"].endswith(strength)
