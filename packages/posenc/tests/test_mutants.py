"""The tests, tested: every planted bug is caught by a check that the real thing passes."""

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import posenc
from posenc.backends.native import build
from posenc.schemes.catalog import CATALOG
from tests.mutants import Mutant

TESTS = Path(__file__).parent
MUTANT_FILES = TESTS / "mutants"
MODULES = {
    path.stem: import_module(f"tests.mutants.{path.stem}")
    for path in sorted(MUTANT_FILES.glob("*.py"))
    if path.stem != "__init__"
}


def marks_of(name: str, file: int, number: int) -> list[pytest.MarkDecorator]:
    """`make test` tries the first of every fourth file; CI a third of the kernel's, for each of which it is built."""
    if name == "native":
        return [pytest.mark.survey] * (number % 3 > 0)
    return [pytest.mark.sample] * (number == 0 and file % 4 == 0)


RUNS = [
    pytest.param(mutant, id=f"{name}: {mutant.bug}", marks=marks_of(name, file, number))
    for file, (name, module) in enumerate(MODULES.items())
    for number, mutant in enumerate(module.MUTANTS)
]


def test_what_is_to_be_planted_in_the_kernel_has_its_place() -> None:
    """So that a line that has moved is noticed before minutes of building."""
    for mutant in MODULES["native"].MUTANTS:
        assert (build.SOURCES / mutant.name).read_text().count(mutant.wrong[0]) == 1, mutant.bug


@cache
def passes(check: Callable[[], None]) -> None:
    """The real thing passes; once for all mutants that have the check."""
    check()


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", RUNS)
def test_a_planted_bug_is_caught(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    passes(mutant.check)
    with mutant.planted(), pytest.raises((AssertionError, pytest.fail.Exception)) as caught:
        mutant.check()
    # By the check, that is, and not by an assertion that the library or the mutant makes.
    where = Path(caught.traceback[-1].path)
    assert Path(posenc.__file__).parent not in where.parents
    assert MUTANT_FILES not in where.parents
    line = [entry for entry in caught.traceback if TESTS in Path(entry.path).parents][-1]
    record_property("caught by", f"{line.name}, {Path(line.path).relative_to(TESTS.parent)}:{line.lineno + 1}")


def test_every_scheme_has_mutants() -> None:
    assert MODULES.keys() > {entry.name for entry in posenc.catalog()}
    for entry in CATALOG:
        own = (*entry.scheme.__mro__, sys.modules[entry.scheme.__module__])
        assert any(mutant.owner in own for mutant in MODULES[entry.name].MUTANTS), entry.name
    assert len({param.id for param in RUNS}) == len(RUNS)
