"""FoPE with other series."""

import torch

from posenc import FoPE, Positions
from tests.errors.wrong_calls import Row
from tests.mutants import lines, oracles

MUTANTS = lines(
    oracles("fope"),
    ("keeps the low frequencies", FoPE, "rotation", "[: mine.size(2)]", ".roll(-1)[: mine.size(2)]"),
    ("mixes the frequencies in reverse", FoPE, "rotation", "in_double(mine)", "in_double(mine).flip(-2)"),
    ("multiplies the other pairs by 0", FoPE, "rotation", "value=1.0", "value=0.0"),
)


OF_FOUR = FoPE(4, 8, 64)
REFUSED = {
    "FoPE": [
        Row(lambda: FoPE(2, 7, 64), "head_dim must be even (channels come in pairs), got 7"),
        Row(lambda: FoPE(2, 8, 6), "length must be a whole number of at least 7, got 6"),
        Row(lambda: FoPE(2, 8, 64, series=3), "series must be a whole number within 1..2, got 3"),
        Row(lambda: FoPE(2, 8, 64, strength=-1.0), "strength must be a finite number of at least 0, got -1.0"),
        Row(
            lambda: OF_FOUR(Positions.arange(3)).rotate(torch.ones(1, 4, 3, 8), torch.ones(1, 2, 3, 8)),
            "the rotation was made for keys of 4 heads, got 2: build it for as many heads as keys have",
        ),
    ]
}
