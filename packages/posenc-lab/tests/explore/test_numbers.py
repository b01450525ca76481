"""The user's own schemes, and those of the catalog without JavaScript, are drawn by posenc's numbers."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import posenc
from posenc.schemes.catalog import CATALOG
from posenc_lab.explore import data
from posenc_lab.explore import numbers as module
from posenc_lab.explore.content import content
from tests.explore.node import Node
from tests.explore.test_figures import agrees, copied

FILE = Path(__file__).with_name("own_schemes.py")
PLATEAU, TURNING, STEPS, MEETS = (f"{FILE}:{name}" for name in ("Plateau", "Turning", "Steps", "Meets"))
BOTH = "rope+alibi"
OWN = (PLATEAU, TURNING, STEPS, MEETS, BOTH)
NUMBERED = [entry for entry in CATALOG if entry.name not in module.JAVASCRIPT]


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """The data of a saved page, with RoPE's laws in place of measured ones, which take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "audit", lambda names: None)
        patch.setattr(module.data, "shown", lambda audit: data.laws()["rope"])
        return content([*OWN, "alibi"], is_saved=True)


@pytest.fixture(scope="module")
def figures(javascript: Node, known: dict[str, Any]) -> Node:
    javascript("content", **known)
    return javascript


def entry(known: dict[str, Any], name: str) -> Any:
    return next(each for each in known["catalog"] if each["name"] == name)


def kept(known: dict[str, Any], name: str) -> Any:
    return known["numbers"][name][0]["kept"]


# --- what the page has ----------------------------------------------------------------------------------------------


def test_what_the_page_keeps_of_a_scheme_is_all_of_it_or_says_why_not(known: dict[str, Any]) -> None:
    doors = {name: {"table", "query", "bias"} & {*kept(known, name)} for name in OWN}
    assert doors == {PLATEAU: {"bias"}, TURNING: {"query"}, STEPS: {"table"}, MEETS: set(), BOTH: {"query", "bias"}}
    assert "more than add vectors" in kept(known, MEETS)["missing"]
    assert "what a layer projects" in kept(known, "wall")["missing"]
    assert "several coordinates" in kept(known, "swin")["missing"]
    assert kept(known, PLATEAU)["bias"]["shape"] == [4, 2 * module.MAX_BIAS_DISTANCE + 1]
    assert entry(known, BOTH)["own"]["call"] == "posenc.RoPE(head_dim=16) + posenc.ALiBi(num_heads=4)"
    assert entry(known, BOTH)["for_decoders"]
    assert "own" not in entry(known, "alibi")


@pytest.mark.parametrize("entry", NUMBERED, ids=lambda entry: entry.name)
def test_a_saved_page_has_the_settings_that_can_be_built(entry: Any, known: dict[str, Any]) -> None:
    wanted = list(module.settings(entry))
    found = {json.dumps(one["options"]): one["effect"] for one in known["numbers"][entry.name]}
    assert json.dumps(wanted[0]) in found
    for given in wanted:
        effect = found.get(json.dumps(given))
        if effect is None:
            with pytest.raises(ValueError, match=r"must be|needs positions"):
                module.of_options(entry, given)
            continue
        assert len(effect["data"]) == math.prod(effect["shape"])
        assert any(number is not None for number in effect["data"])


def test_numbers_are_those_of_posenc(known: dict[str, Any]) -> None:
    """Of a bias by the distance, and of vectors that do not go by it."""
    zeros = torch.zeros(1, 4, 33, 16, dtype=torch.float64)
    bias = posenc.logits(zeros, zeros, posenc.Sandwich(4))[0]
    table = posenc.ExponentialDecay(64).table(posenc.Positions.arange(33), torch.float64)
    assert table is not None
    wanted = {
        "sandwich": torch.cat([bias[:, -1], bias[:, 0, 1:]], dim=1),
        "exponential_decay": table @ table.mT / 64,
    }
    for name, expected in wanted.items():
        effect = known["numbers"][name][0]["effect"]
        found = torch.tensor(effect["data"], dtype=torch.float64).view(effect["shape"])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # six digits


def test_numbers_that_are_not_finite_are_said_and_can_be_written() -> None:
    class Endless(posenc.Sinusoidal):
        def table(self, positions: posenc.Positions, dtype: torch.dtype | None = None) -> torch.Tensor:
            return super().table(positions, dtype=dtype) / 0

    found = module.kept(Endless(64), module.shape_of(1), is_far=False)
    assert found == {"missing": "some of its numbers are NaN or infinite: see it in the view Scores"}


@pytest.mark.more
def test_the_laws_of_an_own_scheme_are_measured() -> None:
    assert module.own(TURNING)["measured"]["relative"]["holds"] is True
    assert module.own(STEPS)["measured"]["relative"]["holds"] is False


# --- figures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "state"),
    [
        *[
            ("sentence", {"scheme": scheme, "head": 2, "order": "1,0,2,3,4,5,6,7,9,8"})
            for scheme in (PLATEAU, TURNING, STEPS, BOTH, "xpos", "kerple")
        ],
        *[
            (figure, {"scheme": scheme, "tokens": 48})
            for figure in ("similarity", "vector-table")
            for scheme in (STEPS, "fourier_features", "exponential_decay")
        ],
        ("doors", {"first": STEPS, "second": PLATEAU}),
    ],
    ids=lambda x: x if isinstance(x, str) else str(x.get("scheme", "")).rpartition(":")[2],
)
def test_a_figure_by_numbers_is_posencs(figure: str, state: dict[str, Any], figures: Node) -> None:
    found = figures("figure", name=figure, state=state)
    agrees(found)
    copied(found["use"])
