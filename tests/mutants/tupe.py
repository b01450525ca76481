"""TUPE with positions that meet otherwise."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import TUPE, Positions
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Rotation
from posenc.schemes import tupe
from posenc.schemes.catalog import entries_of
from tests.cases import HEAD_DIM, HEADS
from tests.hard.wrong import Row, flags, sizes
from tests.mutants import Lawless, Mutant, Untrue, drawn, oracles
from tests.schemes import test_laws, test_life_cycle

RIGHT, PROJECTED = TUPE.rotation, TUPE._projected


def rotation(
    move: Callable[[Positions], Positions],
) -> Callable[..., Rotation]:
    """The method as it is, but for where tokens are."""

    def wrong(
        self: TUPE, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
    ) -> Rotation:
        return RIGHT(self, move(positions), dtype, context)

    return wrong


SCALE = TUPE.scale


def scaled(factor: float) -> property:
    return property(lambda self: SCALE.__get__(self) * factor)


def clamped(p: Positions) -> Positions:
    return Positions(p.coords.clamp(0, 20), order=p.order, document=p.document)


def counted(p: Positions) -> Positions:
    return Positions(torch.arange(len(p)).expand(p.coords.shape), order=p.order, document=p.document)


def not_normalized(self: TUPE, rows: Tensor, layer: nn.Linear) -> Tensor:
    return PROJECTED(self, rows * 2, layer)


def without_bias(self: TUPE, rows: Tensor, layer: nn.Linear) -> Tensor:
    return F.linear(rows, layer.weight.to(rows)).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)


def of_one_layer(self: TUPE, rows: Tensor, layer: nn.Linear) -> Tensor:
    return PROJECTED(self, rows, self.key)


def first_of_its_group(x: Tensor, part: Tensor, shared: bool = False) -> Tensor:
    part = part[:, :: part.size(1) // x.size(1)]
    return torch.cat((x, part.expand(x.size(0), -1, -1, -1)), -1)


def of_a_fixed_length() -> None:
    test_laws.check_claim(*entries_of("tupe"), "length_free")


COMPARED = oracles("tupe")


def mutant(bug: str, wrong: object, name: str = "rotation", check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, tupe if name == "_beside" else TUPE, name, wrong, check)


MUTANTS = (
    mutant("divides by the root of head_dim", scaled(2**0.5), "scale"),
    mutant("divides by the root of three heads", scaled((2 / 3) ** 0.5), "scale"),
    mutant("takes indices for positions", rotation(counted)),
    mutant("is off by one", rotation(lambda p: p.shift(1))),
    mutant("projects queries' positions as keys'", of_one_layer, "_projected"),
    mutant("doubles what it has normalised", not_normalized, "_projected"),
    mutant("leaves out the projections' biases", without_bias, "_projected"),
    mutant("has the first key of a group, and not the mean", first_of_its_group, "_beside"),
    mutant("clamps positions past its table", rotation(clamped), check=of_a_fixed_length),
    mutant(
        "does not draw its parameters",
        lambda self: None,
        "reset_parameters",
        partial(test_life_cycle.check_meta, "tupe"),
    ),
)


class EndlessTUPE(TUPE):
    """Positions past the table share its end, silently."""

    rotation = rotation(clamped)


class TiedTUPE(TUPE):
    """One projection for both: every law holds, since contents have two."""

    _projected = of_one_layer


LAWLESS = (
    Lawless("tupe", lambda shape: EndlessTUPE(shape.num_heads, shape.head_dim, 21, 8), "length_free"),
    Lawless("tupe", lambda shape: EndlessTUPE(shape.num_heads, shape.head_dim, 21, 8), "unique"),
)
UNTRUE = (Untrue("tupe", lambda: drawn(TiedTUPE(HEADS, HEAD_DIM, 21, 5))),)
MODEL = {"num_heads": 6, "head_dim": 4, "max_positions": 9}
REFUSED: dict[str, list[Row]] = {
    "TUPE": [
        *sizes(TUPE, MODEL, "num_heads", "head_dim", "max_positions", "dim"),
        *flags(TUPE, MODEL, "untie_cls"),
    ]
}
