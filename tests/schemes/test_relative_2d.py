"""Relative 2D on another grid: what a resized copy takes over, and what it leaves alone."""

import pytest
import torch
from torch.nn import functional as F

import posenc
from posenc import Positions, Relative2D


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


def test_resized_is_interpolated_as_sam_does() -> None:
    scheme = Relative2D((3, 5), 4, convention="sam")
    larger = scheme.resized((3, 8))
    assert (larger.convention, larger.grid) == ("sam", (3, 8))
    assert torch.equal(larger.row_table, scheme.row_table)
    expected = F.interpolate(scheme.column_table.mT[None], size=15, mode="linear")[0].mT
    assert torch.equal(larger.column_table, expected)


def test_the_term_of_sam_is_divided_where_the_scale_is_not_that_of_the_model() -> None:
    """scale sqrt(d) q . (R_h + R_w), as the docstring says."""
    scheme = Relative2D((2, 2), 4, convention="sam").double()
    grid, q = Positions.grid(2, 2), torch.randn(1, 3, 4, 4, dtype=torch.float64)
    term = [posenc.logits(q, torch.zeros_like(q), scheme(grid, dtype=q.dtype), scale=s) for s in (1.0, 0.5)]
    torch.testing.assert_close(term[0], 2 * term[1])


def test_resizing_draws_nothing() -> None:
    scheme = Relative2D((3, 5), 4)
    before = torch.get_rng_state()
    scheme.resized((6, 9))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_grid_to_resize_to_is_positive() -> None:
    with pytest.raises(ValueError, match=r"^grid\[0\] must be a whole number of at least 1, got 0$"):
        Relative2D((3, 5), 4).resized((0, 5))
