"""Relative 2D on another grid: what a resized copy takes over, and what it leaves alone."""

import pytest
import torch

from posenc import Relative2D


@pytest.mark.parametrize("grid", [(3, 5), (6, 9)])
@pytest.mark.parametrize("num_heads", [None, 3])
def test_resized_is_frozen_and_in_the_mode_of_the_original(num_heads: int | None, grid: tuple[int, int]) -> None:
    scheme = Relative2D((3, 5), 4, num_heads).to(torch.bfloat16).eval()
    scheme.column_table.requires_grad_(False)
    other = scheme.resized(grid)
    assert not other.training
    assert other.row_table.requires_grad
    assert not other.column_table.requires_grad
    assert {parameter.dtype for parameter in other.parameters()} == {torch.bfloat16}
    assert all(parameter.is_leaf and parameter.isfinite().all() for parameter in other.parameters())
    assert other.num_heads == num_heads
    assert Relative2D((3, 5), 4).resized(grid).training


def test_resizing_draws_nothing() -> None:
    scheme = Relative2D((3, 5), 4)
    before = torch.get_rng_state()
    scheme.resized((6, 9))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_grid_to_resize_to_is_positive() -> None:
    with pytest.raises(ValueError, match=r"^grid\[0\] must be a whole number of at least 1, got 0$"):
        Relative2D((3, 5), 4).resized((0, 5))
