"""CARoPE with other frequencies."""

import torch

from posenc import CARoPE, Positions
from posenc.schemes import carope
from tests.errors.wrong_calls import Row
from tests.mutants import lines, oracles

SQUASHED = "1 / (1 + F.softplus(projected.to(torch.promote_types(projected.dtype, torch.float32))))"
MUTANTS = lines(
    oracles("carope"),
    ("squashes by a sigmoid", carope, "powers", SQUASHED, "projected.sigmoid()"),
    ("does not squash", carope, "powers", SQUASHED, "F.softplus(projected)"),
)


REFUSED = {
    "CARoPE": [
        Row(lambda: CARoPE(4, 7), "head_dim must be even (channels come in pairs), got 7"),
        Row(
            lambda: CARoPE(4, 8)(Positions.arange(3)).with_projected({"frequency": torch.zeros(1, 2, 3)}),
            "the projection for feature 'frequency' must be (batch, 4, 3), got torch.float32 (1, 2, 3)",
        ),
    ]
}
