"""xPos that fades otherwise, counts from elsewhere, or leaves the numbers that there are."""

from typing import Any

import torch
from torch import Tensor

from posenc import Positions, XPos
from posenc.scheme import Scheme
from posenc.schemes import xpos
from tests.hard.wrong import Row, each, numbers, sizes
from tests.mutants import Mutant, oracles
from tests.schemes import test_rotary_schemes


def by_another_number(self: XPos, device: Any = None) -> Tensor:
    """zeta_k = (2k/d + 0.5) / 1.5."""
    k = torch.arange(self.head_dim // 2, dtype=torch.float64)
    return -((2 * k / self.head_dim + 0.5) / 1.5).log() / self.scale_base


def with_padding(positions: Positions, coords: Tensor) -> tuple[Tensor, float]:
    low, high = coords.amin(1), coords.amax(1)
    return (low + high) / 2, float((high - low).max())


COMPARED = oracles("xpos")
MUTANTS = (
    Mutant("has another zeta", XPos, "_decay", by_another_number, COMPARED),
    Mutant("counts keys from their own middle", XPos, "bind", Scheme.bind, COMPARED),
    Mutant("takes padding for text", xpos, "_middle", with_padding, test_rotary_schemes.test_padding_moves_no_origin),
)

REFUSED = {
    "XPos": [
        *sizes(XPos, {"head_dim": 8}, "head_dim"),
        *numbers(XPos, {"head_dim": 8}, "base", 1),
        *numbers(XPos, {"head_dim": 8}, "scale_base", 0),
        *each(XPos, {"head_dim": 8}, "layout", [("halves", "'halves'")], "'half' or 'interleaved'"),
        Row(lambda: XPos(7), "head_dim must be even (channels come in pairs), got 7"),
        Row(
            lambda: XPos(8)(Positions.grid(2, 2)),
            "XPos takes one coordinate per token, got positions of 2 axes: build it with axes=2",
        ),
    ],
}
