"""The checks of positions, 6 to 13: what they run on, what they cannot see, and what they never ask for."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from posenc.tools.check import Bias, Layer, Rotary, Subject, check
from posenc.tools.check.run import FINDING, NOT_APPLICABLE, PASSED, Result
from tests.check.mutants import attention_functions, biases, claims, layers, rotations, told
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
    "rotation that stretches": (rotations.XPOS, set(NUMBERS)),
    "bias": (biases.ALIBI, {6, 7, 9, 10, 11, 12, 13}),  # it is not causal
    "bias by lengths": (biases.TABLE, {8, 9, 13}),
    "attention without positions": (attention_functions.PAST, {8, 9, 13}),
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


# -- positions that a subject does not have are never asked for -------------------------------------------------------


class BoundedCache(layers.Rotating):
    """Attention with a cache, and an end."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self.end = end

    def place(self, told: Tensor | None, document: Tensor, start: int) -> Tensor:
        return check_end(self.end, super().place(told, document, start))


def check_end(end: int, positions: Tensor) -> Tensor:
    if positions.min() < 0 or positions.max() >= end:
        raise IndexError(f"there is no position {positions.flatten().tolist()}, the end is {end}")
    return positions


def the_end(end: int) -> int:
    return end


def turn_to_an_end(end: int, x: Tensor, positions: Tensor) -> Tensor:
    return turn_in_float32(100.0, x, check_end(end, positions))


def line_to_an_end(end: int, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    for given in (query_positions, key_positions):
        check_end(end, given)
    return biases.line([0.5, 0.25, 0.125], query_positions, key_positions)


ENDING: dict[str, Callable[..., Subject]] = {
    "rotation": partial(Rotary, build=the_end, call=turn_to_an_end, causal=True),
    "bias": partial(Bias, build=the_end, call=line_to_an_end),
    "layer with a cache": partial(Layer, build=BoundedCache, call=layers.call, causal=True),
}
ENDS = [
    *(("rotation", end) for end in (1, 2, 5, 40, 1003)),
    *(("bias", 1), ("bias", 40)),
    *(("layer with a cache", 1), ("layer with a cache", 5), ("layer with a cache", 40)),
]


@pytest.mark.parametrize(("kind", "end"), first_of(ENDS))
def test_no_position_past_the_end_is_asked_for(kind: str, end: int) -> None:
    claims = {"options": {"end": end}, "max_positions": end, "relative": True}
    threshold = {"threshold": min(end, 16)} if kind == "rotation" else {}
    subject = ENDING[kind](**claims, **threshold)
    assert {r.status for r in results(subject).values()} <= {PASSED, NOT_APPLICABLE}
    # That it moves is claimed falsely, and found if there is room to move it; but not past the end.
    (moved,) = results(replace(subject, relative=False), (6,)).values()
    assert moved.status == (FINDING if end > 3 else NOT_APPLICABLE)
    found = {trial.name: trial.finding.came for trial in moved.trials if trial.finding}
    assert "outputs that change by" in found.get("absolute", "outputs that change by")
    assert set(found) <= {"absolute", "along the index, absolute"}


# -- what cannot be seen is no pass -----------------------------------------------------------------------------------


def leave(base: float, x: Tensor, positions: Tensor) -> Tensor:
    """Positions are there, and do nothing."""
    return x


def test_a_scheme_that_positions_do_nothing_to_is_not_said_to_be_relative() -> None:
    (result,) = results(replace(rotations.ROTARY, call=leave), (6,)).values()
    assert "outputs do not go by positions" in reasons(result)["relative"]
    (found,) = (trial.finding for trial in result.trials if trial.status == FINDING)
    assert found is not None
    assert "claim order_free=True" in found.came
    (result,) = results(replace(rotations.ROTARY, call=leave, order_free=True), (6,)).values()
    assert "it claims to be `order_free`" in reasons(result)["some moved"]


def local_of(window: int = 4, lookback: bool = True) -> claims.Local:
    return claims.Local()


@pytest.mark.parametrize(
    ("subject", "number", "trial", "reason"),
    [
        (replace(rotations.ROTARY, relative=None), 6, "relative", "claim `relative=True` if moving"),
        (attention_functions.PAST, 6, "some moved", "let call take `query_positions`"),
        (told.alone(told.Convolved), 6, "along the index, relative", "a convolution"),
        (told.alone(told.WithAClassToken), 6, "along the index, relative", "claim `registers=1`"),
        (claims.whole(local_of), 19, "window", "with itself; its lookback and window may be one"),
        (told.alone(told.Alone), 19, "tokens all the same", "claim `normalized=True`"),
        (biases.ALIBI, 8, "positions by itself", "what is not causal"),
        (biases.TABLE, 11, "other tokens", "a bias is given no tokens"),
        (rotations.ROTARY, 13, "cached across it", "claim `threshold=N`"),
        (replace(rotations.ROTARY, threshold=2000), 13, "long, then short", "`--longest 2002`"),
    ],
)
def test_what_does_not_apply_says_why(subject: Subject, number: int, trial: str, reason: str) -> None:
    assert reason in reasons(results(subject, (number,))[number])[trial]
