"""LieRE with other generators, or an exponential that is none."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import LieRE, Positions
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Rotation
from posenc.schemes.lie_re import BlockRotation
from tests.hard.wrong import Row, numbers, sizes
from tests.mutants import Mutant, moved, oracles

RIGHT = LieRE.rotation
COMPARED = oracles("lie_re")


def changed(
    coords: Callable[[Tensor], Tensor] = lambda coords: coords,
    query: Callable[[Tensor], Tensor] = lambda matrices: matrices,
    key: Callable[[Tensor], Tensor] = lambda matrices: matrices,
) -> Callable[..., Rotation]:
    """The method as it is, but for one thing."""

    def wrong(
        self: LieRE, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
    ) -> Rotation:
        made = RIGHT(self, moved(positions, coords), dtype, context).query
        assert isinstance(made, BlockRotation)
        return Rotation(*(BlockRotation(change(made.matrices), made.head_dim) for change in (query, key)))

    return wrong


def turned_back(matrices: Tensor) -> Tensor:
    return matrices.mT


MUTANTS = (
    Mutant("exchanges the axes", LieRE, "rotation", changed(coords=lambda c: c.flip(-1)), COMPARED),
    Mutant("turns the other way", LieRE, "rotation", changed(query=turned_back, key=turned_back), COMPARED),
    Mutant("turns keys the other way", LieRE, "rotation", changed(key=turned_back), COMPARED),
)


FLAT, LINE, OF_FOUR = LieRE(8), LieRE(8, 1), LieRE(8, 1, num_heads=4)
REFUSED = {
    "LieRE": [
        *sizes(LieRE, {"head_dim": 8}, "axes", "num_heads"),
        *sizes(LieRE, {"block": 2}, "head_dim"),
        *numbers(LieRE, {"head_dim": 8}, "extent", 0),
        Row(lambda: LieRE(8, block=1), "block must be a whole number within 2..8, got 1"),
        Row(lambda: LieRE(8, block=9), "block must be a whole number within 2..8, got 9"),
        Row(lambda: LieRE(8, block=2.0), "block must be a whole number within 2..8, got 2.0"),
        Row(
            lambda: FLAT(Positions.arange(3)),
            "LieRE takes 2 coordinates per token, got positions of 1 axes: make them with Positions.grid(height, "
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
    ],
}
