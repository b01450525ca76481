"""STRING whose basis is not orthogonal, or whose generators are others."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc import STRING, Positions
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Rotation
from tests.hard.wrong import NO_WORDS, Row, each, numbers, sizes
from tests.mutants import Mutant, oracles

RIGHT, BASIS, THETA = STRING.rotation, STRING._basis, STRING._theta
COMPARED = oracles("string")


def basis(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda self, context: change(BASIS(self, context))


def theta(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda self, context: change(THETA(self, context))


def backwards(
    self: STRING, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
) -> Rotation:
    rotation = RIGHT(self, positions, dtype, context)
    key: Any = rotation.key
    return Rotation(rotation.query, type(key)(key.basis, key.turn.inverse()))


MUTANTS = (
    Mutant("turns by the negative angle", STRING, "_theta", theta(torch.neg), COMPARED),
    Mutant("has the basis transposed", STRING, "_basis", basis(lambda p: p.mT), COMPARED),
    Mutant("turns keys the other way", STRING, "rotation", backwards, COMPARED),
)


FLAT, LINE, OF_FOUR = STRING(8), STRING(8, 1), STRING(8, 1, num_heads=4)
REFUSED = {
    "STRING": [
        *sizes(STRING, {"head_dim": 8}, "head_dim", "axes", "num_heads"),
        *each(STRING, {"head_dim": 8}, "form", NO_WORDS, "'cayley' or 'circulant'"),
        *numbers(STRING, {"head_dim": 8}, "base", 1),
        Row(lambda: STRING(7), "head_dim must be even and at least 2 axes = 4, got 7"),
        Row(lambda: STRING(4, 3), "head_dim must be even and at least 2 axes = 6, got 4"),
        Row(
            lambda: FLAT(Positions.arange(3)),
            "STRING takes 2 coordinates per token, got positions of 1 axes: make them with Positions.grid(height, "
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
