"""Running checks: what counts as passed, and what does not."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc.conformance import Layer, NotApplicableError, Report, Subject, check, run
from posenc.conformance.outcome import Outcome
from posenc.conformance.subjects import Batch
from posenc.conformance.trial import Case, Check, Plan, Trial


def build() -> list[int]:
    return []


def same(made: Any, x: Tensor) -> Tensor:
    return x


def fails(made: Any, x: Tensor) -> Tensor:
    if x.size(1) > 5:
        raise RuntimeError("six are too many")
    return x


def never_returns(made: Any, x: Tensor) -> Tensor:
    made.append(x.size(1))
    while x.size(1) == 7:
        time.sleep(0.01)
    return x


def only_float32(made: Any, x: Tensor) -> Tensor:
    assert x.dtype == torch.float32
    return x


def never(made: Any, x: Tensor) -> Tensor:
    raise RuntimeError("no kernel")


def without_a_tensor(made: Any, x: Tensor) -> Any:
    return [x]


def outputs_are_finite(subject: Subject, batch: Batch) -> Outcome:
    out = subject.run(subject.make(), batch)
    return Outcome(bool(out.isfinite().all()), "finite", "not")


def never_applies(subject: Subject, batch: Batch) -> Outcome:
    raise NotApplicableError("no such thing here")


def _texts(plan: Plan) -> Iterator[Case]:
    for tokens in (3, 7, 9):
        yield Case(plan.text(2, tokens))


def _refuses(plan: Plan) -> Iterator[Case]:
    plan.require(False, "it is not of this kind")
    yield from ()


def _nothing(plan: Plan) -> Iterator[Case]:
    yield from ()


FINITE = Trial("finite", outputs_are_finite, _texts)
NEVER = Trial("never", never_applies, _texts)
REFUSES = Trial("refuses", outputs_are_finite, _refuses)
NOTHING = Trial("nothing", outputs_are_finite, _nothing)


@pytest.fixture
def one_check(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a subject against one check made of the trials given."""

    def with_trials(call: Any, *trials: Trial, seconds: float = 30.0) -> Report:
        only = Check(1, "made up", "It holds.", "It matters.", (1,), trials)
        monkeypatch.setattr(run, "CHECKS", (only,))
        return check(Layer(build=build, call=call), seconds=seconds)

    return with_trials


def test_a_check_passes_if_something_was_tried_and_held(one_check: Any) -> None:
    report = one_check(same, FINITE, NEVER)
    assert [trial.status for trial in report.results[0].trials] == ["passed", "not applicable"]
    assert report.results[0].status == "passed"
    assert report.ok
    assert report.results[0].trials[0].cases == 3


@pytest.mark.parametrize(
    ("trial", "reason"),
    [(NEVER, "no such thing here"), (REFUSES, "it is not of this kind"), (NOTHING, "there is no case of it")],
)
def test_nothing_passes_by_default(one_check: Any, trial: Trial, reason: str) -> None:
    report = one_check(same, trial)
    assert report.results[0].status == "not applicable"
    assert report.results[0].reason == reason


def test_an_error_is_a_finding_made_small(one_check: Any) -> None:
    report = one_check(fails, FINITE, NEVER)
    ((entry, trial),) = report.findings
    assert not report.ok
    assert report.results[0].status == "finding"
    assert trial.finding.came == "RuntimeError: six are too many"
    assert (len(trial.finding.batch.ids), trial.finding.batch.tokens) == (1, 6)
    assert entry.number == 1
    assert "transformers#25681" in report.results[0].threads


def test_what_does_not_return_is_unfinished(one_check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "GRACE", 0.1)
    report = one_check(never_returns, FINITE, seconds=0.2)
    (trial,) = report.results[0].trials
    assert (trial.status, trial.cases) == ("unfinished", 1)
    assert not report.ok
    assert trial.reason == "the time was up within case 2"


def test_it_runs_in_float32_where_it_must(one_check: Any) -> None:
    assert one_check(only_float32, FINITE).subject.dtype == torch.float32
    assert one_check(same, FINITE).subject.dtype == torch.float64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (never, "the subject does not run: RuntimeError: no kernel"),
        (without_a_tensor, r"call must give a tensor \(rows, tokens, …\), got list"),
        (lambda made, x: x, "call must be a function or class at the top level of a file"),
    ],
)
def test_what_cannot_be_checked_says_so(one_check: Any, call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one_check(call, FINITE)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"checks": [7, 21]}, r"checks must be of 1, .*20, got 21"),
        ({"lengths": []}, r"lengths must be from 1 to longest = 1025, got \[\]"),
        ({"lengths": [0]}, r"lengths must be from 1 to longest = 1025, got \[0\]"),
        ({"lengths": [9], "longest": 8}, r"lengths must be from 1 to longest = 8, got \[9\]"),
        ({"seconds": 0.0}, "seconds must be above 0, got 0.0"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(Layer(build=build, call=same), **wrong)
