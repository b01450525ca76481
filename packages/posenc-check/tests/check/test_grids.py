"""Grids in every row of a layer that has them."""

from typing import Any

import pytest
from torch import Tensor, nn

from posenc_check import Layer, NotApplicableError, check
from posenc_check.outcome import numbers_in
from posenc_check.trial import TrialPlan


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
        ({"causal": True}, 13, (1, 12)),
        ({"max_positions": 3}, 17, None),
    ],
)
def test_the_grid_of_a_row(claims: dict[str, Any], tokens: int, grid: tuple[int, int] | None) -> None:
    assert told(**claims).grid_of(tokens) == grid


def test_every_row_has_a_grid_and_a_patch() -> None:
    plan = TrialPlan(told())
    assert plan.sizes == [5, 9, 23]
    assert plan.subject.run(plan.subject.make(), plan.text(2, 5)).shape == (2, 5, 32)
    with pytest.raises(NotApplicableError, match="12 tokens are no grid that it has"):
        plan.subject.run(plan.subject.make(), plan.text(1, 12))
    assert check(told(), checks=[4, 5, 7, 19, 20]).ok  # none of them asserts


def test_the_numbers_in_an_error() -> None:
    assert numbers_in("rows must be in 0-39, got 1,024 of -7") == {0, 39, 1024, -7}
