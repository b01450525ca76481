"""Running checks: what counts as passed, and what does not."""

import re
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenc_check import Bias, Layer, NotApplicableError, Report, Rotary, Subject, check, conformance_tests, run
from posenc_check.outcome import Outcome
from posenc_check.subjects import Batch, require
from posenc_check.trial import Case, Check, Trial, TrialPlan


def build() -> list[int]:
    return []


def same(made: Any, x: Tensor) -> Tensor:
    return x


def fails(made: Any, x: Tensor) -> Tensor:
    return dict.fromkeys(range(6), x)[x.size(1)]


def never_returns(made: Any, x: Tensor) -> Tensor:
    made.append(x.size(1))
    while x.size(1) == 7:
        time.sleep(0.01)
    return x


def ends(made: Any, x: Tensor) -> Tensor:
    return sys.exit(0) if x.size(1) == 7 else x


class Stop(BaseException):
    """As what pytest.skip raises, and other packages."""


STOPPED: list[bool] = []


def stops_for_good(made: Any, x: Tensor) -> Tensor:
    if x.size(1) == 7:
        STOPPED.append(True)
    if STOPPED:
        raise Stop("no more")
    return x


def stops(made: Any, x: Tensor) -> Tensor:
    if x.size(1) == 7:
        raise Stop("no more")
    return x


def stops_at_once(made: Any, x: Tensor) -> Tensor:
    raise Stop("no more")


def ends_at_once(made: Any, x: Tensor) -> Tensor:
    sys.exit(0)


def waits(made: Any, x: Tensor) -> Tensor:
    while True:
        time.sleep(0.01)


def sleeps(made: Any, x: Tensor) -> Tensor:
    time.sleep(0.1)
    return x


def only_float32(made: Any, x: Tensor) -> Tensor:
    assert x.dtype == torch.float32
    return x


def never(made: Any, x: Tensor) -> Tensor:
    raise RuntimeError("no kernel")


CALLS = [0]


def refuses_the_second_call(made: Any, x: Tensor) -> Tensor:
    CALLS[0] += 1
    if CALLS[0] > 1:
        raise ValueError("no more")
    return x


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def verbose(made: Any, x: Tensor) -> Tensor:
    raise RuntimeError("m" * 10**6)


def mute(made: Any, x: Tensor) -> Tensor:
    raise MuteError


def inside_torch(made: Any, x: Tensor) -> Tensor:
    return x @ torch.ones(3, dtype=x.dtype)


def without_a_tensor(made: Any, x: Tensor) -> Any:
    return [x]


def outputs_are_finite(subject: Subject, batch: Batch) -> Outcome:
    out = subject.run(subject.make(), batch)
    return Outcome(bool(out.isfinite().all()), "finite", "not")


def never_applies(subject: Subject, batch: Batch) -> Outcome:
    raise NotApplicableError("no such thing here")


def _texts(plan: TrialPlan) -> Iterator[Case]:
    for tokens in (3, 7, 9):
        yield Case(plan.text(2, tokens))


def _refuses(plan: TrialPlan) -> Iterator[Case]:
    require(False, "it is not of this kind")
    yield from ()


def _nothing(plan: TrialPlan) -> Iterator[Case]:
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
    [
        (NEVER, "no such thing here"),
        (REFUSES, "it is not of this kind"),
        (NOTHING, "nothing to do: there is no case of it"),
    ],
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
    assert re.fullmatch(r"KeyError: 6 \(test_run.py, line \d+: return .*\)", trial.finding.actual)
    assert (len(trial.finding.batch.ids), trial.finding.batch.tokens) == (1, 6)
    assert entry.number == 1
    assert "transformers#25681" in report.results[0].threads


