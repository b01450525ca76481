"""The user's own schemes stand in the figures beside the catalog's, with the numbers that posenc has of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import posenc
from posenc.tools.explore import data
from posenc.tools.explore import own as module
from posenc.tools.explore.content import content
from posenc.tools.laws.probe import Finding
from posenc.tools.laws.table import Audit
from tests.explore.node import Node
from tests.explore.test_figures import agrees, copied

FILE = Path(__file__).with_name("own_schemes.py")
PLATEAU, TURNING, STEPS, MEETS = (f"{FILE}:{name}" for name in ("Plateau", "Turning", "Steps", "Meets"))
BOTH = "rope+alibi"


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """The page's data, with RoPE's laws in place of measured ones, which take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "audit", lambda names: None)
        patch.setattr(module.data, "shown", lambda audit: data.laws()["rope"])
        return content([PLATEAU, TURNING, STEPS, MEETS, BOTH, "alibi"])


@pytest.fixture(scope="module")
def figures(javascript: Node, known: dict[str, Any]) -> Node:
    javascript("content", **known)
    return javascript


def entry(known: dict[str, Any], name: str) -> Any:
    return next(each for each in known["catalog"] if each["name"] == name)


def test_what_the_page_keeps_of_a_scheme_is_all_of_it_or_says_why_not(known: dict[str, Any]) -> None:
    kept = {name: entry(known, name)["own"] for name in (PLATEAU, TURNING, STEPS, MEETS, BOTH)}
    doors = {name: {"table", "query", "key", "bias"} & {*kept[name]} for name in kept}
    assert doors == {
        PLATEAU: {"bias"},
        TURNING: {"query", "key"},
        STEPS: {"table"},
        MEETS: set(),
        BOTH: {"query", "key", "bias"},
    }
    assert "more than add vectors" in kept[MEETS]["missing"]
    assert kept[PLATEAU]["bias"]["shape"] == [4, 2 * module.TOKENS - 1]
    assert kept[BOTH]["call"] == "posenc.RoPE(head_dim=16) + posenc.ALiBi(num_heads=4)"
    assert entry(known, BOTH)["for_decoders"]
    assert "own" not in entry(known, "alibi")


@pytest.mark.parametrize("scheme", [PLATEAU, TURNING, STEPS, BOTH], ids=lambda name: name.rpartition(":")[2])
def test_a_sentence_with_an_own_scheme_is_posencs(scheme: str, figures: Node) -> None:
    found = figures("figure", name="sentence", state={"scheme": scheme, "head": 2, "order": "1,0,2,3,4,5,6,7,9,8"})
    agrees(found)
    copied(found["use"])


@pytest.mark.parametrize(
    ("figure", "state"),
    [
        ("similarity", {"scheme": STEPS, "tokens": 48}),
        ("vector-table", {"scheme": STEPS}),
        ("product", {"scheme": TURNING, "tokens": 20, "shift": 11}),
        ("doors", {"first": STEPS, "second": PLATEAU}),
    ],
)
def test_a_figure_with_an_own_scheme_is_posencs(figure: str, state: dict[str, Any], figures: Node) -> None:
    found = figures("figure", name=figure, state=state)
    agrees(found)
    copied(found["use"])


@pytest.mark.parametrize("scheme", [PLATEAU, TURNING, STEPS, MEETS, BOTH], ids=lambda name: name.rpartition(":")[2])
def test_any_own_scheme_has_a_picture_and_laws(scheme: str, figures: Node, known: dict[str, Any]) -> None:
    found = figures("figure", name="scheme", state={"scheme": scheme})
    assert found["line"] == f"# posenc plot overview --schemes {scheme}"
    assert found["says"].startswith(entry(known, scheme)["title"])
    copied(found["use"])
    laws = figures("figure", name="laws", state={"scheme": scheme, "law": "relative"})
    assert laws["says"].startswith(f"{entry(known, scheme)['title']}, relative: ")


def test_a_head_that_another_scheme_lacks_is_not_kept(figures: Node, known: dict[str, Any]) -> None:
    many, one = (
        {"name": name, "what": "bias", "shape": [n, 2, 2], "values": [0.5] * 4 * n} for name, n in (("A", 4), ("B", 1))
    )
    figures("content", seen=[many, one])
    try:
        found = figures("figure", name="seen", state={"head": 4}, change=["scheme", "1"])
        assert found["values"]["head"] == 1
        assert found["controls"] == ["scheme", "weighed"]
        with pytest.raises(AssertionError, match=r"seen\.head must be from 1 to 1, got 4"):
            figures("figure", name="seen", state={"scheme": "1", "head": 4})
    finally:
        figures("content", **known)


def test_the_bias_of_an_own_scheme_stands_beside_the_others(figures: Node, known: dict[str, Any]) -> None:
    found = figures("figure", name="bias-by-distance", state={"distance": 16, "head": 3})
    scheme = module.built(PLATEAU)
    zeros = torch.zeros(1, 4, 17, 16, dtype=torch.float64)
    bias = posenc.logits(zeros, zeros, scheme)[0, 2, -1, 0].item()
    assert f"Plateau {bias:.3g}." in found["says"]
    far = figures("figure", name="bias-by-distance", state={"distance": 100})
    assert "Plateau not computed that far." in far["says"]


def test_a_position_that_was_not_computed_is_named(figures: Node) -> None:
    with pytest.raises(AssertionError, match="Turning was computed at the positions 0 to 63, got 64"):
        figures("figure", name="product", state={"scheme": TURNING, "tokens": 20, "shift": 60})


def test_own_schemes_that_posenc_refuses_to_compose_are_refused(known: dict[str, Any]) -> None:
    assert "rotate the same channels" in known["refused"][f"{TURNING}+rope"]
    assert f"{TURNING}+alibi" not in known["refused"]


def test_numbers_that_are_not_finite_are_said_and_can_be_written() -> None:
    class Endless(posenc.Sinusoidal):
        def table(self, positions: posenc.Positions, dtype: torch.dtype | None = None) -> torch.Tensor:
            return super().table(positions, dtype=dtype) / 0

    found = module.numbers(Endless(64), module.shape_of(1))
    assert found == {"missing": "some of its numbers are NaN or infinite: see it in the view Scores"}


def test_a_law_whose_value_is_not_finite_can_be_written() -> None:
    finding = Finding(False, float("nan"), None, "nan apart")
    told = data.shown(Audit("endless", ("score",), None, {"relative": finding}))["relative"]
    assert json.dumps(told, allow_nan=False)
    assert (told["value"], told["words"]) == (None, "nan apart")


@pytest.mark.more
def test_the_laws_of_an_own_scheme_are_measured() -> None:
    assert module.own(TURNING)["measured"]["relative"]["holds"] is True
    assert module.own(STEPS)["measured"]["relative"]["holds"] is False
