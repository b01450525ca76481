"""The laws and the oracles, tested: every planted bug is noticed by the one that should."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import posenc
from posenc.tools.laws.laws import LAWS
from posenc.tools.laws.probe import Probe
from tests.cases import CASES
from tests.mutants import Lawless, Untrue
from tests.schemes import test_against_oracles
from tests.test_mutants import MODULES

CLAIMS = {entry.name: entry.laws for entry in posenc.catalog()}
LAWLESS = [copy for module in MODULES.values() for copy in getattr(module, "LAWLESS", ())]
UNTRUE = [copy for module in MODULES.values() for copy in getattr(module, "UNTRUE", ())]


def sampled(copies: list[Any]) -> list[Any]:
    """As parameters, of which `make test` tries one in sixteen."""
    return [pytest.param(copy, marks=[pytest.mark.sample] * (n % 16 == 0)) for n, copy in enumerate(copies)]


@pytest.mark.mutant
@pytest.mark.parametrize("broken", sampled(LAWLESS), ids=lambda broken: f"{broken.scheme}-{broken.law}")
def test_a_law_notices(broken: Lawless, record_property: Callable[[str, object], None]) -> None:
    finding = LAWS[broken.law](Probe(broken.build))
    assert (finding.holds is True) != (broken.law in CLAIMS[broken.scheme]), finding.words
    record_property("caught by", f"posenc laws, {broken.law}: {finding.words}")


@pytest.mark.mutant
@pytest.mark.parametrize("untrue", sampled(UNTRUE), ids=lambda untrue: untrue.case)
def test_the_oracle_notices(untrue: Untrue, record_property: Callable[[str, object], None]) -> None:
    case = CASES[untrue.case]
    name = "permuted" if "permuted" in case.positions() else next(iter(case.positions()))
    positions = case.positions()[name]
    test_against_oracles.check_output(case, positions, causal=True)
    with pytest.raises(AssertionError):
        test_against_oracles.check_output(replace(case, scheme=untrue.build), positions, causal=True)
    record_property("caught by", f"check_output, {name}")


def test_every_scheme_has_broken_copies() -> None:
    by_law = {broken.scheme for broken in LAWLESS}
    by_oracle = {type(part) for untrue in UNTRUE for part in CASES[untrue.case].scheme().parts}
    assert by_law == CLAIMS.keys()
    assert by_oracle == {entry.scheme for entry in posenc.catalog()}


def test_most_laws_are_broken_by_some_copy() -> None:
    """What no copy breaks is either the counterpart of one that is (orthogonal) or cannot be missed."""
    assert LAWS.keys() - {broken.law for broken in LAWLESS} == {
        "orthogonal",
        "extensible",
        "parameter_free",
    }
