"""LieRE with other generators, or an exponential that is none."""

import torch

from posenc import STRING, LieRE, Positions
from tests.errors.wrong_calls import Row
from tests.mutants import lines, oracles

BACK = "return Rotation(BlockRotation(token_map.matrices.mT, token_map.head_dim), "
MUTANTS = lines(
    oracles("lie_re"),
    ("exchanges the axes", LieRE, "rotation", "in_double(coords)", "in_double(coords.flip(-1))"),
    ("turns the other way", LieRE, "rotation", "upper - upper.mT", "upper.mT - upper"),
    ("turns queries the other way", LieRE, "rotation", "return Rotation(token_map, ", BACK),
)


def refused(kind: type[LieRE] | type[STRING]) -> list[Row]:
    """What a scheme that is made for axes, and for heads, says of others."""
    flat, line, of_four = kind(8), kind(8, 1), kind(8, 1, num_heads=4)
    return [
        Row(
            lambda: flat(Positions.arange(3)),
            f"{kind.__name__} takes 2 coordinates per token, got positions of 1 axes: make them with "
            "Positions.grid(height, width), or build it with axes=1",
        ),
        Row(
            lambda: line(Positions.arange(3)).rotate(*torch.ones(2, 1, 2, 3, 6)),
            "the rotation was made for head_dim 8, got q or k of head_dim 6",
        ),
        Row(
            lambda: of_four(Positions.arange(3)).rotate(*torch.ones(2, 1, 2, 3, 8)),
            "the rotation was made for (batch, heads, tokens) (1, 4, 3), got (1, 2, 3, 8): build it for as many heads "
            "as keys have",
        ),
    ]


REFUSED = {
    "LieRE": [
        Row(lambda: LieRE(8, block=1), "block must be a whole number within 2..8, got 1"),
        Row(lambda: LieRE(8, block=9), "block must be a whole number within 2..8, got 9"),
        Row(lambda: LieRE(8, block=2.0), "block must be a whole number within 2..8, got 2.0"),
        *refused(LieRE),
    ]
}
