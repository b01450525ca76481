"""PoPE with other phases, or other lengths."""

import torch
from torch import Tensor

from posenc import PoPE, Positions
from posenc.schemes.pope import Polar
from tests.hard.wrong import Row, numbers, sizes
from tests.mutants import Mutant, oracles
from tests.mutants.backends import Line


def rectified(self: Polar, x: Tensor) -> Tensor:
    length = x.relu()
    return torch.cat((length * self.real.to(x.dtype), length * self.imaginary.to(x.dtype)), -1)


def of_both_halves(self: PoPE) -> float:
    """The scale of vectors twice as wide."""
    return float((2 * self.head_dim) ** -0.5)


COMPARED = oracles("pope")
MUTANTS = (
    Mutant("scales by the width it has made", PoPE, "scale", property(of_both_halves), COMPARED),
    Mutant("rectifies", Polar, "__call__", rectified, COMPARED),
    Line(
        "leaves the phase out", PoPE, "rotation", ("angle - delta.clamp(-2 * math.pi, 0.0)[:, None]", "angle"), COMPARED
    ),
)


REFUSED = {
    "PoPE": [
        *sizes(PoPE, {"head_dim": 8, "num_heads": 2}, "head_dim", "num_heads"),
        *numbers(PoPE, {"head_dim": 8}, "base", 1),
        Row(
            lambda: PoPE(8)(Positions.grid(2, 2)),
            "PoPE takes one coordinate per token, got positions of 2 axes: build it with axes=2",
        ),
    ],
}
