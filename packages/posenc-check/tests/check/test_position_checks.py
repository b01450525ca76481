"""The checks of positions, 6 to 13: what they run on, what they cannot see, and what they never ask for."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from posenc_check import Subject, check
from posenc_check.run import FINDING, NOT_APPLICABLE, PASSED, Result
from tests.check.mutants import biases, claims, explicit_positions, layers, rotations
from tests.rows import first_of

NUMBERS = tuple(range(6, 14))


def results(subject: Subject, numbers: tuple[int, ...] = NUMBERS) -> dict[int, Result]:
    report = check(subject, checks=numbers, lengths=(1, 3, 8), longest=70)
    return {result.check.number: result for result in report.results}


def reasons(result: Result) -> dict[str, str]:
    return {trial.name: trial.reason for trial in result.trials}


# -- what is right passes, and not because nothing was tried ----------------------------------------------------------

APPLY = {
    "rotation": (rotations.ROTARY, set(NUMBERS)),
    "rotation from an offset": (rotations.OFFSET, {6, 7, 8, 9, 11, 12, 13}),
    "bias": (biases.ALIBI, {6, 7, 9, 10, 11, 12, 13}),  # it is not causal
    "bias by lengths": (biases.TABLE, {8, 9, 13}),
    "attention without positions": (claims.whole(claims.Alibi), {8, 9, 13}),
    "layer": (layers.ROTATING, {6, 7, 8, 10, 11, 13}),
    "absolute layer": (layers.STANDING, {6, 7, 8, 10, 11, 13}),
}


@pytest.mark.parametrize("name", first_of(APPLY))
def test_what_is_right_passes_what_applies(name: str) -> None:
    subject, apply = APPLY[name]
    found = {number: result.status for number, result in results(subject).items()}
    assert found == {number: PASSED if number in apply else NOT_APPLICABLE for number in NUMBERS}


def turn_in_float32(base: float, x: Tensor, positions: Tensor) -> Tensor:
    """The phases as most write them: rounded to float32 however far they are."""
    rates = 1.0 / base ** (torch.arange(0, x.size(-1), 2).float() / x.size(-1))
    angle = positions[:, None, :, None].float() * rates
    left, right = x.chunk(2, -1)
    return torch.cat((left * angle.cos() - right * angle.sin(), left * angle.sin() + right * angle.cos()), -1)


def test_phases_in_float32_are_no_finding() -> None:
    assert {r.status for r in results(replace(rotations.ROTARY, call=turn_in_float32)).values()} == {PASSED}


# -- what cannot be seen is no pass -----------------------------------------------------------------------------------


def leave(base: float, x: Tensor, positions: Tensor) -> Tensor:
    """Positions are there, and do nothing."""
    return x


def test_a_scheme_that_positions_do_nothing_to_is_not_said_to_be_relative() -> None:
    (result,) = results(replace(rotations.ROTARY, call=leave), (6,)).values()
    # It has no parameters that a jitter would move.
    assert reasons(result)["relative"].startswith("let call use what it is given, for its outputs do not go by pos")
    (found,) = (trial.finding for trial in result.trials if trial.status == FINDING)
    assert found is not None
    assert "claim order_free=True" in found.actual
    (result,) = results(replace(rotations.ROTARY, call=leave, order_free=True), (6,)).values()
    assert "it claims to be `order_free`" in reasons(result)["some moved"]


def local_of(window: int = 4, lookback: bool = True) -> claims.Local:
    return claims.Local()


@pytest.mark.parametrize(
    ("subject", "number", "trial", "reason"),
    [
        (replace(rotations.ROTARY, relative=None), 6, "relative", "claim `relative=True` if moving"),
        (claims.whole(claims.Alibi), 6, "some moved", "let call take `query_positions`"),
        (explicit_positions.alone(explicit_positions.Alone, relative=True), 6, "relative", "let call take `positions`"),
        (claims.whole(local_of), 19, "window", "with itself; its lookback and window may be one"),
        (explicit_positions.alone(explicit_positions.Alone), 19, "tokens all the same", "claim `normalized=True`"),
        (biases.ALIBI, 8, "positions by itself", "what is not causal"),
        (biases.TABLE, 11, "other tokens", "a bias is given no tokens"),
        (rotations.ROTARY, 13, "cached across it", "claim `threshold=N`"),
        (replace(rotations.ROTARY, threshold=2000), 13, "long, then short", "`--longest 2002`"),
    ],
)
def test_what_does_not_apply_says_why(subject: Subject, number: int, trial: str, reason: str) -> None:
    assert reason in reasons(results(subject, (number,))[number])[trial]
