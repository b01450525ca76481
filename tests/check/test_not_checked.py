"""A claim that no trial could try is not checked: it is said, in every form, and it is no pass."""

from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

from posenc.tools.check import Bias, Layer, Rotary, Subject, check, conformance_tests, report
from posenc.tools.check.checks import CHECKS
from tests.check.small import nothing, rotate
from tests.rows import first_of


def line(slopes: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return -slopes[:, None, None] * (query_positions[:, None, :, None] - key_positions[:, None, None, :]).abs()


def slopes(heads: int = 3) -> Tensor:
    """Of a power of two alone are they ALiBi's."""
    return 2.0 ** (-8 * (torch.arange(heads) + 1) / heads).double()


def slopes_of_so_many(groups: int = 3) -> Tensor:
    return slopes(groups)


class Learned(nn.Module):
    """A slope for each head that is trained, which no paper gives."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = nn.Parameter(slopes())


def learned_line(made: Learned, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return line(made.slopes, query_positions, key_positions)


def logarithm(slopes: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return -slopes[:, None, None] * (1 - line(torch.ones(1), query_positions, key_positions)).log()


def add_one(made: Any, x: Tensor) -> Tensor:
    return x + 1


ALIBI = Bias(build=slopes, call=line, options={"heads": 3})
FEW = Layer(build=nothing, call=add_one, compiles=True, max_positions=4)  # too few for the lengths of check 18


def unchecked(subject: Subject, *checks: int) -> dict[str, str]:
    return {claim.said: claim.reason for claim in check(subject, checks=checks).not_checked}


# -- which claims ------------------------------------------------------------------------------------------------------


def test_a_claim_that_no_trial_could_try_is_not_checked() -> None:
    found = check(FEW, checks=[18])
    (claim,) = found.not_checked
    assert (claim.claim, claim.said, claim.checks) == ("compiles", "compiles=True", (18,))
    assert claim.reason == "let it have more positions: 4 tokens are too few for 8 lengths above 1"
    assert [result.status for result in found.results] == ["not applicable"]
    assert not found.ok


@pytest.mark.more
def test_what_is_not_claimed_or_was_tried_is_not_said() -> None:
    right = Rotary(build=nothing, call=rotate, relative=True, base=10_000.0, layout="half", rotary_dim=16)
    assert unchecked(right, *(entry.number for entry in CHECKS if entry.number not in (5, 16, 17))) == {}
    assert unchecked(Layer(build=nothing, call=add_one), 6, 18, 19, 20) == {}


def test_claims_that_trials_name_are_fields_of_some_subject() -> None:
    fields = {name for kind in (Rotary, Bias, Layer) for name in kind.__dataclass_fields__}
    assert {claim for entry in CHECKS for trial in entry.trials for claim in trial.claims} <= fields


# -- slopes that nobody claims -----------------------------------------------------------------------------------------


def test_a_bias_that_is_a_line_for_each_head_must_say_where_its_slopes_come_from() -> None:
    ways_out = (
        "which names the option that says how many heads there are, or `slopes`: it is linear in the distance, and "
    )
    assert unchecked(ALIBI, 19) == {"slopes": f"claim `heads_option='heads'`, {ways_out}runs with 3 heads alone"}
    nameless = Bias(build=slopes_of_so_many, call=line)
    assert unchecked(nameless, 19)["slopes"].startswith(
        "claim `slopes`, or let build take the number of heads and name it in `heads_option`: it is linear"
    )


@pytest.mark.parametrize(
    "subject",
    first_of(
        [
            Bias(build=Learned, call=learned_line),
            Bias(build=slopes, call=logarithm),
            Bias(build=slopes, call=line, slopes=[2.0 ** (-8 * h / 3) for h in (1, 2, 3)]),
            Bias(build=slopes, call=line, options={"heads": 1}),
            Bias(build=slopes, call=line, like="alibi"),
        ]
    ),
    ids=["learned", "no line", "claimed", "of one head", "like ALiBi"],
)
def test_what_is_not_alibi_or_says_what_it_is_owes_no_slopes(subject: Subject) -> None:
    assert unchecked(subject, 19) == {}


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
