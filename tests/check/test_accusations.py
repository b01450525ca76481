"""Whom the checks do not accuse: numbers that float64 alone lacks, draws that torch does not seed, ends that nobody
claims; and that those who did it are still accused."""

import io
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from posenc.tools.check import Batch, Layer, NotApplicableError, Rotary, check
from posenc.tools.check.checks.configuration import an_option_counts
from posenc.tools.check.checks.shift import moving_all_changes_something
from posenc.tools.check.measure import first_axis
from posenc.tools.check.prepare import prepared
from posenc.tools.check.report import as_data, shown
from posenc.tools.check.run import FINDING, NOT_APPLICABLE, PASSED, TrialResult
from posenc.tools.check.subjects import Subject
from tests.check.mutants.lawful import CORRECT, DeafSections, Sections, turned_both
from tests.check.mutants.lawful_layers import Decoder, DrawnElsewhere, FromZeros, OnARing, decoded, placed, sow_all
from tests.check.small import RIGHT, run_alone

DECODER = Layer(build=Decoder, call=decoded, causal=True, relative=True)


def trials(subject: Subject, number: int) -> dict[str, TrialResult]:
    return {trial.name: trial for trial in check(subject, checks=[number]).results[0].trials}


# -- float64 -----------------------------------------------------------------------------------------------------------


def test_what_float64_alone_makes_infinite_is_run_in_float32_and_the_report_says_so() -> None:
    report = check(DECODER, checks=[7])
    assert report.results[0].status == PASSED
    assert report.settings["dtype"] == "torch.float32"
    assert report.settings["note"] == "run in float32: in float64 some of the outputs are not finite"
    assert "note" not in check(RIGHT, checks=[15]).settings
    (data,) = as_data([report])["subjects"]
    with (console := Console(width=200, file=io.StringIO())).capture() as said:
        console.print(shown(data, {}))
    assert "Decoder: run in float32: in float64 some of the outputs are not finite\n" in said.get()


def only_float32(made: Any, x: Tensor) -> Tensor:
    assert x.dtype == torch.float32
    return x


def nothing() -> None:
    return None


def test_it_is_said_why_it_does_not_run_in_float64() -> None:
    subject, why = prepared(Layer(build=nothing, call=only_float32))
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
@pytest.mark.parametrize(
    ("build", "what"),
    [(DrawnElsewhere, "the parameter 'table'"), (Buffered, "the buffer 'drawn'"), (Output, "its outputs")],
)
def test_two_builds_that_differ_are_refused_with_the_way_out(build: type[nn.Module], what: str) -> None:
    message = (
        f"^build must give the same from the same seed, got two that differ in {what}, which torch's seed does not"
    )
    with pytest.raises(ValueError, match=message):
        check(Layer(build=build, call=placed))
    assert check(Layer(build=build, call=placed, seed=sow_all), checks=[15]).results


def sow_nothing(number: int) -> None:
    pass


def test_a_hook_that_does_not_seed_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"'table', which seed=sow_nothing does not fix\. .* keras\.utils\.set_random_seed"
    ):
        check(Layer(build=DrawnElsewhere, call=placed, seed=sow_nothing))


@pytest.mark.more
def test_a_hook_draws_other_parameters_and_scripts_hold_it() -> None:
    subject = Layer(build=DrawnElsewhere, call=placed, relative=True, max_positions=64, seed=sow_all)
    assert torch.equal(subject.make().table, subject.make().table)
    assert not torch.equal(subject.make().table, subject.drawn_anew().make().table)
    ((_, found), *_) = check(subject, checks=[6]).findings
    assert found.finding is not None
    assert "seed=part_of('tests.check.mutants.lawful_layers', 'sow_all')" in found.finding.script
    assert run_alone(found.finding.script)[0] == 1
    with pytest.raises(ValueError, match="seed must be a function or class at the top level of a file"):
        check(replace(subject, seed=lambda number: None))


