"""CARoPE with other frequencies."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import CARoPE, Positions
from posenc.encoding.context import Feature
from posenc.schemes import carope
from tests.hard.wrong import NO_WORDS, Row, each, sizes
from tests.mutants import Mutant, oracles

COMPARED = oracles("carope")


def said(bug: str, wrong: Callable[[int, Tensor, Positions], Tensor]) -> Mutant:
    return Mutant(bug, carope, "powers", wrong, COMPARED)


def by_sigmoid(pairs: int, x: Tensor, positions: Positions) -> Tensor:
    return torch.sigmoid(x)[..., None] ** torch.arange(pairs)


def not_bounded(pairs: int, x: Tensor, positions: Positions) -> Tensor:
    return F.softplus(x)[..., None] ** torch.arange(pairs)


def features_of(powers: Callable[[int, Tensor, Positions], Tensor]) -> property:
    def features(self: CARoPE) -> Mapping[str, Feature]:
        wanted = partial(powers, self.head_dim // 2)
        return {"frequency": Feature(self.num_heads, map=wanted, is_clock=True, rotates=True)}

    return property(features)


MUTANTS = (
    Mutant("squashes by a sigmoid", CARoPE, "features", features_of(by_sigmoid), COMPARED),
    said("does not squash", not_bounded),
)


SIZES = {"num_heads": 4, "head_dim": 8}
REFUSED = {
    "CARoPE": [
        *sizes(CARoPE, SIZES, "num_heads", "head_dim"),
        *each(CARoPE, SIZES, "layout", NO_WORDS, "'half' or 'interleaved'"),
        Row(lambda: CARoPE(4, 7), "head_dim must be even (channels come in pairs), got 7"),
        Row(
            lambda: CARoPE(4, 8)(Positions.arange(3)).with_projected({"frequency": torch.zeros(1, 2, 3)}),
            "the projection for feature 'frequency' must be (batch, 4, 3), got torch.float32 (1, 2, 3)",
        ),
    ],
}
