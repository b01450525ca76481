"""PoPE with other phases, or other lengths."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from posenc import PoPE, Positions
from posenc.encoding.rotation import Rotation
from posenc.rotation.phases import coords_of, frequencies, phases
from posenc.schemes.pope import Polar
from tests.cases import HEAD_DIM, HEADS
from tests.hard.wrong import Row, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, oracles


def rotation(
    ahead: float = -1.0, lowest: float = -2 * math.pi, highest: float = 0.0, pairs: bool = False, back: bool = False
) -> Any:
    """The method as it is, but for one thing."""

    def wrong(self: PoPE, positions: Positions, dtype: torch.dtype = torch.float32, context: Any = None) -> Rotation:
        theta = frequencies(self.head_dim if pairs else 2 * self.head_dim, self.base)
        theta = torch.cat((theta, theta)) if pairs else theta
        angle = phases(coords_of(positions, 1, "PoPE")[..., 0], theta)[:, None]
        delta = self.delta.double().clamp(lowest, highest)[:, None]
        query, key = (
            Polar(phase.cos().to(dtype), phase.sin().to(dtype))
            for phase in (angle + ahead * delta, -angle if back else angle)
        )
        return Rotation(query, key)

    return wrong


def rectified(self: Polar, x: Tensor) -> Tensor:
    length = x.relu()
    return torch.cat((length * self.real.to(x.dtype), length * self.imaginary.to(x.dtype)), -1)


def of_both_halves(self: PoPE) -> float:
    """The scale of vectors twice as wide."""
    return float((2 * self.head_dim) ** -0.5)


class Unheld(PoPE):
    rotation = rotation(lowest=-math.inf, highest=math.inf)


class Backwards(PoPE):
    rotation = rotation(back=True)


class Drawn(PoPE):
    def reset_parameters(self) -> None:
        nn.init.uniform_(self.delta, -2 * math.pi, 0.0)


COMPARED = oracles("pope")
MUTANTS = (
    Mutant("has phases without bounds", PoPE, "rotation", Unheld.rotation, COMPARED),
    Mutant("turns by the negative phase", PoPE, "rotation", rotation(ahead=1.0), COMPARED),
    Mutant("has as many frequencies as RoPE", PoPE, "rotation", rotation(pairs=True), COMPARED),
    Mutant("scales by the width it has made", PoPE, "scale", property(of_both_halves), COMPARED),
    Mutant("rectifies", Polar, "__call__", rectified, COMPARED),
)
LAWLESS = (
    Lawless("pope", lambda shape: Backwards(shape.head_dim, shape.num_heads), "relative"),
    Lawless("pope", lambda shape: Drawn(shape.head_dim, shape.num_heads), "directed"),
)


def unheld() -> PoPE:
    scheme = Unheld(HEAD_DIM, HEADS, 313.0).double()
    nn.init.normal_(scheme.delta)
    return scheme


UNTRUE = (Untrue("pope", unheld),)

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
