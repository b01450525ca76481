"""A positional convolution that reads other tokens."""

from functools import partial

import torch

from posenc import Positions
from posenc.models.positional_convolution import PositionalConvolution
from tests.errors.wrong_calls import Row
from tests.models import test_positional_convolution as tests
from tests.mutants import Line

PACKED, PADDED, TEXT, PERMUTED = (
    partial(tests.test_it_is_the_oracles, name, 4) for name in ("packed", "padded", "text", "permuted")
)
MUTANTS = tuple(
    Line(bug, PositionalConvolution, name, (this, that), check)
    for bug, name, this, that, check in (
        ("leaks across documents", "forward", "is_first.cumsum(-1) - 1", "0 * is_first.cumsum(-1)", PACKED),
        ("changes padding", "forward", "read).masked_fill(~is_seen, 0.0)", "read)", PADDED),
        ("is one token late", "_read", "[..., : x.size(1)]", "[..., -x.size(1) :]", TEXT),
        ("leaves the tokens sorted", "forward", "scatter(1, index, read)", "add(read)", PERMUTED),
    )
)
LAYER, X = PositionalConvolution(8, 4, 2), torch.zeros(2, 9, 8)
REFUSED = {
    "models.PositionalConvolution": [
        Row(lambda: PositionalConvolution(8, 4, 3), "dim must be a multiple of groups = 3, got 8"),
        Row(lambda: PositionalConvolution(0, 4, 2), "dim must be a whole number of at least 1, got 0"),
        Row(lambda: PositionalConvolution(8, 0, 2), "kernel_size must be a whole number of at least 1, got 0"),
        Row(lambda: PositionalConvolution(8, 4, 0), "groups must be a whole number of at least 1, got 0"),
        Row(lambda: PositionalConvolution(8, 4, 2, weight_norm=1), "weight_norm must be True or False, got 1"),
    ],
    "models.PositionalConvolution.forward": [
        Row(lambda: LAYER(X, 9), "positions must be a Positions, got 9; use Positions.arange(9)"),
        Row(lambda: LAYER(X, Positions.arange(8)), "x must be floating and (batch, 8, 8), got torch.float32 (2, 9, 8)"),
        Row(lambda: LAYER(X[..., 1:], Positions.arange(9)), "x must be floating and (batch, 9, 8), got …(2, 9, 7)"),
        Row(lambda: LAYER(X.long(), Positions.arange(9)), "x must be floating and (batch, 9, 8), got torch.int64…"),
        Row(lambda: LAYER(X, Positions.packed([[9], [9], [9]])), "x must be floating and (3, 9, 8), got …(2, 9, 8)"),
    ],
}
