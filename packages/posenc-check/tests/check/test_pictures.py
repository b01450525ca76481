"""Grids in every row of a layer that has them, and what check 20 cannot say of them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenc_check import Batch, Layer, NotApplicableError, Subject, check
from posenc_check.checks.grids import influence, table_of
from posenc_check.outcome import numbers_in
from posenc_check.run import NOT_APPLICABLE
from posenc_check.trial import Plan


def grids_told(made: nn.Module, x: Tensor, grid: tuple[int, int]) -> Tensor:
    assert x.size(1) == grid[0] * grid[1] + 1
    return made(x)


def linear() -> nn.Module:
    return nn.Linear(32, 32)


def told(**claims: Any) -> Layer:
    return Layer(build=linear, call=grids_told, registers=1, **claims)


@pytest.mark.parametrize(
    ("claims", "tokens", "grid"),
    [
        ({}, 13, (3, 4)),
        ({}, 12, None),  # eleven patches are one row
        ({}, 1, None),  # a class token and no patch
        ({"max_grid": (9, 3)}, 13, (4, 3)),
        ({"max_grid": (1, 20)}, 12, (1, 11)),
        ({"window": (2, 3)}, 13, (4, 3)),
        ({"window": (2, 3)}, 16, None),
        ({"causal": True}, 13, (1, 12)),
        ({"max_positions": 3}, 17, None),
    ],
)
def test_the_grid_of_a_row(claims: dict[str, Any], tokens: int, grid: tuple[int, int] | None) -> None:
    assert told(**claims).grid_of(tokens) == grid


def test_every_row_has_a_grid_and_a_patch() -> None:
    plan = Plan(told())
    assert plan.sizes == [5, 9, 23]
    assert plan.subject.run(plan.subject.make(), plan.text(2, 5)).shape == (2, 5, 32)
    with pytest.raises(NotApplicableError, match="12 tokens are no grid that it has"):
        plan.subject.run(plan.subject.make(), plan.text(1, 12))
    assert check(told(), checks=[4, 5, 7, 19, 20]).ok  # none of them asserts


class Averaged(nn.Module):
    """Every output is three times its own vector and twice that of the token after it."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * x + 2 * x.roll(-1, 1)


def leave_the_grid(made: nn.Module, x: Tensor, grid: Any = None) -> Tensor:
    return made(x)


def test_influence_is_who_counts_for_whom() -> None:
    subject = Layer(build=Averaged, call=leave_the_grid)
    found = influence(subject, subject.make(), Batch([[4, 5, 6, 7]], grid=(2, 2)))
    expected = 3 * torch.eye(4) + 2 * torch.eye(4).roll(1, 1)
    unit = found[0, 0] / 3
    assert unit.all()
    torch.testing.assert_close(found, expected.double()[..., None] * unit)


@pytest.mark.parametrize("shape", [(13, 8), (1, 13, 8), (1, 8, 3, 4), (3, 4, 8), (1, 3, 4, 8)])
def test_a_table_is_found_by_its_shape(shape: tuple[int, ...]) -> None:
    made = nn.Module()
    made.table = nn.Parameter(torch.zeros(shape))
    table = table_of(made, (3, 4), more={1}, dim=8)
    assert table is not None
    assert table.shape == (3, 4, 8)
    table.fill_(1.0)  # it is a view
    assert float(made.table.detach().sum()) == 96.0
    assert table_of(made, (4, 5), more={1}, dim=8) is None


def test_the_numbers_in_an_error() -> None:
    assert numbers_in("rows must be in 0-39, got 1,024 of -7") == {0, 39, 1024, -7}


def reasons(subject: Subject) -> dict[str, str]:
    result = check(subject, checks=[20]).results[0]
    return {trial.name: trial.reason for trial in result.trials if trial.status == NOT_APPLICABLE}


@pytest.mark.parametrize(
    ("subject", "trial", "reason"),
    [
        (told(), "scores by offsets", "claim `relative=True`"),
        (told(relative=True), "scores by offsets", "pass scores of all pairs of tokens to PyTorch's softmax"),
        (told(), "ends of the axes", "claim `max_grid=(rows, columns)` or `max_positions=N`"),
        (told(trained_grid=(3, 4)), "resized tables", "it holds no table of 3 x 4 places"),
        (told(), "resized tables", "claim `trained_grid=(rows, columns)`"),
        (told(), "windows", "claim `window=(height, width)`"),
    ],
)
def test_what_does_not_apply_says_why(subject: Subject, trial: str, reason: str) -> None:
    assert reason in reasons(subject)[trial]
