"""The tests, tested: every planted bug is caught by a check that the real thing passes."""

from dataclasses import replace
from pathlib import Path

import pytest

import posenc
from posenc.schemes.catalog import CATALOG, Entry
from tests.mutants import (
    Mutant,
    absolute_in_attention,
    alibi,
    contract,
    distance_aware,
    exponential_decay,
    fourier_features,
    learned,
    nope,
    relative_1d,
    relative_2d,
    rope,
    segment,
    shaw,
    sinusoidal,
    t5,
    transformer_xl,
)
from tests.schemes import test_laws

MUTANT_FILES = Path(__file__).parent / "mutants"
MODULES = {
    "absolute_in_attention": absolute_in_attention,
    "alibi": alibi,
    "contract": contract,
    "distance_aware": distance_aware,
    "exponential_decay": exponential_decay,
    "fourier_features": fourier_features,
    "learned": learned,
    "nope": nope,
    "relative_1d": relative_1d,
    "relative_2d": relative_2d,
    "rope": rope,
    "segment": segment,
    "shaw": shaw,
    "sinusoidal": sinusoidal,
    "t5": t5,
    "transformer_xl": transformer_xl,
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
    schemes = {entry.name for entry in posenc.catalog()}
    files = {path.stem for path in MUTANT_FILES.glob("*.py")}
    assert MODULES.keys() == files - {"__init__"} == schemes | {"contract"}
    for entry in CATALOG:
        assert any(mutant.owner is entry.scheme for mutant in MODULES[entry.name].MUTANTS)
    assert len({param.id for param in RUNS}) == len(RUNS)
