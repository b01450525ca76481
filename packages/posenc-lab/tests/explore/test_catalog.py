"""What the page knows of the schemes: formulas that render, examples that run, options that build, measured laws, and
evidence that says where it is from."""

import inspect
import json
from dataclasses import replace
from pathlib import Path

import pytest

from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import Entry
from posenc_lab.explore import catalog as explorer
from posenc_lab.explore import data
from posenc_lab.laws.laws import LAWS, QUESTIONS
from posenc_lab.laws.probe import SHAPE
from tests.laws.audits import audit_of

ROOT = Path(__file__).parents[4]
ENTRIES = pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)


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
    kept, anew = data.laws()[name], data.shown(audit_of(name))
    assert {law: said["holds"] for law, said in anew.items()} == {law: said["holds"] for law, said in kept.items()}


# --- evidence -------------------------------------------------------------------------------------------------------


def test_evidence_without_a_scheme_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = explorer.evidence()[0]
    unknown = replace(good, rows=(replace(good.rows[0], schemes=("ropee",)),))
    monkeypatch.setattr(explorer, "tables", lambda: (unknown,))
    with pytest.raises(ValueError, match=r"^alibi_length: schemes must be names of the catalog, got ropee$"):
        explorer.evidence()
