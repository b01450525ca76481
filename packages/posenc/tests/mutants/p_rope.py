"""p-RoPE without other frequencies, or with other pairs."""

from typing import Any

import torch
from torch import Tensor

from posenc import Proportional, RoPE
from posenc.rotary import Rotary
from tests.mutants import Lawless, Mutant, oracles
from tests.schemes import test_rotary_schemes


def turning(self: Proportional, theta: Tensor) -> int:
    return int(self.share * 2 * len(theta) // 2)


def without_the_highest(self: Proportional, theta: Tensor) -> Any:
    """What stays are the lowest."""
    return theta * (torch.arange(len(theta)) >= len(theta) - turning(self, theta)), 1.0


def rounded_up(self: Proportional, theta: Tensor) -> Any:
    return theta * (torch.arange(len(theta)) < self.share * len(theta)), 1.0


def over_what_turns(self: Proportional, theta: Tensor) -> Any:
    """The number of turning channels in the exponent, as in partial rotation."""
    few = turning(self, theta)
    return theta ** (len(theta) / few) * (torch.arange(len(theta)) < few), 1.0


def as_partial(self: Rotary, *arguments: Any, its: Any = Rotary.frequencies) -> Any:
    """The pairs of partial rotation too."""
    scaling = self.scaling
    if not isinstance(scaling, Proportional):
        return its(self, *arguments)
    self.rotary_dim, self.scaling = 2 * int(scaling.share * self.head_dim // 2), None
    try:
        return its(self, *arguments)
    finally:
        self.scaling = scaling


COMPARED = oracles("p_rope")
MUTANTS = (
    Mutant("leaves out the highest frequencies", Proportional, "__call__", without_the_highest, COMPARED),
    Mutant("rounds the number of pairs up", Proportional, "__call__", rounded_up, COMPARED),
    Mutant("has the turning channels in the exponent", Proportional, "__call__", over_what_turns, COMPARED),
    Mutant(
        "is partial rotation",
        Rotary,
        "frequencies",
        as_partial,
        test_rotary_schemes.check_partial_is_not_proportional,
    ),
)
LAWLESS = (Lawless("p_rope", lambda shape: RoPE(shape.head_dim, scaling=Proportional(0.0)), "directed"),)
