"""What the page knows of the schemes: formulas that render, examples that run, options that build, measured laws, and
evidence that says where it is from."""

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import posenc
from posenc import schedules
from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import Entry
from posenc_lab.explore import catalog as explorer
from posenc_lab.explore import data
from posenc_lab.laws.laws import LAWS, QUESTIONS
from posenc_lab.laws.probe import SHAPE
from tests.laws.audited import audited

ROOT = Path(__file__).parents[4]
ENTRIES = pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)

COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)")
COMMANDS = COMMAND.findall(r"""
    \alpha \delta \omega \phi \pi \psi \sigma \tau \theta \zeta \cos \sin \tanh \exp \ln \log \max \min \sum \prod
    \frac \sqrt \cdot \bmod \sim \in \mid \le \ge \leftarrow \mapsto \ldots \lfloor \rfloor \lceil \rceil
    \bigl \bigr \Bigl \Bigr \mathrm \mbox \begin \end \quad \qquad \allowbreak \pm \, \; \{ \} \_ \\
""")
"""Of LaTeX with amsmath, what formulas may use."""


# --- entries --------------------------------------------------------------------------------------------------------


@ENTRIES
def test_a_formula_is_plain_latex_and_becomes_mathml(entry: Entry) -> None:
    assert set(COMMAND.findall(entry.formula)) <= set(COMMANDS)
    assert set(re.findall(r"\\(?:begin|end){(\w+)}", entry.formula)) <= {"array", "cases"}
    found = ElementTree.fromstring(f"<div>{explorer.formula(entry)}</div>")
    text = "".join(found.itertext())
    assert re.sub(r"\s", "", text)
    assert not set(text) & set("\\{}_^") - set(_escaped(entry.formula)) - set("{" if "{cases}" in entry.formula else "")
    assert found.find(".//merror") is None


def _escaped(formula: str) -> list[str]:
    """The characters that a formula shows and LaTeX has another use for."""
    return re.findall(r"\\([{}_])", formula)


# --- options --------------------------------------------------------------------------------------------------------


DATA = ("cameras", "intrinsics")
"""Arguments that are no options on the page, where cameras are those of the catalog."""


@ENTRIES
def test_the_options_build_what_the_catalog_builds(entry: Entry) -> None:
    options = explorer.options(entry)
    assert [option.name for option in options] == [
        name for name, p in inspect.signature(entry.scheme).parameters.items() if name not in ("args", "kwargs")
    ]
    for option in options:
        assert (option.kind == "choice") == bool(option.choices)
        assert option.kind != "other" or option.name in ("heads", "imaginary", *DATA)
        assert option.required or option.optional or option.default is not None
    grid = explorer.GRIDS[entry.least_axes]
    built = entry.build(replace(SHAPE, max_positions=64, grid=grid))
    data = {
        option.name: getattr(built, option.name)
        for option in options
        if option.name in DATA or isinstance(option.built, dict)
    }
    made = entry.scheme(**{option.name: option.built for option in options if option.built is not None} | data)
    assert repr(made) == repr(built)
    shapes = [{name: value.shape for name, value in scheme.state_dict().items()} for scheme in (made, built)]
    assert shapes[0] == shapes[1]


# --- the whole ------------------------------------------------------------------------------------------------------


def test_the_catalog_is_json_and_has_every_scheme() -> None:
    whole = explorer.catalog()
    assert json.loads(json.dumps(whole, allow_nan=False)).keys() == whole.keys()
    assert [entry["name"] for entry in whole["entries"]] == [entry.name for entry in CATALOG]
    for shown, entry in zip(whole["entries"], CATALOG, strict=True):
        assert "<math " in shown["formula"]
        assert shown["doors"] == entry.doors
        assert set(shown["claims"]) == entry.laws
        assert shown["measured"].keys() == whole["laws"].keys() == LAWS.keys() | QUESTIONS.keys()
    assert all(law["head"] and law["says"] for law in whole["laws"].values())


# --- laws -----------------------------------------------------------------------------------------------------------


def test_the_measured_laws_are_of_every_scheme_and_agree_with_the_claims() -> None:
    """``python -m posenc_lab.explore.data`` writes them."""
    measured = data.laws()
    assert list(measured) == [entry.name for entry in CATALOG]
    for entry in CATALOG:
        laws = measured[entry.name]
        assert {law for law in LAWS if laws[law]["holds"]} == entry.laws
        assert all(said.keys() == {"holds", "value", "words", "cell"} and said["words"] for said in laws.values())
        for said in laws.values():
            assert said["cell"].split()[0] == {True: "yes", False: "no", None: "n/a"}[said["holds"]]


@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_laws_measured_anew_are_as_they_were(name: str) -> None:
    kept, anew = data.laws()[name], data.shown(audited(name))
    assert {law: said["holds"] for law, said in anew.items()} == {law: said["holds"] for law, said in kept.items()}


# --- schedules ------------------------------------------------------------------------------------------------------


def test_every_family_has_its_schedule_layer_by_layer() -> None:
    families = {family["name"]: family for family in explorer.families()}
    assert families.keys() >= {"gemma3", "smollm3", "cohere2", "gpt_oss", "llama4", "deepseek_v3"}
    for name, family in families.items():
        schedule = getattr(schedules, name)()
        assert sorted(layer for kind in family["kinds"] for layer in kind["layers"]) == list(range(len(schedule)))
        assert repr(eval(family["call"], {"posenc": posenc})) == repr(schedule)
        assert all((family["title"], family["does"]))
        for kind in family["kinds"]:
            assert f"{kind['scheme']}" in repr(schedule)
            assert kind["window"].replace(",", "") in repr(schedule)
    llama, gemma = families["llama4"]["kinds"], families["gemma3"]["kinds"]
    assert [(kind["names"], kind["chunk"]) for kind in llama] == [(["rope"], 8192), (["query_scale"], None)]
    assert [(kind["keys"], kind["layers"][:2]) for kind in gemma] == [(1024, [0, 1]), (None, [5, 11])]


# --- evidence -------------------------------------------------------------------------------------------------------


def test_evidence_without_a_scheme_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = explorer.evidence()[0]
    unknown = replace(good, rows=(replace(good.rows[0], schemes=("ropee",)),))
    monkeypatch.setattr(explorer, "tables", lambda: (unknown,))
    with pytest.raises(ValueError, match=r"^alibi_length: schemes must be names of the catalog, got ropee$"):
        explorer.evidence()
