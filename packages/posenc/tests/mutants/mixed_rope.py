"""MixedRoPE with its frequencies elsewhere."""

import torch

from posenc import MixedRoPE, Positions
from posenc.encoding.encoding import Context
from tests.errors.wrong_calls import Row
from tests.mutants import lines, oracles

MUTANTS = lines(
    oracles("mixed_rope"),
    ("has the rows first", MixedRoPE, "rotation", "y, x = ", "x, y = "),
    (
        "has the frequencies of one head",
        MixedRoPE,
        "rotation",
        "in_double(mine)",
        "in_double(mine)[:, :1].expand_as(mine)",
    ),
)


GRID = Positions.grid(1, 3)
OF_FOUR = MixedRoPE(8, 4)
REFUSED = {
    "MixedRoPE": [
        Row(lambda: MixedRoPE(6, 2), "rotary_dim must be a multiple of 4 within 4..head_dim = 6, got 6"),
        Row(
            lambda: OF_FOUR(Positions.arange(3)),
            "MixedRoPE takes 2 coordinates per token, got positions of 1 axes: make them with Positions.grid(height, "
            "width)",
        ),
        Row(
            lambda: OF_FOUR(GRID).rotate(torch.ones(1, 4, 3, 8), torch.ones(1, 2, 3, 8)),
            "the rotation was made for keys of 4 heads, got 2: build it for as many heads as keys have",
        ),
        Row(
            lambda: OF_FOUR(GRID, context=Context(heads=range(2, 6))),
            "heads must be within the 4 of MixedRoPE, got range(2, 6): make the scheme for all heads of the model, of "
            "which a shard has some",
        ),
    ],
    "Context.of_heads": [
        Row(
            lambda: Context(heads=range(3)).of_heads(torch.ones(2, 5), 0),
            "heads must be within the 2 of the scheme, got range(0, 3)",
        )
    ],
}
