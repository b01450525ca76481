"""p-RoPE without other frequencies, or with other pairs."""

from typing import Any

import torch

from posenc import ProportionalRoPE
from posenc.rotary import Rotary
from posenc.rotation.phases import frequencies
from tests.cases import HEAD_DIM
from tests.hard.wrong import Row, each, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, oracles
from tests.schemes import test_rotary_schemes


def without_the_highest(self: ProportionalRoPE, device: Any = None, lengths: Any = None) -> Any:
    """What stays are the lowest."""
    theta = frequencies(self.head_dim, self.base, device)
    return (theta * (torch.arange(len(theta)) >= len(theta) - int(self.share * self.head_dim // 2)))[None], 1.0


def rounded_up(self: ProportionalRoPE, device: Any = None, lengths: Any = None) -> Any:
    theta = frequencies(self.head_dim, self.base, device)
    return (theta * (torch.arange(len(theta)) < self.share * len(theta)))[None], 1.0


def over_what_turns(self: ProportionalRoPE, device: Any = None, lengths: Any = None) -> Any:
    """The number of turning channels in the exponent, as in partial rotation."""
    turning = int(self.share * self.head_dim // 2)
    theta = frequencies(2 * turning, self.base, device)
    return torch.nn.functional.pad(theta, (0, self.head_dim // 2 - turning))[None], 1.0


def as_partial(self: ProportionalRoPE, *arguments: Any) -> Any:
    """The pairs of partial rotation too."""
    self.rotary_dim = 2 * int(self.share * self.head_dim // 2)
    scaling, self.scaling = self.scaling, None
    try:
        return Rotary.frequencies(self, *arguments)
    finally:
        self.scaling = scaling


class WithoutTheHighest(ProportionalRoPE):
    frequencies = without_the_highest


COMPARED = oracles("p_rope")
MUTANTS = (
    Mutant("leaves out the highest frequencies", ProportionalRoPE, "frequencies", without_the_highest, COMPARED),
    Mutant("rounds the number of pairs up", ProportionalRoPE, "frequencies", rounded_up, COMPARED),
    Mutant("has the turning channels in the exponent", ProportionalRoPE, "frequencies", over_what_turns, COMPARED),
    Mutant(
        "is partial rotation",
        ProportionalRoPE,
        "frequencies",
        as_partial,
        test_rotary_schemes.check_partial_is_not_proportional,
    ),
)
LAWLESS = (Lawless("p_rope", lambda shape: ProportionalRoPE(shape.head_dim, 0.0), "directed"),)
UNTRUE = (Untrue("p_rope", lambda: WithoutTheHighest(HEAD_DIM, 0.7, 77.0)),)

MORE = "; for a number of channels use RoPE's rotary_dim, for a share of the channels PartialRoPE"
SHARE = "share must be a number within [0, 1], the share of nonzero frequencies, got"
REFUSED = {
    "ProportionalRoPE": [
        *sizes(ProportionalRoPE, {"head_dim": 8}, "head_dim"),
        *numbers(ProportionalRoPE, {"head_dim": 8}, "base", 1),
        *each(ProportionalRoPE, {"head_dim": 8}, "layout", [("halves", "'halves'")], "'half' or 'interleaved'"),
        Row(lambda: ProportionalRoPE(8, 4), f"{SHARE} 4{MORE}"),
        Row(lambda: ProportionalRoPE(8, -0.5), f"{SHARE} -0.5{MORE}"),
        Row(lambda: ProportionalRoPE(8, "half"), f"{SHARE} 'half'{MORE}"),  # type: ignore[arg-type]
        Row(lambda: ProportionalRoPE(8, True), f"{SHARE} True{MORE}"),
        Row(lambda: ProportionalRoPE(7), "head_dim must be even, got 7"),
    ],
}
