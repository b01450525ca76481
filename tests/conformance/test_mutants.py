"""The checks are checked: each catches the bugs it names, and accuses nobody who has none."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from posenc.conformance import Subject, check
from posenc.conformance.run import FINDING, UNFINISHED
from tests.conformance.mutants import (
    Mutant,
    attention_functions,
    biases,
    bounds,
    compilation,
    configuration,
    distinct,
    grids,
    layers,
    layout,
    life_cycle,
    memory,
    meta,
    models,
    parity,
    phase,
    purity,
    rotations,
)

MODULES: tuple[ModuleType, ...] = (
    phase,
    distinct,
    meta,
    life_cycle,
    purity,
    rotations,
    biases,
    attention_functions,
    layers,
    models,
    configuration,
    layout,
    parity,
    memory,
    compilation,
    bounds,
    grids,
)

MUTANTS = [mutant for module in MODULES for mutant in module.MUTANTS]
CORRECT = [subject for module in MODULES for subject in module.CORRECT]
FIRST = {mutant.caught_by: mutant.name for mutant in reversed(MUTANTS)}  # the first mutant of each check


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_check_that_names_it_catches_it(mutant: Mutant, tmp_path: Path) -> None:
    report = check(mutant.subject, checks=[mutant.caught_by])
    assert report.results[0].status == FINDING
    if FIRST[mutant.caught_by] == mutant.name:
        (_, trial), *_ = report.findings
        assert trial.finding is not None
        without = "import sys\nsys.modules['posenc'] = None\nsys.path.insert(0, %r)\n" % str(Path(__file__).parents[2])
        path = tmp_path / "finding.py"
        path.write_text(trial.finding.script, encoding="utf-8")
        source = without + f"exec(compile(open({str(path)!r}).read(), {str(path)!r}, 'exec'))"
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 1 and trial.finding.came in done.stdout, done.stderr


@pytest.mark.parametrize("subject", CORRECT, ids=lambda subject: subject.build.__qualname__)
def test_nobody_is_accused_who_is_right(subject: Subject) -> None:
    report = check(subject)
    wrong = [(r.check.name, t) for r in report.results for t in r.trials if t.status in (FINDING, UNFINISHED)]
    assert not wrong
