"""RoPE3D with other shares or frequencies."""

from posenc import DynamicNTK, Positions, RIFLEx, RoPE3D
from tests.errors.wrong_calls import Row
from tests.mutants import Mutant, lines, moved, oracles

RIGHT = RoPE3D.rotation


SHARE = "frequencies(share, self.base, device)"
MUTANTS = (
    Mutant(
        "has the columns first",
        RoPE3D,
        "rotation",
        lambda self, positions, *more: RIGHT(self, moved(positions, lambda coords: coords.flip(-1)), *more),
        oracles("rope_3d"),
    ),
    *lines(
        oracles("rope_3d"),
        (
            "takes its frequencies over the head",
            RoPE3D,
            "frequencies",
            SHARE,
            SHARE.replace("share", "24") + "[: share // 2]",
        ),
        ("scales every axis", RoPE3D, "frequencies", "if axis in scaled_axes", "if True"),
    ),
)


REFUSED = {
    "RoPE3D": [
        Row(lambda: RoPE3D(4, form="vjepa2"), "head_dim must be a whole number of at least 6, got 4"),
        Row(lambda: RoPE3D(8, (2, 2, 2), form="vjepa2"), "shares must not be given for form='vjepa2', got (2, 2, 2)"),
        Row(lambda: RoPE3D(8, form="vjepa2", layout="half"), "layout must not be given for form='vjepa2', got 'half'"),
        Row(lambda: RoPE3D(8, layout="halves"), "layout must be 'half' or 'interleaved', got 'halves'"),
        Row(lambda: RoPE3D(8, (0, 0, 0)), "shares must be even and sum to 2..head_dim = 8, got (0, 0, 0)"),
        Row(lambda: RoPE3D(8, scaling=3), "scaling must be a scaling such as …, got 3"),
        Row(lambda: RoPE3D(8, scaled_axes=0), "scaled_axes must be axes, 0 for time, 1 for …, got 0"),
        Row(lambda: RoPE3D(8, scaled_axes=(0, 3)), "scaled_axes must be a whole number within 0..2, got 3"),
        Row(lambda: RoPE3D(8, scaled_axes=(0,)), "scaled_axes must be None without a scaling, got (0,)"),
        Row(lambda: RoPE3D(8, scaling=RIFLEx(9, pair=2)), "pair must be within 0..1, got 2"),
        Row(
            lambda: RoPE3D(8, scaling=DynamicNTK(2, 4)),
            "scaling must not depend on the number of tokens, for RoPE3D, got DynamicNTK(factor=2.0, …)",
        ),
        Row(lambda: RoPE3D(7), "head_dim must be even, got 7"),
        Row(lambda: RoPE3D(8, 8), "shares must be the channels of time, row and column, got 8"),
        Row(lambda: RoPE3D(8, (4, 4)), "shares must be the channels of time, row and column, got (4, 4)"),
        Row(lambda: RoPE3D(8, (8, 2, -2)), "shares must be a whole number of at least 0, got -2"),
        Row(lambda: RoPE3D(8, (4, 3, 1)), "shares must be even and sum to 2..head_dim = 8, got (4, 3, 1)"),
        Row(lambda: RoPE3D(8, (4, 2, 4)), "shares must be even and sum to 2..head_dim = 8, got (4, 2, 4)"),
        Row(
            lambda: RoPE3D(8)(Positions.grid(2, 2)),
            "RoPE3D takes 3 coordinates per token, got positions of 2 axes: make them with Positions.grid(height, "
            "width, frames=frames)",
        ),
    ]
}
