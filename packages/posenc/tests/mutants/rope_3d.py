"""RoPE3D with other shares or frequencies."""

import torch
from torch import Tensor

from posenc import Positions, RoPE3D
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Rotation
from posenc.rotation.phases import frequencies
from posenc.schemes import rope_3d
from tests.cases import HEAD_DIM
from tests.hard.wrong import NO_WORDS, Row, each, numbers, sizes
from tests.mutants import Mutant, moved, oracles

RIGHT = RoPE3D.rotation

COMPARED = oracles("rope_3d")


def last_first(
    self: RoPE3D, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
) -> Rotation:
    return RIGHT(self, moved(positions, lambda coords: coords.flip(-1)), dtype, context)


def over_the_head(dim: int, base: float, device: torch.device | None = None) -> Tensor:
    return frequencies(HEAD_DIM, base, device)[: dim // 2]


MUTANTS = (
    Mutant("has the columns first", RoPE3D, "rotation", last_first, COMPARED),
    Mutant("takes its frequencies over the head, not the share", rope_3d, "frequencies", over_the_head, COMPARED),
)


REFUSED = {
    "RoPE3D": [
        *sizes(RoPE3D, {}, "head_dim"),
        *numbers(RoPE3D, {"head_dim": 8}, "base", 1),
        *each(RoPE3D, {"head_dim": 8}, "form", NO_WORDS, "'rotation' or 'vjepa2'"),
        Row(lambda: RoPE3D(4, form="vjepa2"), "head_dim must be a whole number of at least 6, got 4"),
        Row(lambda: RoPE3D(8, (2, 2, 2), form="vjepa2"), "shares must be None for form='vjepa2', got (2, 2, 2)"),
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
