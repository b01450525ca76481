"""The checks are checked: each catches the bugs it names, and accuses nobody who has none."""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

import pytest

from posenc_check import Subject, check
from posenc_check.run import FINDING, PASSED, UNFINISHED
from posenc_check.trial import THREADS
from tests.check import mutants
from tests.check.mutants import Mutant
from tests.check.small_subjects import run_alone

pytestmark = pytest.mark.more
MODULES = [import_module(f"{mutants.__name__}.{module.name}") for module in iter_modules(mutants.__path__)]
MUTANTS = [mutant for module in MODULES for mutant in module.MUTANTS]
CORRECT = [subject for module in MODULES for subject in module.CORRECT]
FIRST = {type(subject): subject for subject in reversed(CORRECT)}  # of each kind; `make survey` runs the others


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_check_that_names_it_catches_it(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    report = check(mutant.subject, checks=[mutant.caught_by])
    assert report.results[0].status == FINDING
    (_, trial), *_ = report.findings
    assert trial.finding is not None
    code, printed = run_alone(trial.finding.script)
    assert code == 1
    assert trial.finding.actual in printed
    record_property("caught by", f"posenc check, {mutant.caught_by}. {report.results[0].check.name}, {trial.name}")


def test_every_pain_has_a_mutant() -> None:
    assert {mutant.pain for mutant in MUTANTS} == set(THREADS)


@pytest.mark.parametrize("number", range(1, 22))
def test_every_check_has_a_mutant_and_is_passed_by_a_twin(number: int) -> None:
    assert number in {mutant.caught_by for mutant in MUTANTS}
    assert any(check(subject, checks=[number]).results[0].status == PASSED for subject in CORRECT)


@pytest.mark.parametrize(
    "subject",
    [pytest.param(s, id=s.build.__qualname__, marks=[pytest.mark.survey] * (FIRST[type(s)] is not s)) for s in CORRECT],
)
def test_nobody_is_accused_who_is_right(subject: Subject) -> None:
    report = check(subject)
    wrong = [(r.check.name, t) for r in report.results for t in r.trials if t.status in (FINDING, UNFINISHED)]
    assert not wrong
