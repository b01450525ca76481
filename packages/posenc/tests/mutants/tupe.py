"""TUPE with positions that meet otherwise."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import TUPE
from posenc.schemes import tupe
from tests.hard.wrong import Row, flags, sizes
from tests.mutants import Mutant, oracles
from tests.mutants.backends import Line
from tests.schemes import test_life_cycle


def without_bias(self: TUPE, rows: Tensor, layer: nn.Linear) -> Tensor:
    return F.linear(rows, layer.weight.to(rows)).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)


def first_of_its_group(x: Tensor, part: Tensor, shared: bool = False) -> Tensor:
    part = part[:, :: part.size(1) // x.size(1)]
    return torch.cat((x, part.expand(x.size(0), -1, -1, -1)), -1)


COMPARED = oracles("tupe")


def mutant(bug: str, wrong: object, name: str = "rotation", check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, tupe if name == "_beside" else TUPE, name, wrong, check)


MUTANTS = (
    mutant("leaves out the projections' biases", without_bias, "_projected"),
    mutant("has the first key of a group, and not the mean", first_of_its_group, "_beside"),
    mutant(
        "does not draw its parameters",
        lambda self: None,
        "reset_parameters",
        partial(test_life_cycle.check_meta, "tupe"),
    ),
    Line(
        "leaves the norm's bias out",
        TUPE,
        "rotation",
        ("self.norm.bias.to(dtype)", "0 * self.norm.bias.to(dtype)"),
        COMPARED,
    ),
    Line("does not untie its class token", TUPE, "rotation", ("if self.untie_cls:", "if False:"), COMPARED),
)


MODEL = {"num_heads": 6, "head_dim": 4, "max_positions": 9}
REFUSED: dict[str, list[Row]] = {
    "TUPE": [
        *sizes(TUPE, MODEL, "num_heads", "head_dim", "max_positions", "dim"),
        *flags(TUPE, MODEL, "untie_cls"),
    ]
}
