"""STRING whose basis is not orthogonal, or whose generators are others."""

import torch

from posenc import STRING, Positions
from tests.errors.wrong_calls import Row
from tests.mutants import lines, oracles

BACK = "return Rotation(InBasis(of_both.basis, pair_rotation.inverse()), "
MUTANTS = lines(
    oracles("string"),
    ("turns by the negative angle", STRING, "rotation", "angle = (in_double", "angle = -(in_double"),
    ("has the basis transposed", STRING, "rotation", "basis.to(dtype=dtype", "basis.mT.to(dtype=dtype"),
    ("turns queries the other way", STRING, "rotation", "return Rotation(of_both, ", BACK),
)


FLAT, LINE, OF_FOUR = STRING(8), STRING(8, 1), STRING(8, 1, num_heads=4)
REFUSED = {
    "STRING": [
        Row(lambda: STRING(7), "head_dim must be even (channels come in pairs), got 7"),
        Row(lambda: STRING(4, 3), "head_dim must be at least 2 axes = 6, got 4"),
        Row(
            lambda: FLAT(Positions.arange(3)),
            "STRING takes 2 coordinates per token, got positions of 1 axes: make them with Positions.grid(height, "
            "width), or build it with axes=1",
        ),
        Row(
            lambda: LINE(Positions.arange(3)).rotate(*torch.ones(2, 1, 2, 3, 6)),
            "the rotation was made for head_dim 8, got q or k of head_dim 6",
        ),
        Row(
            lambda: OF_FOUR(Positions.arange(3)).rotate(*torch.ones(2, 1, 2, 3, 8)),
            "the rotation was made for (batch, heads, tokens) (1, 4, 3), got (1, 2, 3, 8): build it for as many heads "
            "as keys have",
        ),
    ]
}
