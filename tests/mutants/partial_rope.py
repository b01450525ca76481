"""Partial RoPE with other frequencies, or other channels."""

from typing import Any

import torch

from posenc import PartialRoPE, Proportional
from posenc.phases import frequencies
from posenc.rotary import Rotary
from tests.cases import HEAD_DIM
from tests.hard.wrong import Row, each, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, oracles


def over_the_head(self: Rotary, device: Any = None, lengths: Any = None) -> Any:
    """head_dim in the exponent: the same pairs by the frequencies of proportional rotation."""
    return frequencies(self.head_dim, self.base, device)[None, : self.rotary_dim // 2], 1.0


class OverTheHead(PartialRoPE):
    frequencies = over_the_head


class OneSpeed(PartialRoPE):
    """Every pair by as much as all others together: nothing but a counter, which repeats itself."""

    def frequencies(self, device: Any = None, lengths: Any = None) -> Any:
        return torch.full((1, self.rotary_dim // 2), torch.pi / 8, dtype=torch.float64), 1.0


MUTANTS = (
    Mutant("has head_dim in the exponent", PartialRoPE, "frequencies", over_the_head, oracles("partial_rope")),
    Mutant("turns the last channels", PartialRoPE, "channels", None, lambda: check_channels()),
)


def check_channels() -> None:
    """What it says of its channels."""
    assert PartialRoPE(8, 0.5).channels == range(4)


LAWLESS = (Lawless("partial_rope", lambda shape: OneSpeed(shape.head_dim, 0.5), "unique"),)
UNTRUE = (Untrue("partial rope", lambda: OverTheHead(HEAD_DIM, 0.7, 77.0)),)

MORE = "; a number of channels is RoPE's rotary_dim, and a share of the frequencies is PRoPE's"
REFUSED = {
    "PartialRoPE": [
        *sizes(PartialRoPE, {"head_dim": 8}, "head_dim"),
        *numbers(PartialRoPE, {"head_dim": 8}, "base", 1),
        *each(PartialRoPE, {"head_dim": 8}, "layout", [("halves", "'halves'")], "'half' or 'interleaved'"),
        *[
            Row(lambda share=share: PartialRoPE(8, share), f"share must be a number above 0 …, got {said}{MORE}")
            for share, said in ((0, "0"), (4, "4"), ("half", "'half'"), (True, "True"), (None, "None"))
        ],
        Row(
            lambda: PartialRoPE(12, 0.25),
            "share must give pairs of channels, got 0.25 of 12, which are 3; PRoPE takes any share",
        ),
        Row(
            lambda: PartialRoPE(8, 0.5, scaling=Proportional(0.5)),
            "scaling must not be Proportional …: proportional rotation is PRoPE(8, share), partial rotation "
            "PartialRoPE(8, share)",
        ),
    ],
}
