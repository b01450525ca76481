"""The tests, tested: every planted bug is caught by a check that the real thing passes."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import posenc
from posenc.schemes.catalog import CATALOG, Entry
from tests.mutants import Mutant
from tests.schemes import test_laws

MUTANT_FILES = Path(__file__).parent / "mutants"
MODULES = {
    path.stem: import_module(f"tests.mutants.{path.stem}")
    for path in sorted(MUTANT_FILES.glob("*.py"))
    if path.stem != "__init__"
}
RUNS = [
    pytest.param(mutant, id=f"{name}: {mutant.bug}") for name, module in MODULES.items() for mutant in module.MUTANTS
]
CLAIMS = [pytest.param(entry, law, id=f"{entry.name}-{law}") for entry in CATALOG for law in test_laws.LAWS]


@pytest.mark.parametrize("mutant", RUNS)
def test_a_planted_bug_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.check()
    monkeypatch.setattr(mutant.owner, mutant.name, mutant.wrong)
    with pytest.raises(AssertionError) as caught:
        mutant.check()
    # By the check, that is, and not by an assertion that the library or the mutant makes.
    where = Path(caught.traceback[-1].path)
    assert Path(posenc.__file__).parent not in where.parents
    assert MUTANT_FILES not in where.parents


@pytest.mark.parametrize(("entry", "law"), CLAIMS)
def test_a_false_claim_is_caught(entry: Entry, law: str) -> None:
    """A law claimed that does not hold, or held and not claimed."""
    with pytest.raises(AssertionError):
        test_laws.check_claim(replace(entry, laws=entry.laws ^ {law}), law)


def test_every_scheme_has_mutants() -> None:
    assert MODULES.keys() > {entry.name for entry in posenc.catalog()}
    for entry in CATALOG:
        assert any(mutant.owner is entry.scheme for mutant in MODULES[entry.name].MUTANTS)
    assert len({param.id for param in RUNS}) == len(RUNS)
