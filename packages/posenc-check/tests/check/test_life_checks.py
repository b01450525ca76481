"""The checks of life cycle, purity, backends, memory and graphs: whom they do not accuse, and what they cannot see."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from posenc_check import Layer, Subject, check
from posenc_check.run import FINDING, NOT_APPLICABLE, PASSED, TrialResult
from tests.check.small_subjects import RIGHT


def trials(subject: Subject, number: int) -> dict[str, TrialResult]:
    return {trial.name: trial for trial in check(subject, checks=[number]).results[0].trials}


class Careful(nn.Module):
    """Gates of x by position: float32 within, a ReLU, running state, and a buffer that reset_parameters makes anew."""

    def __init__(self, dim: int = 8, resets: bool = True) -> None:
        super().__init__()
        self.dim, self.resets = dim, resets
        self.weight = nn.Parameter(torch.randn(dim, dim))
        self.norm = nn.BatchNorm1d(dim)
        self.register_buffer("level", torch.zeros(1))
        self.register_buffer("rates", self.wanted(), persistent=False)

    def wanted(self) -> Tensor:
        return 0.5 ** torch.arange(self.dim)

    def reset_parameters(self) -> None:
        if self.resets:
            self.rates = self.wanted()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        gate = (positions[..., None].float() * self.rates.float()).cos()
        mixed = torch.relu(x @ self.weight).float().softmax(-1).to(x.dtype)
        return self.norm(mixed.transpose(1, 2)).transpose(1, 2) * gate.to(x.dtype) + self.level


def careful(made: Any, x: Tensor, positions: Tensor) -> Tensor:
    return made(x, positions)


CAREFUL = Layer(build=Careful, call=careful, dim=8, state=("level",))


def test_a_buffer_that_is_made_anew_survives_meta_and_no_cast() -> None:
    """The rates are powers of two, which no cast rounds: only the rule of check 3 is at stake."""
    assert {trial.status for trial in trials(CAREFUL, 3).values()} == {PASSED}
    assert {trial.status for trial in trials(replace(CAREFUL, options={"resets": False}), 3).values()} == {FINDING}


def test_state_is_no_table() -> None:
    """Running means of torch's own modules are known; others are named."""
    assert {trial.status for trial in trials(CAREFUL, 4).values()} == {PASSED}
    saved = trials(replace(CAREFUL, state=()), 4)["what is saved"]
    assert saved.finding is not None
    assert saved.finding.actual == "level"


def test_single_precision_within_and_kinks_are_no_wrong_gradients() -> None:
    assert trials(CAREFUL, 16)["gradients are derivatives"].status == PASSED
    assert {trial.status for trial in trials(CAREFUL, 5).values()} <= {PASSED, NOT_APPLICABLE}


def test_what_is_no_module_has_no_life_cycle_to_check() -> None:
    for number in (3, 4):
        assert {(t.status, t.reason) for t in trials(RIGHT, number).values()} == {
            (NOT_APPLICABLE, "let build give an nn.Module, to run this")
        }
