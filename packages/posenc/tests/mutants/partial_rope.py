"""Partial RoPE with other frequencies, or other channels."""

from typing import Any

import torch

from posenc import RoPE
from posenc.rotary import Rotary
from posenc.rotation.phases import frequencies
from tests.mutants import Lawless, Mutant, oracles
from tests.schemes import test_rotary_schemes


def over_the_head(self: Rotary, device: Any = None, lengths: Any = None, its: Any = Rotary.frequencies) -> Any:
    """head_dim in the exponent: the same pairs by the frequencies of proportional rotation."""
    if self.scaling is not None or self.axes > 1:
        return its(self, device, lengths)
    return frequencies(self.head_dim, self.base, device)[None, : self.rotary_dim // 2], 1.0


class Counter(RoPE):
    """Every pair turns an eighth of a half turn at each position: after 16 it is back."""

    def frequencies(self, device: Any = None, lengths: Any = None) -> Any:
        return torch.full((1, self.rotary_dim // 2), torch.pi / 8, dtype=torch.float64), 1.0


MUTANTS = (
    Mutant("has head_dim in the exponent", Rotary, "frequencies", over_the_head, oracles("partial_rope")),
    Mutant(
        "has the frequencies of proportional rotation",
        Rotary,
        "frequencies",
        over_the_head,
        test_rotary_schemes.check_partial_is_not_proportional,
    ),
)
LAWLESS = (Lawless("partial_rope", lambda shape: Counter(shape.head_dim, rotary_dim=shape.head_dim // 2), "unique"),)
