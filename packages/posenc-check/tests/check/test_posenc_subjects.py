"""posenc passes its own checks: each kind of scheme, as a function and in a model."""

import pytest

from posenc_check import check
from posenc_check.run import FINDING, PASSED, UNFINISHED
from tests.check.posenc_subjects import LONGEST, SUBJECTS

pytestmark = pytest.mark.more


@pytest.mark.parametrize("name", SUBJECTS)
def test_it_passes_what_applies(name: str) -> None:
    report = check(SUBJECTS[name], name=name, longest=LONGEST)
    wrong = [(r.check.name, t) for r in report.results for t in r.trials if t.status in (FINDING, UNFINISHED)]
    assert not wrong
    assert not report.not_checked
    assert sum(result.status == PASSED for result in report.results) >= 3