def test_what_does_not_return_is_unfinished(one_check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SECONDS_OF_GRACE", 0.1)
    report = one_check(never_returns, FINITE, seconds=0.2)
    (trial,) = report.results[0].trials
    assert (trial.status, trial.cases) == ("unfinished", 1)
    assert not report.ok
    assert trial.reason == "the time was up within case 2"


def test_what_never_returns_before_the_checks_is_said(one_check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SECONDS_OF_GRACE", 0.1)
    with pytest.raises(ValueError, match=r"^the subject does not return within 0.2 s, ten times `seconds`$"):
        one_check(waits, FINITE, seconds=0.02)


def test_to_end_the_program_is_a_finding(one_check: Any) -> None:
    ((_, trial),) = one_check(ends, FINITE).findings
    assert trial.finding.expected == "an answer"
    assert trial.finding.actual.startswith("SystemExit: 0 (test_run.py, line ")


@pytest.mark.parametrize("call", [stops, stops_for_good])
def test_what_is_no_exception_does_not_pass(one_check: Any, call: Any) -> None:
    STOPPED.clear()
    (result,) = one_check(call, FINITE).results
    assert result.status == "unfinished"
    assert result.reason.startswith("the cases could not be made: your call raised Stop: no more (test_run.py, line ")


@pytest.fixture
def rung() -> Iterator[list[int]]:
    """The alarms that reached the caller's own handler."""
    rang: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rang.append(number))
    yield rang
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_timer_of_the_caller_goes_on_with_the_rest_of_its_time(one_check: Any, rung: list[int]) -> None:
    own = signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 300.0, 7.0)
    begun = time.monotonic()
    report = one_check(sleeps, FINITE)
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    assert report.ok
    assert 300.0 - (time.monotonic() - begun) - 0.1 < left < 300.0 - 0.3  # three cases of 0.1 seconds
    assert interval == pytest.approx(7.0)
    assert signal.getsignal(signal.SIGALRM) is own
    assert not rung