class Dropping(nn.Module):
    """Dropout that is not switched off."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5)


def test_a_call_that_draws_is_found_and_its_draws_are_named() -> None:
    found = trials(Layer(build=Dropping, call=placed), 5)
    again = found["calls between: the same"].finding
    assert again is not None
    assert again.came.endswith(", by numbers that each call draws: is dropout on?")
    assert found["what is written"].finding is not None


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.more
def test_positions_that_it_lacks_are_no_finding_where_none_are_claimed() -> None:
    free = trials(Layer(build=FromZeros, call=placed, relative=False, jitter=0.5), 13)
    assert free["long, then short"].status != FINDING
    claimed = trials(Layer(build=FromZeros, call=placed, relative=False, max_positions=100), 13)
    assert claimed["long, then short"].status == FINDING


def test_so_few_positions_that_nothing_can_be_measured_are_said() -> None:
    few = Layer(build=FromZeros, options={"places": 16}, call=placed, relative=False)
    found = trials(few, 13)["long, then short"]
    assert found.status == NOT_APPLICABLE
    assert found.reason.startswith("claim max_positions, for there are positions that it lacks: IndexError")


def fails_when_odd(made: Any, x: Tensor) -> Tensor:
    if x.size(1) % 2 and x.size(1) > 5:
        raise IndexError("an odd one")
    return x


def test_an_error_that_longer_rows_do_not_make_is_no_end() -> None:
    found = trials(Layer(build=nothing, call=fails_when_odd, causal=True), 19)["later tokens"]
    assert found.status == FINDING


# -- what moves a little, or nothing yet -------------------------------------------------------------------------------


def test_every_shift_has_its_own_tolerance() -> None:
    ring = Layer(build=OnARing, call=placed, relative=False)
    assert trials(ring, 6)["absolute"].status == PASSED
    batch = Batch([[1, 2]], positions=[[0, 1]])
    assert moving_all_changes_something(ring, batch, by=[1, 1000], tolerances=[1e-6, 1e-2]).ok
    outcome = moving_all_changes_something(replace(ring, jitter=0.1), batch, by=[1, 1000], tolerances=[1e-2, 1e-2])
    assert not outcome.ok
    assert outcome.came.startswith("outputs that change by no more than rounding does (in brackets): ")


def test_parameters_that_begin_as_zeros_are_moved() -> None:
    assert trials(Layer(build=FromZeros, call=placed, relative=False, max_positions=64), 6)["absolute"].status == PASSED


# -- options and axes --------------------------------------------------------------------------------------------------


@pytest.mark.more
def test_an_option_of_one_axis_is_looked_for_off_the_diagonal() -> None:
    sections = Rotary(build=Sections, call=turned_both, axes=3, varied={"sections": (4, 2, 2)})
    assert trials(sections, 14)["options count"].status == PASSED
    assert trials(replace(sections, build=DeafSections), 14)["options count"].status == FINDING


def of_columns(columns: int = 3) -> int:
    return columns


def as_text(columns: int, x: Tensor) -> Tensor:
    return x


def test_without_positions_an_option_of_one_axis_cannot_show() -> None:
    text, batch = Layer(build=of_columns, call=as_text, axes=2), Batch([[1, 2, 3]])
    with pytest.raises(NotApplicableError, match=r"^give call positions"):
        an_option_counts(text, batch, {"columns": 4}, starts=[0], tokens=3, tolerance=1e-12)


def test_expectations_of_one_coordinate_refuse_what_is_off_the_diagonal() -> None:
    assert (first_axis(3), first_axis([4, 4, 4])) == (3, 4)
    with pytest.raises(NotApplicableError, match=r"\[1, 2\] is known on the diagonal alone"):
        first_axis([1, 2])


@pytest.mark.more
def test_a_finding_with_several_axes_stays_on_the_diagonal() -> None:
    wrong = replace(CORRECT[5], base=100.0)
    assert wrong.axes == 3
    for number, name in ((14, "frequencies"), (1, "angles")):
        finding = trials(wrong, number)[name].finding
        assert finding is not None
        assert finding.batch.positions is not None
        assert all(len(set(p)) == 1 for row in finding.batch.positions for p in row)
        assert run_alone(finding.script)[0] == 1
