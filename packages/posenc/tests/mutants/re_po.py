"""RePo with other angles."""

import torch

from posenc import Positions, RePo
from posenc.rotary import ClockRotation
from tests.errors.wrong_calls import Row
from tests.mutants import Mutant, lines, oracles

COMPARED = oracles("re_po")
MUTANTS = (
    Mutant("turns all pairs alike", RePo, "frequencies", lambda self, device=None: 1.0, COMPARED),
    *lines(
        COMPARED,
        ("rounds positions to tokens", ClockRotation, "__call__", "readings[..., None]", "readings[..., None].round()"),
    ),
)
TEXT = Positions.arange(3)
REFUSED = {
    "RePo": [
        Row(lambda: RePo(4, 7), "head_dim must be even (channels come in pairs), got 7"),
        Row(lambda: RePo(4, 8, 1.0), "base must be a finite number above 1, got 1.0"),
        Row(
            lambda: RePo(4, 8)(TEXT).with_projected({"position": torch.zeros(1, 2, 3)}),
            "the projection for feature 'position' must be (batch, 4, 3), got torch.float32 (1, 2, 3)",
        ),
        Row(
            lambda: RePo(4, 8)(TEXT).with_features({"position": torch.zeros(1, 4, 3, 4)}),
            "the feature that the rotation reads must be (batch, key heads, tokens), got torch.float32 (1, 4, 3, 4)",
        ),
        Row(
            lambda: RePo(4, 8)(TEXT).rotate_key(torch.zeros(1, 4, 3, 8)),
            "the scheme needs the feature 'position' of every key: use …, got none",
        ),
    ]
}