def test_it_runs_in_float32_where_it_must(one_check: Any) -> None:
    assert one_check(only_float32, FINITE).subject.dtype == torch.float32
    assert one_check(same, FINITE).subject.dtype == torch.float64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            never,
            r"the subject does not run: RuntimeError: no kernel \(test_run.py, line \d+: raise RuntimeError\(\"no k",
        ),
        (
            inside_torch,
            r"does not run: RuntimeError: .*\(test_run.py, line \d+: return x @ torch.ones\(3, dtype=x.dtype\)\)",
        ),
        (refuses_the_second_call, r"the subject does not run: ValueError: no more \(test_run.py, line \d+: raise Val"),
        (verbose, r"does not run: RuntimeError: m{10000} … \(1,000,000 characters\) \(test_run.py, line \d+: raise R"),
        (mute, r"does not run: MuteError: its message cannot be read: RuntimeError \(test_run.py, line \d+: "),
        (ends_at_once, r"the subject does not run: SystemExit: 0 \(test_run.py, line \d+: sys.exit\(0\)\)"),
        (stops_at_once, r"the subject does not run: Stop: no more \(test_run.py, line \d+: raise Stop"),
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
        ({"checks": [7, 22]}, r"checks must be of 1, .*21, got 22"),
        ({"lengths": []}, r"lengths must be from 1 to longest = 1025, got \[\]"),
        ({"lengths": [0]}, r"lengths must be from 1 to longest = 1025, got \[0\]"),
        ({"lengths": [9], "longest": 8}, r"lengths must be from 1 to longest = 8, got \[9\]"),
        ({"seconds": 0.0}, "seconds must be above 0, got 0.0"),
        ({"seconds": "1"}, "seconds must be a finite number, got '1'"),
        ({"seconds": float("inf")}, "seconds must be a finite number, got inf"),
        ({"seconds": float("nan")}, "seconds must be a finite number, got nan"),
        ({"checks": "7"}, "checks must be a list or tuple of whole numbers, got '7'"),
        ({"checks": 7}, "checks must be a list or tuple of whole numbers, got 7"),
        ({"checks": [True]}, r"checks must be a list or tuple of whole numbers, got \[True\]"),
        ({"lengths": 5}, "lengths must be a list or tuple of whole numbers, got 5"),
        ({"lengths": ["3"]}, r"lengths must be a list or tuple of whole numbers, got \['3'\]"),
        ({"lengths": [2.5]}, r"lengths must be a list or tuple of whole numbers, got \[2.5\]"),
        ({"longest": "a"}, "longest must be a whole number of at least 1, got 'a'"),
        ({"seed": 0.5}, "seed must be a whole number of at least 0, got 0.5"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        check(Layer(build=build, call=same), **wrong)


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (Layer, {"options": [1]}, r"options must be a Mapping, got \[1\]"),
        (Layer, {"varied": ["base"]}, r"varied must be a Mapping, got \['base'\]"),
        (Layer, {"flat": 3}, "flat must be a Mapping or None, got 3"),
        (Layer, {"refused": {"x": 1}}, "refused must be a list or tuple of mappings, got {'x': 1}"),
        (Layer, {"backends": ("sdpa",)}, r"backends must be a list or tuple of mappings, got \('sdpa',\)"),
        (Layer, {"state": "mean"}, "state must be a list or tuple of names, got 'mean'"),
        (Layer, {"causal": 1}, "causal must be True or False, got 1"),
        (Layer, {"compiles": None}, "compiles must be True or False, got None"),
        (Layer, {"relative": "yes"}, "relative must be a bool or None, got 'yes'"),
        (Layer, {"axes": 0}, "axes must be a whole number of at least 1, got 0"),
        (Layer, {"max_positions": 0}, "max_positions must be a whole number of at least 1, got 0"),
        (Layer, {"distinct_to": 0}, "distinct_to must be a whole number of at least 1, got 0"),
        (Layer, {"threshold": 2.5}, "threshold must be a whole number of at least 1, got 2.5"),
        (Layer, {"registers": -1}, "registers must be a whole number of at least 0, got -1"),
        (
            Layer,
            {"seed": "a"},
            "seed must be a whole number within -9223372036854775808..18446744073709551615, got 'a'",
        ),
        (Layer, {"jitter": -0.5}, "jitter must be at least 0, got -0.5"),
        (Layer, {"jitter": float("nan")}, "jitter must be a finite number, got nan"),
        (Layer, {"dtype": "float32"}, "dtype must be torch.float64, torch.float32, .*, got 'float32'"),
        (Layer, {"dtype": torch.int64}, "dtype must be torch.float64, torch.float32, .*, got torch.int64"),
        (Layer, {"computes_in": torch.int64}, "computes_in must be torch.float64, .*, got torch.int64"),
        (Layer, {"device": 0}, "device must be a str or a device, got 0"),
        (Layer, {"device": "abacus"}, "device must be one that is here, got 'abacus', on which .*: RuntimeError: "),
        (Layer, {"device": "meta"}, "device must be one that is here, got 'meta', on which .*: RuntimeError: "),
        (Layer, {"dim": 0}, "dim must be a whole number of at least 1, got 0"),
        (Bias, {"heads": 0}, "heads must be a whole number of at least 1, got 0"),
        (Bias, {"slopes": [0.5, "a"]}, r"slopes\[1\] must be a finite number, got 'a'"),
        (Bias, {"heads_option": 3}, "heads_option must be a str, got 3"),
        (Rotary, {"head_dim": 0}, "head_dim must be a whole number of at least 1, got 0"),
        (Rotary, {"layout": "halves"}, "layout must be 'half' or 'interleaved', got 'halves'"),
        (Rotary, {"rotary_dim": 17}, r"rotary_dim must be a whole number within 1..16, got 17"),
        (Rotary, {"base": 0.0}, "base must be a finite number above 0, got 0.0"),
        (Rotary, {"scale": "1"}, "scale must be a finite number above 0, got '1'"),
        (Rotary, {"frequencies": 1.0}, "frequencies must be a list, a tuple or None, got 1.0"),
        (Rotary, {"other_layout": "half"}, "other_layout must be a Mapping, got 'half'"),
    ],
)
def test_what_a_subject_cannot_be_is_named(kind: Any, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        check(kind(build=build, call=same, **wrong))


def unheard_of(made: Any, x: Tensor, temperature: float) -> Tensor:
    return x


def takes_anything(made: Any, x: Tensor, *others: Any, **named: Any) -> Tensor:
    return x


def test_a_parameter_that_nothing_is_given_to_is_named() -> None:
    names = "positions, padding, document, order, cache, memory, memory_positions, grid"
    message = f"a parameter of call for a Layer must be one of {names}, got "
    with pytest.raises(ValueError, match=f"^{message}'temperature'$"):
        check(Layer(build=build, call=unheard_of))
    assert check(Layer(build=build, call=takes_anything), checks=[10]).ok


def test_what_is_no_subject_is_named() -> None:
    subject: Any = nn.Linear(3, 3)
    message = r"^subject must be a Subject, got Linear\(in_features=3, out_features=3, bias=True\)$"
    with pytest.raises(ValueError, match=message):
        check(subject)
    with pytest.raises(pytest.fail.Exception, match=message):
        conformance_tests(subject)(1)
