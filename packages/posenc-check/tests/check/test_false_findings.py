"""Whom the checks do not accuse: numbers that float64 alone lacks, draws that torch does not seed, ends that nobody
claims; and that those who did it are still accused."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenc_check import Layer, NotApplicableError, check
from posenc_check.checks.rotations import first_axis
from posenc_check.prepare import prepare_subject
from posenc_check.report import as_data
from posenc_check.run import FINDING, NOT_APPLICABLE, PASSED, TrialResult
from posenc_check.subjects import Subject


def trials(subject: Subject, number: int) -> dict[str, TrialResult]:
    return {trial.name: trial for trial in check(subject, checks=[number]).results[0].trials}


def of_local_class() -> nn.Module:
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    return Doubled()


def call(made: nn.Module, x: Tensor) -> Tensor:
    return made(x)  # type: ignore[no-any-return]


def test_a_class_that_is_defined_in_a_function_is_not_pickled() -> None:
    found = trials(Layer(build=of_local_class, call=call), 4)
    assert (found["deepcopy"].status, found["pickle"].status) == (PASSED, NOT_APPLICABLE)


# -- float64 -----------------------------------------------------------------------------------------------------------


def only_float32(made: Any, x: Tensor) -> Tensor:
    assert x.dtype == torch.float32
    return x


def nothing() -> None:
    return None


def test_it_is_said_why_it_does_not_run_in_float64() -> None:
    subject, why = prepare_subject(Layer(build=nothing, call=only_float32))
    assert subject.dtype == torch.float32
    assert why.startswith("run in float32: in float64 it raises AssertionError")


def infinite_when_long(made: Any, x: Tensor) -> Tensor:
    return x * torch.nan if x.size(1) > 20 and x.dtype == torch.float64 else x


def never_finite_when_long(made: Any, x: Tensor) -> Tensor:
    return x * torch.nan if x.size(1) > 20 else x


def test_a_trial_that_is_not_finite_in_float64_alone_is_tried_in_float32() -> None:
    subject = Layer(build=nothing, call=infinite_when_long, causal=True)
    found = trials(subject, 19)["later tokens"]
    assert (found.status, found.note) == (PASSED, "run in float32: in float64 there were numbers that are not finite")
    (data,) = as_data([check(subject, checks=[19])])["subjects"]
    assert "later tokens: run in float32: in float64" in data["results"][0]["found"]
    worse = trials(Layer(build=nothing, call=never_finite_when_long, causal=True), 19)["later tokens"]
    assert worse.status == FINDING
    assert worse.finding is not None
    assert "dtype=torch.float32" in worse.finding.script


# -- draws -------------------------------------------------------------------------------------------------------------


def sow_all(number: int) -> None:
    random.seed(number)
    torch.manual_seed(number)


def placed(made: Any, x: Tensor, positions: Tensor) -> Tensor:
    return made(x, positions)


class Output(nn.Module):
    """What differs cannot be seen on the module."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = random.Random(random.random())

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x * random.Random(repr(self.draw.getstate())).random()


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("drawn", torch.tensor([random.random()]))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.drawn


@pytest.mark.more
@pytest.mark.parametrize(("build", "what"), [(Buffered, "'drawn'"), (Output, "its outputs")])
def test_two_builds_that_differ_are_refused_with_the_way_out(build: type[nn.Module], what: str) -> None:
    message = (
        f"^build must give the same from the same seed, got two that differ in {what}, which torch's seed does not"
    )
    with pytest.raises(ValueError, match=message):
        check(Layer(build=build, call=placed))
    assert check(Layer(build=build, call=placed, seed=sow_all), checks=[15]).results


class Dropping(nn.Module):
    """Dropout that is not switched off."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5)


def test_a_call_that_draws_is_found_and_its_draws_are_named() -> None:
    found = trials(Layer(build=Dropping, call=placed), 5)
    again = found["calls between: the same"].finding
    assert again is not None
    assert again.actual.endswith(", by numbers that each call draws: is dropout on?")
    assert found["what is written"].finding is not None


# -- ends --------------------------------------------------------------------------------------------------------------


def fails_when_odd(made: Any, x: Tensor) -> Tensor:
    if x.size(1) % 2 and x.size(1) > 5:
        raise IndexError("an odd one")
    return x


def test_an_error_that_longer_rows_do_not_make_is_no_end() -> None:
    found = trials(Layer(build=nothing, call=fails_when_odd, causal=True), 19)["later tokens"]
    assert found.status == FINDING


# -- options and axes --------------------------------------------------------------------------------------------------


def test_expectations_of_one_coordinate_refuse_what_is_off_the_diagonal() -> None:
    assert (first_axis(3), first_axis([4, 4, 4])) == (3, 4)
    with pytest.raises(NotApplicableError, match=r"\[1, 2\] is known on the diagonal alone"):
        first_axis([1, 2])
