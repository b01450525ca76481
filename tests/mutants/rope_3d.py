"""RoPE3D with other shares or frequencies."""

import torch
from torch import Tensor

from posenc import Positions, RoPE3D
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Rotation
from posenc.rotation.phases import frequencies
from posenc.schemes import rope_3d
from tests.cases import HEAD_DIM
from tests.hard.wrong import Row, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, moved, oracles

RIGHT = RoPE3D.rotation
COMPARED = oracles("rope_3d")


def last_first(
    self: RoPE3D, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
) -> Rotation:
    return RIGHT(self, moved(positions, lambda coords: coords.flip(-1)), dtype, context)


def backwards(
    self: RoPE3D, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
) -> Rotation:
    rotation = RIGHT(self, positions, dtype, context)
    return Rotation(rotation.query, rotation.key.inverse())  # type: ignore[attr-defined]


def over_the_head(dim: int, base: float, device: torch.device | None = None) -> Tensor:
    return frequencies(HEAD_DIM, base, device)[: dim // 2]


MUTANTS = (
    Mutant("has the columns first", RoPE3D, "rotation", last_first, COMPARED),
    Mutant("turns keys the other way", RoPE3D, "rotation", backwards, COMPARED),
    Mutant("takes its frequencies over the head, not the share", rope_3d, "frequencies", over_the_head, COMPARED),
)


class BackwardRoPE3D(RoPE3D):
    rotation = backwards


class TransposedRoPE3D(RoPE3D):
    """Every law holds."""

    rotation = last_first


LAWLESS = (Lawless("rope_3d", lambda shape: BackwardRoPE3D(shape.head_dim), "relative"),)
UNTRUE = (Untrue("rope_3d", lambda: TransposedRoPE3D(HEAD_DIM, base=77.0)),)
REFUSED = {
    "RoPE3D": [
        *sizes(RoPE3D, {}, "head_dim"),
        *numbers(RoPE3D, {"head_dim": 8}, "base", 1),
        Row(lambda: RoPE3D(7), "head_dim must be even, got 7"),
        Row(lambda: RoPE3D(8, 8), "shares must be the channels of time, row and column, got 8"),
        Row(lambda: RoPE3D(8, (4, 4)), "shares must be the channels of time, row and column, got (4, 4)"),
        Row(lambda: RoPE3D(8, (8, 2, -2)), "shares must be a whole number of at least 0, got -2"),
        Row(lambda: RoPE3D(8, (4, 3, 1)), "shares must be even and sum to head_dim = 8, got (4, 3, 1)"),
        Row(lambda: RoPE3D(8, (4, 2, 4)), "shares must be even and sum to head_dim = 8, got (4, 2, 4)"),
        Row(
            lambda: RoPE3D(8)(Positions.grid(2, 2)),
            "RoPE3D takes 3 coordinates per token, got positions of 2 axes: make them with Positions.grid(height, "
            "width, frames=frames)",
        ),
    ],
}
