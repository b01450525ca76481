"""The checks that measure, 1, 2, 14, 15, 19 and 20: what they run on, what they cannot see, what they never ask for."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc_check import Bias, Rotary, Subject, check
from posenc_check.checks.bounds import published_slopes
from posenc_check.outcome import OUTPUT, near
from posenc_check.report import as_data
from posenc_check.run import FINDING, NOT_APPLICABLE, PASSED, Result
from tests.check.mutants import bounds, configuration, grids, phase
from tests.check.mutants.phase import Turn, turn
from tests.check.small_subjects import RIGHT, WRONG, rotate
from tests.rows import first_of, in_one_test

NUMBERS = (1, 2, 14, 15, 19, 20)


def results(subject: Subject, numbers: tuple[int, ...] = NUMBERS) -> dict[int, Result]:
    report = check(subject, checks=numbers, lengths=(1, 3, 8))
    return {result.check.number: result for result in report.results}


def statuses(subject: Subject, numbers: tuple[int, ...] = NUMBERS) -> dict[str, str]:
    return {t.name: t.status for result in results(subject, numbers).values() for t in result.trials}


def reasons(subject: Subject, number: int) -> dict[str, str]:
    return {trial.name: trial.reason for trial in results(subject, (number,))[number].trials}


# -- what is right passes, and not because nothing was tried ----------------------------------------------------------


def in_float32(base: float, x: Tensor, positions: Tensor) -> Tensor:
    """Phases as most write them, rounded to float32 at every step."""
    pairs = torch.arange(0, x.size(-1), 2).float() / x.size(-1)
    angle = positions[:, None, :, None].float() * (1.0 / base**pairs)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, left * sin + right * cos), -1)


def a_base(base: float = 1_000_000.0) -> float:
    return base


def turn_in_float32(base: float, x: Tensor, positions: Tensor) -> Tensor:
    return in_float32(base, x, positions)


def turn_the_other_way(base: float, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    return in_float32(base, query, -positions), in_float32(base, key, -positions)


def turn_from_an_offset(base: float, x: Tensor, offset: int = 0) -> Tensor:
    return in_float32(base, x, torch.arange(offset, offset + x.size(2))[None])


def turn_from_zero(base: float, x: Tensor) -> Tensor:
    return turn_from_an_offset(base, x)


ROTARY: dict[str, Any] = {"build": a_base, "base": 1_000_000.0, "layout": "half"}
ROWS = {"as many rows as tokens", "rows of other lengths"}
TOLD = {*ROWS, "rows of other places"}  # where positions are told
ROTATIONS = {"angles", "rotations", "frequencies", "pairs", "lengths", *ROWS}
APPLY: dict[str, tuple[Subject, set[str]]] = {
    "float32": (Rotary(call=turn_in_float32, **ROTARY), ROTATIONS | TOLD),
    "the other way": (Rotary(call=turn_the_other_way, **ROTARY), ROTATIONS | TOLD),
    "offset": (Rotary(call=turn_from_an_offset, **ROTARY), ROTATIONS),
    "neither positions nor offset": (Rotary(call=turn_from_zero, **ROTARY), ROTATIONS),
    "no claims": (Rotary(build=Turn, call=turn), {"angles", "rotations", "lengths", *TOLD}),
    "all claims": (
        configuration.rotary(Turn),
        ROTATIONS
        | TOLD
        | {"options count", "unknown options", "nothing is shared", "the other channels", "the other layout"}
        | {"values that are refused"},
    ),
    "two axes": (
        grids.axial(grids.Axial),
        {"angles", "rotations", "lengths", *TOLD, "every axis is seen", "moving along an axis"},
    ),
    "three axes": (
        grids.sections(grids.Sections),
        {"angles", "rotations", "lengths", *TOLD, "every axis is seen"}
        | {"moving along an axis", "text alone", "after an image"},
    ),
    "slopes": (bounds.slopes(bounds.Alibi), {"far positions", "biases", "slopes", *TOLD}),
    "a table of places": (
        bounds.table(bounds.Table),
        {"positions past the end", "as many rows as tokens", "rows of other places", "the longest row"},
    ),
    "registers": (
        grids.patches(grids.Patches, registers=2),
        {"late tokens", "as many rows as tokens", "shape of the grid", "scores by offsets"},
    ),
}


@pytest.mark.parametrize("name", first_of(APPLY))
def test_what_is_right_passes_what_applies(name: str) -> None:
    subject, apply = APPLY[name]
    found = statuses(subject)
    assert {trial for trial, status in found.items() if status != NOT_APPLICABLE} == apply
    assert {found[trial] for trial in apply} == {PASSED}


@in_one_test(range(1, 65))
def test_the_published_slopes(heads: int) -> None:
    """As the authors' code has them, which calls itself for the power of two below and for twice that."""

    def slopes(n: int) -> list[float]:
        if math.log2(n).is_integer():
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start * start**i for i in range(n)]
        below = 2 ** math.floor(math.log2(n))
        return slopes(below) + slopes(2 * below)[0::2][: n - below]

    assert published_slopes(heads) == pytest.approx(slopes(heads), rel=1e-12)


