"""MLA's rotation of other channels, other pairs, or without its scale."""

import math
from dataclasses import replace
from typing import Any

from posenc import MLA
from posenc.encoding.rotation import Rotation
from tests.cases import HEAD_DIM
from tests.hard.wrong import Row, each, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, oracles
from tests.schemes import test_rotary_schemes

RIGHT = MLA.rotation


def rotation(of_query: dict[str, Any], of_key: dict[str, Any]) -> Any:
    """The method, with other turns of queries and of keys."""

    def wrong(self: MLA, *arguments: Any) -> Rotation:
        made = RIGHT(self, *arguments)
        query, key = (
            replace(side, whole=replace(side.whole, **change))
            for side, change in ((made.query, of_query), (made.key, of_key))
        )
        return replace(made, query=query, key=key)

    return wrong


def backwards(self: MLA, *arguments: Any) -> Rotation:
    """Keys are turned against queries."""
    made: Any = RIGHT(self, *arguments)
    return replace(made, key=replace(made.key, whole=made.key.whole.inverse()))


class FirstChannels(MLA):
    rotation = rotation({"first": 0}, {"first": 0})


class Backwards(MLA):
    rotation = backwards


def of_a_head(self: MLA) -> float:
    return 1 / math.sqrt(self.head_dim)


def of_a_slice(self: MLA) -> float:
    return 1 / math.sqrt(self.rope_dim)


COMPARED = oracles("mla")
MUTANTS = (
    Mutant("turns the first channels", MLA, "rotation", FirstChannels.rotation, COMPARED),
    Mutant(
        "is half where interleaved was asked for",
        MLA,
        "rotation",
        rotation({"layout": "half"}, {"layout": "half"}),
        COMPARED,
    ),
    Mutant("turns keys the other way", MLA, "rotation", backwards, COMPARED),
    Mutant("scales by the slice", MLA, "scale", property(of_a_slice), COMPARED),
    Mutant("forgets YaRN's mscale", MLA, "scale", property(of_a_head), test_rotary_schemes.test_mla_has_yarns_scale),
)
LAWLESS = (Lawless("mla", lambda shape: Backwards(shape.head_dim, 4), "relative"),)
UNTRUE = (Untrue("mla", lambda: FirstChannels(HEAD_DIM, 4, 313.0)),)

REFUSED = {
    "MLA": [
        *sizes(MLA, {"head_dim": 8, "rope_dim": 4}, "head_dim", "rope_dim"),
        *numbers(MLA, {"head_dim": 8, "rope_dim": 4}, "base", 1),
        *each(MLA, {"head_dim": 8, "rope_dim": 4}, "layout", [("halves", "'halves'")], "'half' or 'interleaved'"),
        *each(MLA, {"head_dim": 8, "rope_dim": 4}, "scaling", [(4.0, "4.0")], "a scaling such as …"),
        Row(lambda: MLA(8), "rope_dim must be even and within 2..head_dim = 8, got 64"),
        Row(lambda: MLA(8, 3), "rope_dim must be even and within 2..head_dim = 8, got 3"),
    ],
}
