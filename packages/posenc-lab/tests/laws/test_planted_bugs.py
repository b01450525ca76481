"""The laws, tested: every planted bug is noticed by the one that should."""

from collections.abc import Callable
from typing import Any

import pytest

import posenc
from posenc_lab.laws.laws import LAWS
from posenc_lab.laws.probe import Probe
from tests.mutants import Lawless
from tests.test_mutants import MODULES

CLAIMS = {entry.name: entry.laws for entry in posenc.catalog()}
LAWLESS = [copy for module in MODULES.values() for copy in getattr(module, "LAWLESS", ())]


def sampled(copies: list[Any]) -> list[Any]:
    """As parameters, of which `make test` tries one in sixteen."""
    return [pytest.param(copy, marks=[pytest.mark.sample] * (n % 16 == 0)) for n, copy in enumerate(copies)]


@pytest.mark.mutant
@pytest.mark.parametrize("broken", sampled(LAWLESS), ids=lambda broken: f"{broken.scheme}-{broken.law}")
def test_a_law_notices(broken: Lawless, record_property: Callable[[str, object], None]) -> None:
    finding = LAWS[broken.law](Probe(broken.build))
    assert (finding.holds is True) != (broken.law in CLAIMS[broken.scheme]), finding.words
    record_property("caught by", f"posenc laws, {broken.law}: {finding.words}")


def test_most_laws_are_broken_by_some_copy() -> None:
    """What no copy breaks is either the counterpart of one that is (orthogonal) or cannot be missed."""
    assert LAWS.keys() - {broken.law for broken in LAWLESS} == {"orthogonal", "extensible", "parameter_free"}