def test_slopes_may_be_claimed_one_by_one() -> None:
    claimed = Bias(build=phase.Slopes, call=phase.bias, heads=4, slopes=[0.25, 0.0625, 0.015625, 0.00390625])
    assert statuses(claimed, (19,))["slopes"] == PASSED
    assert statuses(replace(claimed, slopes=[0.25, 0.0625, 0.015625, 0.004]), (19,))["slopes"] == FINDING


@pytest.mark.parametrize("claims", [{"base": 7e4, "layout": "half"}, {"base": 500.0, "layout": "interleaved"}])
def test_another_base_or_layout_is_no_matter_of_precision(claims: dict[str, Any]) -> None:
    claimed = replace(RIGHT, **claims)
    assert statuses(claimed, (1,))["angles"] == PASSED
    assert statuses(claimed, (14,))["frequencies"] == FINDING


def fill_too_much(base: float, x: Tensor, positions: Tensor) -> Tensor:
    return rotate(base, x.masked_fill(x.isnan(), -1e9), positions)


def test_a_failure_in_low_precision_is_not_said_to_be_one_of_phases() -> None:
    (subject,) = as_data([check(replace(RIGHT, call=fill_too_much), checks=[1])])["subjects"]
    (trial,) = (trial for trial in subject["results"][0]["trials"] if trial["finding"])
    assert "value cannot be converted" in trial["finding"]["came"]
    assert trial["finding"]["remedy"].startswith("It failed in torch.float16, before anything was compared")


@pytest.mark.parametrize(
    ("tolerance", "axes", "words"),
    [
        (0.5, (), ["0 at [0, 1, 2]", "1, off by 1 (at most 0.5)"]),
        (0.999, OUTPUT, ["0 at row 0, token 1, channel 2", "1, off by 1 (at most 0.999)"]),
        (0.5, OUTPUT[:2], ["0 at [0, 1, 2]", "1, off by 1 (at most 0.5)"]),
    ],
)
def test_a_difference_says_where_it_is_and_how_large(tolerance: float, axes: tuple[str, ...], words: list[str]) -> None:
    other = torch.zeros(1, 2, 3)
    other[0, 1, 2] = 1
    assert list(near(torch.zeros(1, 2, 3), other, tolerance, axes)[1:]) == words


# -- what cannot be seen is no pass -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("subject", "what"), [(phase.rotary(phase.PositionsInTheDtypeOfX, base=None), "angle")])
def test_a_finding_of_low_precision_names_what_was_lost_in_it(subject: Subject, what: str) -> None:
    """Shrinking leaves an error that is hardly above what is allowed, which alone would read as noise."""
    (finding, *_) = (found.finding for _, found in check(subject, checks=[1]).findings)
    assert finding is not None
    words = rf"; in (torch\.\w+) the {what} (\S+) is off by up to (\S+), in float32 by (\S+): compute it in float32$"
    said = re.search(words, finding.actual)
    assert said
    size, low, single = map(float, said.groups()[1:])
    eps = torch.finfo(getattr(torch, said[1].removeprefix("torch."))).eps
    assert (low, single) == pytest.approx((size * eps / 2, size * 2**-24), rel=0.05)  # two digits are printed
    (finding, *_) = (found.finding for _, found in check(replace(WRONG, base=500.0), checks=[1]).findings)
    assert finding is not None
    assert "compute it in float32" not in finding.actual  # positions by index are no loss of precision


@pytest.mark.parametrize(
    ("subject", "number", "trial", "reason"),
    [
        (bounds.table(bounds.Table), 1, "far positions", "positions end at 40, where low precision holds them all"),
        (Rotary(build=Turn, call=turn), 14, "frequencies", "claim `base=10_000.0`, or `frequencies`"),
        (Rotary(build=Turn, call=turn), 14, "options count", "name in `varied` another value of each option"),
        (Rotary(build=Turn, call=turn), 15, "pairs", 'claim `layout="half"` or'),
        (configuration.rotary(Turn), 19, "positions past the end", "claim `max_positions=N`"),
        (grids.axial(grids.Axial), 20, "text alone", "name in `flat` the options"),
    ],
)
def test_what_does_not_apply_says_why(subject: Subject, number: int, trial: str, reason: str) -> None:
    assert reason in reasons(subject, number)[trial]


# -- what they say ----------------------------------------------------------------------------------------------------


class RefusesWithoutAName(Turn):
    def __init__(self, head_dim: int = 16, **options: Any) -> None:
        if head_dim % 2 or options:
            raise ValueError("that will not do")
        super().__init__(head_dim)


def test_an_error_must_name_what_it_refuses() -> None:
    refused = [{"scaling": {"typ": "yarn"}}, {"head_dim": 15}]
    report = check(Rotary(build=RefusesWithoutAName, call=turn, refused=refused), checks=(14, 19))
    found = {entry.number: trial.finding for entry, trial in report.findings}
    assert {number: finding.expected for number, finding in found.items() if finding} == {
        14: "an error that names scaling",
        19: "an error that names head_dim",
    }
    assert {finding.actual for finding in found.values() if finding} == {"ValueError: that will not do"}
