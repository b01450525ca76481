"""GRAPE-A with other rates, or other distances."""

import torch
from torch import Tensor

from posenc import GRAPEA, Positions
from tests.errors.wrong_calls import Row
from tests.mutants import lines, oracles

SLOPES = "alibi_slopes(self.num_heads, scores.dtype, scores.device)"
OF_EIGHT = "2.0 ** (-8 * torch.arange(1.0, self.num_heads + 1) / self.num_heads)"
MUTANTS = lines(
    oracles("grape_a"),
    ("takes later keys for distant ones", GRAPEA, "_row_scores", ".clamp(min=0)", ".abs()"),
    ("rewards later keys", GRAPEA, "_row_scores", ".clamp(min=0)", ""),
    ("has slopes for powers of two alone", GRAPEA, "_row_scores", SLOPES, OF_EIGHT),
)


GOOD, MADE = {"num_heads": 4, "head_dim": 8}, GRAPEA(4, 8)


def called(heads: int, width: int) -> Tensor:
    x = torch.zeros(1, heads, 3, width)
    return MADE(Positions.arange(3)).score_terms[0].apply(x @ x.mT, None, x, x, *2 * (Positions.arange(3),))


REFUSED = {
    "GRAPEA": [
        *(
            Row(
                lambda heads=heads, width=width: called(heads, width),
                f"GRAPEA was made for 4 heads of head_dim 8, got queries of {heads} heads and head_dim {width}",
            )
            for heads, width in ((8, 8), (4, 6))
        )
    ]
}
