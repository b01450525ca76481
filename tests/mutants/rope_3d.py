"""RoPE3D with other shares or frequencies."""

from dataclasses import replace

import torch
from torch import Tensor

from posenc import Positions, RoPE3D
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Rotation
from posenc.rotation.phases import frequencies
from posenc.schemes import rope_3d
from posenc.schemes.rope_3d import EachChannel
from tests.cases import HEAD_DIM
from tests.hard.wrong import NO_WORDS, Row, each, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, moved, oracles
from tests.schemes import test_rope_3d

RIGHT, MAPPED = RoPE3D.rotation, EachChannel.__call__
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


def the_same_for_both(self: EachChannel, x: Tensor) -> Tensor:
    """A rotation by the angle of the first channel of a pair."""
    cos, sin = (angle[..., ::2].repeat_interleave(2, -1) for angle in (self.cos, self.sin))
    return MAPPED(replace(self, cos=cos, sin=sin), x)


MUTANTS = (
    Mutant(
        "turns both channels of a pair alike in V-JEPA 2's form",
        EachChannel,
        "__call__",
        the_same_for_both,
        test_rope_3d.test_the_map_of_v_jepa_2_is_the_oracles,
    ),
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
