"""xPos that fades otherwise, counts from elsewhere, or leaves the numbers that there are."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc import Positions, XPos
from posenc.scheme import Scheme
from posenc.schemes import xpos
from posenc.schemes.xpos import Decaying
from tests.cases import HEAD_DIM
from tests.hard.wrong import Row, each, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, oracles
from tests.schemes import test_rotary_schemes

RIGHT, LENGTHS = XPos._decay, Decaying._lengths


def queries_alone(self: Decaying, p: Tensor) -> Tensor:
    return LENGTHS(self, p if self.side == "query" else 0 * p)


def growing(self: Decaying, p: Tensor) -> Tensor:
    return LENGTHS(self, torch.where(p.isinf(), p, -p))


def by_another_number(self: XPos, device: Any = None) -> Tensor:
    """zeta_k = (2k/d + 0.5) / 1.5."""
    k = torch.arange(self.head_dim // 2, dtype=torch.float64)
    return -((2 * k / self.head_dim + 0.5) / 1.5).log() / self.scale_base


def all_alike(self: XPos, device: Any = None) -> Tensor:
    return RIGHT(self).mean().expand(self.head_dim // 2)


def from_zero(positions: Positions, coords: Tensor) -> tuple[Tensor, float]:
    return coords.new_zeros(coords.size(0)), 0.0


def with_padding(positions: Positions, coords: Tensor) -> tuple[Tensor, float]:
    low, high = coords.amin(1), coords.amax(1)
    return (low + high) / 2, float((high - low).max())


def one_block(positions: Positions, coords: Tensor) -> tuple[Tensor, float]:
    return (coords.amin(1) + coords.amax(1)) / 2, 0.0


class Backwards(XPos):
    """Keys are turned against queries."""

    def _between(self, *arguments: Any) -> Any:
        made: Any = super()._between(*arguments)
        return replace(made, key=replace(made.key, turn=made.key.turn.inverse()))


class Alike(XPos):
    _decay = all_alike


FAR = partial(test_rotary_schemes.check_xpos_far, torch.float32)
COMPARED = oracles("xpos")
MUTANTS = (
    Mutant("does not fade keys", Decaying, "_lengths", queries_alone, COMPARED),
    Mutant("grows with the distance", Decaying, "_lengths", growing, COMPARED),
    Mutant("has another zeta", XPos, "_decay", by_another_number, COMPARED),
    Mutant("has one zeta for all pairs", XPos, "_decay", all_alike, COMPARED),
    Mutant("counts keys from their own middle", XPos, "bind", Scheme.bind, COMPARED),
    Mutant("counts from zero", xpos, "_middle", from_zero, FAR),
    Mutant("has one block for all queries", xpos, "_middle", one_block, FAR),
    Mutant("takes padding for text", xpos, "_middle", with_padding, test_rotary_schemes.test_padding_moves_no_origin),
    Mutant(
        "keeps turned keys",
        XPos,
        "needs_raw_keys",
        False,
        partial(test_rotary_schemes.test_xpos_decodes_as_it_reads, test_rotary_schemes.NEAR),
    ),
)
LAWLESS = (Lawless("xpos", lambda shape: Backwards(shape.head_dim), "relative"),)
UNTRUE = (Untrue("xpos", lambda: Alike(HEAD_DIM, 313.0, 7.0)),)

REFUSED = {
    "XPos": [
        *sizes(XPos, {"head_dim": 8}, "head_dim"),
        *numbers(XPos, {"head_dim": 8}, "base", 1),
        *numbers(XPos, {"head_dim": 8}, "scale_base", 0),
        *each(XPos, {"head_dim": 8}, "layout", [("halves", "'halves'")], "'half' or 'interleaved'"),
        Row(lambda: XPos(7), "head_dim must be even (channels come in pairs), got 7"),
        Row(
            lambda: XPos(8)(Positions.grid(2, 2)),
            "XPos takes one coordinate per token, got positions of 2 axes: build it with axes=2",
        ),
    ],
}
