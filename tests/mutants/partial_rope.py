"""Partial RoPE with other frequencies, or other channels."""

from typing import Any

import torch

from posenc import PartialRoPE, Proportional
from posenc.rotary import Rotary
from posenc.rotation.phases import frequencies
from tests.cases import HEAD_DIM
from tests.hard.wrong import Row, each, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, oracles
from tests.schemes import test_rotary_schemes


def over_the_head(self: Rotary, device: Any = None, lengths: Any = None) -> Any:
    """head_dim in the exponent: the same pairs by the frequencies of proportional rotation."""
    return frequencies(self.head_dim, self.base, device)[None, : self.rotary_dim // 2], 1.0


class OverTheHead(PartialRoPE):
    frequencies = over_the_head


class Counter(PartialRoPE):
    """Every pair turns an eighth of a half turn at each position: after 16 it is back."""

    def frequencies(self, device: Any = None, lengths: Any = None) -> Any:
        return torch.full((1, self.rotary_dim // 2), torch.pi / 8, dtype=torch.float64), 1.0


MUTANTS = (
    Mutant("has head_dim in the exponent", PartialRoPE, "frequencies", over_the_head, oracles("partial_rope")),
    Mutant(
        "has the frequencies of proportional rotation",
        PartialRoPE,
        "frequencies",
        over_the_head,
        test_rotary_schemes.check_partial_is_not_proportional,
    ),
)
LAWLESS = (Lawless("partial_rope", lambda shape: Counter(shape.head_dim, 0.5), "unique"),)
UNTRUE = (Untrue("partial rope", lambda: OverTheHead(HEAD_DIM, 0.7, 77.0)),)

MORE = "; for a number of channels use RoPE's rotary_dim, for a share of the frequencies ProportionalRoPE"
SHARE = "share must be a number above 0 and up to 1, the share of rotated channels, got"
REFUSED = {
    "PartialRoPE": [
        *sizes(PartialRoPE, {"head_dim": 8}, "head_dim"),
        *numbers(PartialRoPE, {"head_dim": 8}, "base", 1),
        *each(PartialRoPE, {"head_dim": 8}, "layout", [("halves", "'halves'")], "'half' or 'interleaved'"),
        *each(PartialRoPE, {"head_dim": 8}, "scaling", [(4.0, "4.0")], "a scaling such as …"),
        Row(lambda: PartialRoPE(8, 0), f"{SHARE} 0{MORE}"),
        Row(lambda: PartialRoPE(8, 4), f"{SHARE} 4{MORE}"),
        Row(lambda: PartialRoPE(8, "half"), f"{SHARE} 'half'{MORE}"),  # type: ignore[arg-type]
        Row(lambda: PartialRoPE(8, True), f"{SHARE} True{MORE}"),
        Row(
            lambda: PartialRoPE(12, 0.25),
            "share must give pairs of channels, got 0.25 of 12, which is 3; ProportionalRoPE takes any share",
        ),
        Row(
            lambda: PartialRoPE(8, 0.5, scaling=Proportional(0.5)),
            "scaling must not be Proportional with a share of the channels: use ProportionalRoPE(8, share) for "
            "proportional rotation, or PartialRoPE(8, share) without scaling for partial rotation",
        ),
    ],
}
