"""CARoPE with other frequencies."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import CARoPE, Positions
from posenc.encoding.features import Feature
from posenc.schemes import carope
from tests.cases import HEAD_DIM, KV_HEADS
from tests.hard.wrong import NO_WORDS, Row, each, sizes
from tests.mutants import Lawless, Mutant, Untrue, oracles

RIGHT = carope.powers
COMPARED = oracles("carope")


def said(bug: str, wrong: Callable[[int, Tensor, Positions], Tensor]) -> Mutant:
    return Mutant(bug, carope, "powers", wrong, COMPARED)


def from_one(pairs: int, x: Tensor, positions: Positions) -> Tensor:
    return RIGHT(pairs + 1, x, positions)[..., 1:]


def by_sigmoid(pairs: int, x: Tensor, positions: Positions) -> Tensor:
    return torch.sigmoid(x)[..., None] ** torch.arange(pairs)


def not_bounded(pairs: int, x: Tensor, positions: Positions) -> Tensor:
    return F.softplus(x)[..., None] ** torch.arange(pairs)


def of_the_sum(pairs: int, x: Tensor, positions: Positions) -> Tensor:
    """The powers of the sum are not the sum of the powers."""
    total = RIGHT(2, x, positions)[..., 1:].cumsum(2) ** torch.arange(pairs)
    return total - F.pad(total, (0, 0, 1, -1))


def features_of(powers: Callable[[int, Tensor, Positions], Tensor]) -> property:
    def features(self: CARoPE) -> Mapping[str, Feature]:
        wanted = partial(powers, self.head_dim // 2)
        return {"frequency": Feature(self.num_heads, map=wanted, is_clock=True, rotates=True)}

    return property(features)


MUTANTS = (
    said("has its first pair turned by f", from_one),
    Mutant("squashes by a sigmoid", CARoPE, "features", features_of(by_sigmoid), COMPARED),
    said("does not squash", not_bounded),
    said("takes powers of the sum", of_the_sum),
)


class AbsentCARoPE(CARoPE):
    """Nothing is turned."""

    features = features_of(lambda pairs, x, positions: torch.zeros_like(RIGHT(pairs, x, positions)))


class FartherCARoPE(CARoPE):
    """Where a text stands counts too."""

    features = features_of(lambda pairs, x, p: RIGHT(pairs, x, p) + 1e-3 * p.coords.amax())


class SigmoidCARoPE(CARoPE):
    """Every law holds."""

    features = features_of(by_sigmoid)


LAWLESS = (
    Lawless("carope", lambda shape: AbsentCARoPE(shape.key_heads, shape.head_dim), "unique"),
    Lawless("carope", lambda shape: FartherCARoPE(shape.key_heads, shape.head_dim), "relative"),
)
UNTRUE = (Untrue("carope", lambda: SigmoidCARoPE(KV_HEADS, HEAD_DIM)),)
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
