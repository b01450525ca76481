"""AxialRoPE under other conventions than the one asked for."""

from dataclasses import replace
from typing import Any

from posenc import AxialRoPE, DynamicNTK, Positions
from posenc.encoding.rotation import Rotation
from posenc.schemes import axial_rope
from posenc.schemes.axial_rope import CONVENTIONS
from tests.errors.wrong_calls import NO_NUMBERS, Row, each
from tests.mutants import Lawless, Mutant, moved, oracles

RIGHT = AxialRoPE.rotation

COMPARED = oracles("axial_rope")


def conventions(**changes: Any) -> dict[str, Any]:
    return {name: replace(means, **changes) for name, means in CONVENTIONS.items()}


MUTANTS = (
    Mutant(
        "exchanges rows and columns",
        AxialRoPE,
        "rotation",
        lambda self, positions, *more: RIGHT(self, moved(positions, lambda coords: coords.flip(-1)), *more),
        COMPARED,
    ),
    Mutant("has the rows first", axial_rope, "CONVENTIONS", conventions(columns_first=False), COMPARED),
    Mutant("pairs halves", axial_rope, "CONVENTIONS", conventions(layout="half"), COMPARED),
)


class BackwardAxialRoPE(AxialRoPE):
    """Keys the other way."""

    def rotation(self, *given: Any) -> Rotation:
        made = super().rotation(*given)
        return Rotation(made.query, made.key.inverse())  # type: ignore[attr-defined]


LAWLESS = (Lawless("axial_rope", lambda shape: BackwardAxialRoPE(shape.head_dim, rotary_dim=4), "relative"),)
DINO = {"head_dim": 8, "convention": "dinov3"}
REFUSED = {
    "AxialRoPE": [
        *[
            row
            for name, bound in (("shift", 0), ("jitter", 1), ("rescale", 1))
            for row in each(
                AxialRoPE,
                DINO,
                name,
                [*(w for w in NO_NUMBERS if w[0] is not None), (-2, "-2")],
                f"a finite number above {bound}",
            )
        ],
        Row(lambda: AxialRoPE(8, base=1.0), "base must be a finite number above 1, got 1.0"),
        Row(lambda: AxialRoPE(8, scaling=3), "scaling must be a scaling such as …, got 3"),
        Row(
            lambda: AxialRoPE(8, scaling=DynamicNTK(2, 4)),
            "scaling must not depend on the number of tokens, for AxialRoPE, got DynamicNTK(…)",
        ),
        Row(lambda: AxialRoPE(6), "rotary_dim must be a multiple of 4 within 4..head_dim = 6, got 6"),
        Row(lambda: AxialRoPE(8, rotary_dim=12), "rotary_dim must be a multiple of 4 within 4..head_dim = 8, got 12"),
        Row(
            lambda: AxialRoPE(8, "eva"),
            "extent must be (height, width) of the training grid for convention='eva', got None",
        ),
        Row(lambda: AxialRoPE(8, extent=(2, 3)), "extent must be None for convention='index', got (2, 3)"),
        Row(lambda: AxialRoPE(8, "eva", extent=3), "extent must be (height, width) or None, got 3"),
        Row(lambda: AxialRoPE(8, "pe", shift=0.1), "shift must be None for convention='pe', got 0.1"),
        Row(
            lambda: AxialRoPE(8)(Positions.arange(3)),
            "AxialRoPE takes 2 coordinates per token, got positions of 1 axes: make them with its grid(height, width)",
        ),
        Row(
            lambda: AxialRoPE(8, "dinov3")(Positions.grid(2, 3)),
            "AxialRoPE with convention='dinov3' takes floating coordinates from -1 to 1, made by its grid(height, "
            "width), got torch.int64",
        ),
    ],
    "AxialRoPE.grid": [
        Row(lambda: AxialRoPE(8).grid(-1, 2), "height must not be negative, got -1"),
        Row(lambda: AxialRoPE(8, "pe").grid(1, 2.0), "width must be a whole number, got 2.0"),
        Row(lambda: AxialRoPE(8, "dinov3").grid(1, 2, prefix=True), "prefix must be a whole number, got True"),
        Row(lambda: AxialRoPE(8).grid(1, 2, device="there"), "device must be one that torch knows, got 'there'"),
    ],
}
