"""Relative 2D on another grid: what a resized copy takes over, and what it leaves alone."""

import torch
from torch.nn import functional as F

import posenc
from posenc import Positions, Relative2D


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
