"""Which scheme: what passes does so by the data, what does not says why, and evidence is quoted as it stands."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from posenc.schemes.catalog import CATALOG
from posenc.tools.choose.evidence import STRENGTHS
from posenc.tools.choose.questions import answer_to, answers, questions
from posenc.tools.explore.catalog import evidence
from posenc.tools.explore.content import content
from tests.explore.node import Node

NOTHING = {"longer": False, "cheap": False, "free": False, "direction": False}
MODELS, TOKENS = ("decoder", "encoder"), ("line", "image", "video")
LAWS = {"longer": "length_free", "free": "parameter_free", "direction": "directed"}


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return content()


@pytest.fixture(scope="module")
def entries(data: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry for entry in data["catalog"]}


@pytest.fixture(scope="module")
def choose(javascript: Node, data: dict[str, Any]) -> Any:
    javascript("content", **data)

    def asked(model: str = "decoder", tokens: str = "line", **needs: bool) -> Any:
        return javascript("choose", asked={"model": model, "tokens": tokens, **NOTHING, **needs})

    return asked


@pytest.fixture
def judged(choose: Any, javascript: Node, data: dict[str, Any]) -> Iterator[Any]:
    """The same, had all evidence seeds enough."""
    javascript("content", **{**data, "evidence": [{**record, "too_few": ""} for record in data["evidence"]]})
    yield choose
    javascript("content", **data)


def kept(found: Any) -> dict[str, Any]:
    return {name: answer for group in found["groups"].values() for name, answer in group.items()}


@pytest.mark.parametrize(("model", "tokens"), list(product(MODELS, TOKENS)))
def test_every_scheme_is_kept_or_left_out_with_a_source(model: str, tokens: str, choose: Any) -> None:
    found = choose(model, tokens, **dict.fromkeys(NOTHING, True))
    assert {*kept(found), *found["out"]} == {entry.name for entry in CATALOG}
    assert not {*kept(found)} & {*found["out"]}
    for name, fact in found["out"].items():
        assert not fact["passes"]
        assert fact["words"]
        assert fact["source"] in {f"posenc schemes {name}", f"posenc laws --schemes {name}", *COSTS}, fact
    for answer in kept(found).values():
        assert all(fact["passes"] for fact in answer["facts"])


COSTS = {record.name for record in evidence() if record.question == "cost"}


@pytest.mark.parametrize("need", LAWS)
def test_a_need_is_a_law_that_was_measured(need: str, choose: Any, entries: dict[str, Any]) -> None:
    before, after = kept(choose()), kept(choose(**{need: True}))
    assert {*after} == {name for name in before if entries[name]["measured"][LAWS[need]]["holds"] is True}
    assert 0 < len(after) < len(before)
    measured = entries["rope"]["measured"][LAWS[need]]["words"]
    assert any(measured in fact["words"] for fact in after["rope"]["facts"])


def test_what_is_left_out_of_an_encoder_and_of_images(choose: Any) -> None:
    line, encoder, image, video = choose(), choose("encoder"), choose("encoder", "image"), choose("encoder", "video")
    assert "nope" in kept(line)
    assert {"nope", "fire", "xpos", "segment", "softcap"} <= {*encoder["out"]}
    assert {"rope", "shaw", "alibi", "learned"} <= {*kept(encoder)}
    assert {"axial_rope", "mixed_rope", "sinusoidal", "relative_2d"} <= {*kept(image)}
    assert {"alibi", "rope_3d", "cope"} <= {*image["out"]}
    assert {"rope_3d", "rope"} <= {*kept(video)}
    assert all(answer["without"] == ["videos"] for answer in kept(video).values())


def test_few_seeds_and_few_pieces_give_no_verdict(choose: Any) -> None:
    """Their figures stand as they are, and say of what there are too few."""
    few = {record.name: record for record in evidence() if record.too_few}
    assert {*few} >= {"classify", "stretch"}
    assert all(record.too_few in record.measured for record in few.values())
    assert {record.name for record in evidence() if "one seed" in record.measured} <= {*few}
    seen = set()
    answers = [choose(longer=True), choose("encoder", direction=True)]
    for asked in answers:
        for answer in kept(asked).values():
            for line in answer["lines"]:
                if line["record"] in few:
                    assert line["verdict"] == ""
                    assert line["words"].endswith(f" ({few[line['record']].too_few}, too few for a verdict)")
                    seen.add(line["record"])
    assert seen == {name for name, record in few.items() if record.question in ("length", "order")}
    told = choose("encoder", direction=True)["groups"]
    assert {*told} == {"mixed", "none"}
    assert {"rope", "alibi"} <= {*told["mixed"]}


def test_what_evidence_says_of_length(judged: Any) -> None:
    groups = judged(longer=True)["groups"]
    assert "alibi" in groups["for"]
    assert {"sinusoidal", "rope"} <= {*groups["against"]}
    published = [line for line in groups["mixed"]["t5"]["lines"] if line["record"] == "alibi_length"]
    assert [line["verdict"] for line in published] == ["against"]
    assert groups["none"]["wall"]["without"] == ["texts longer than in training"]


def test_a_length_is_said_to_be_better_worse_or_neither_by_the_intervals(
    choose: Any, javascript: Node, data: Any
) -> None:
    heads = ("32 (trained)", "64")
    made = {"rope": ("2.0 ± .1", "2.4 ± .1"), "alibi": ("2.0 ± .1", "1.6 ± .1"), "t5": ("2.0 ± .1", "2.19 ± .1")}
    rows = [{"label": name, "schemes": [name], "figures": figures} for name, figures in made.items()]
    record = next(record for record in data["evidence"] if record["name"] == "alibi_length")
    javascript("content", **{**data, "evidence": [{**record, "heads": heads, "rows": rows}]})
    said = {name: answer["lines"][0] for name, answer in kept(choose(longer=True)).items() if name in made}
    javascript("content", **data)
    assert {name: line["verdict"] for name, line in said.items()} == {"rope": "against", "alibi": "for", "t5": ""}
    assert said["rope"]["words"].endswith("; worse than at the trained size)")
    assert said["alibi"]["words"].endswith("; better than at the trained size)")
    neither = "; no difference from the trained size beyond the intervals, and worse than alibi at 64)"
    assert said["t5"]["words"].endswith(neither)


def test_what_evidence_says_of_direction_and_cost(judged: Any) -> None:
    told = judged("encoder", direction=True)["groups"]
    assert {"rope", "shaw", "sinusoidal", "learned"} == {*told["for"]}
    assert {*told["against"]} == {"alibi"}  # its bidirectional form is blind
    cheap = judged(cheap=True)
    assert {"transformer_xl", "relative_1d"} <= {*cheap["out"]}
    assert {"alibi", "rope", "t5"} <= {*cheap["groups"]["for"]}


@pytest.mark.parametrize(
    "needs", [{"longer": True}, {"cheap": True}, {"cheap": True, "longer": True}, {"direction": True, "longer": True}]
)
def test_a_group_is_what_its_lines_say(needs: dict[str, bool], judged: Any) -> None:
    """To be cheap speaks for none where more is asked: what is dear is left out already."""
    seen = set()
    for group, group_answers in judged("encoder" if "direction" in needs else "decoder", **needs)["groups"].items():
        for name, answer in group_answers.items():
            counted = [line for line in answer["lines"] if line["record"] not in COSTS or needs == {"cheap": True}]
            verdicts = {line["verdict"] for line in counted}
            good, bad = "for" in verdicts, "against" in verdicts
            said = "none" if not counted else "mixed" if good == bad else "for" if good else "against"
            assert group == said, (name, verdicts)
            seen.add(group)
    assert {"for", "against"} & seen


def test_figures_are_quoted_as_they_stand(choose: Any) -> None:
    records = {record.name: record for record in evidence()}
    count = 0
    for needs in ({"longer": True}, {"direction": True}, {"cheap": True}):
        for name, answer in kept(choose(**needs)).items():
            for line in answer["lines"]:
                rows = [row for row in records[line["record"]].rows if name in row.schemes]
                assert any(row.label in line["words"] and row.figures[-1] in line["words"] for row in rows), line
                count += 1
    assert count > 40


# --- the questions --------------------------------------------------------------------------------------------------


def test_the_page_asks_what_the_terminal_asks_and_leads_where_it_leads(choose: Any, javascript: Node) -> None:
    figure = javascript("figure", name="which", state="defaults")
    asked, found = questions(), answers()
    assert figure["controls"] == [question.name for question in asked]
    assert figure["values"] == {question.name: question.values[0] for question in asked}
    for values in product(*(question.values for question in asked)):
        given = dict(zip(figure["controls"], values, strict=True))
        answer = answer_to(given, found)
        said = javascript("answer", given=given)
        assert said["name"] == answer.name
        needs = [option.needs for q in asked for option in q.options if option.value == given[q.name]]
        assert said["needs"] == (None if None in needs else {k: v for need in needs for k, v in need.items()})
        shown = javascript("figure", name="which", state=given)
        assert shown["line"].endswith(answer.code)
        strength = f"Evidence for it: {STRENGTHS[answer.strength]}."
        assert shown["says"].startswith(f"{answer.case}: begin with {answer.begin}. {strength}")
        if given["weights"] != "no":  # their scheme is kept, and no list of others follows
            assert shown["says"].endswith(strength)


def test_each_answer_has_its_claims_in_words(data: dict[str, Any]) -> None:
    by_name = {answer["name"]: answer for answer in data["choosing"]["answers"]}
    assert by_name["long_decoder"]["claims"][0]["about"] == "rope minus alibi, at 1,024 bytes"
    for part in ("claims", "statements"):
        assert {answer["name"]: len(answer[part]) for answer in by_name.values()} == {
            answer.name: len(getattr(answer, part)) for answer in answers()
        }
    assert {name: answer["strength"] for name, answer in by_name.items()} == {
        answer.name: answer.strength for answer in answers()
    }
