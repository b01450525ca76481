"""A claim that no trial could try is not checked: it is said, in every form, and it is no pass."""

from typing import Any
from xml.etree import ElementTree

import pytest
from torch import Tensor

from posenc_check import Bias, Layer, Rotary, check, conformance_tests, report
from posenc_check.checks import CHECKS
from tests.check.small_subjects import nothing, rotate


def add_one(made: Any, x: Tensor) -> Tensor:
    return x + 1


FEW = Layer(build=nothing, call=add_one, compiles=True, max_positions=4)  # too few for the lengths of check 18


# -- which claims ------------------------------------------------------------------------------------------------------


def test_a_claim_that_no_trial_could_try_is_not_checked() -> None:
    found = check(FEW, checks=[18])
    (claim,) = found.not_checked
    assert (claim.claim, claim.said, claim.checks) == ("compiles", "compiles=True", (18,))
    assert claim.reason == "let it have more positions: 4 tokens are too few for 8 lengths above 1"
    assert [result.status for result in found.results] == ["not applicable"]
    assert not found.ok


def test_claims_that_trials_name_are_fields_of_some_subject() -> None:
    fields = {name for kind in (Rotary, Bias, Layer) for name in kind.__dataclass_fields__}
    assert {claim for entry in CHECKS for trial in entry.trials for claim in trial.claims} <= fields


# -- how it is said ----------------------------------------------------------------------------------------------------


def test_every_form_says_it() -> None:
    data = report.as_data([check(FEW, checks=[18], name="few")])
    (subject,) = data["subjects"]
    reason = "let it have more positions: 4 tokens are too few for 8 lengths above 1"
    assert not data["ok"]
    assert subject["not_checked"] == [{"claim": "compiles", "said": "compiles=True", "reason": reason, "checks": [18]}]
    assert report.summary(subject) == "1 claim not checked, 1 not applicable"
    (suite,) = ElementTree.fromstring(report.as_junit(data).encode())
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["2", "0", "1", "1"]
    assert suite[1].get("name") == "claim compiles=True"
    assert suite[1][0].attrib == {"type": "not checked", "message": reason}


def test_it_is_a_test_of_its_own() -> None:
    test = conformance_tests(FEW, checks=[18])
    with pytest.raises(pytest.skip.Exception):
        test(18)
    with pytest.raises(pytest.fail.Exception, match=r"^not checked: compiles=True: let it have more"):
        test(None)
    with pytest.raises(pytest.fail.Exception, match=r"^not checked: compiles=True"):
        conformance_tests(FEW, checks=[18])(None)  # without the tests before it
    conformance_tests(Rotary(build=nothing, call=rotate, layout="half"), checks=[15])(None)
