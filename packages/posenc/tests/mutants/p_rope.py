"""p-RoPE without other frequencies, or with other pairs."""

from typing import Any

from posenc import Proportional, RoPE
from posenc.rotary import Rotary
from tests.mutants import Lawless, Mutant, lines, oracles
from tests.schemes import test_rotary_schemes


def as_partial(self: Rotary, *arguments: Any, its: Any = Rotary.frequencies, **named: Any) -> Any:
    """The pairs of partial rotation too."""
    scaling = self.scaling
    if not isinstance(scaling, Proportional):
        return its(self, *arguments, **named)
    self.rotary_dim, self.scaling = 2 * int(scaling.share * self.head_dim // 2), None
    try:
        return its(self, *arguments, **named)
    finally:
        self.scaling = scaling


MUTANTS = (
    *lines(
        oracles("p_rope"),
        ("leaves out the highest frequencies", Proportional, "__call__", "< turning", ">= theta.numel() - turning"),
        ("rounds the number of pairs up", Proportional, "__call__", "< turning", "< self.share * theta.numel()"),
        (
            "has the turning channels in the exponent",
            Proportional,
            "__call__",
            "return theta * ",
            "return theta ** (theta.numel() / max(turning, 1)) * ",
        ),
    ),
    Mutant(
        "is partial rotation", Rotary, "frequencies", as_partial, test_rotary_schemes.check_partial_is_not_proportional
    ),
)

LAWLESS = (Lawless("p_rope", lambda shape: RoPE(shape.head_dim, scaling=Proportional(0.0)), "directed"),)
