"""Rotated values that are not turned back, or are turned elsewhere."""

from dataclasses import replace
from typing import Any

from posenc import RotatedValues
from posenc.encoding.rotation import Rotation
from tests.cases import HEAD_DIM
from tests.hard.wrong import Row, each, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, oracles
from tests.schemes import test_rotary_schemes

RIGHT = RotatedValues.rotation


def not_back(self: RotatedValues, *arguments: Any) -> Rotation:
    made: Any = RIGHT(self, *arguments)
    return replace(made, output=lambda x: x)


def on(self: RotatedValues, *arguments: Any) -> Rotation:
    """The output is turned on, by the queries' angles, and not back."""
    made: Any = RIGHT(self, *arguments)
    return replace(made, output=made.query)


def not_at_all(self: RotatedValues, *arguments: Any) -> Rotation:
    return replace(RIGHT(self, *arguments), value=None, output=None)


def first_channels(self: RotatedValues, *arguments: Any) -> Rotation:
    made: Any = RIGHT(self, *arguments)
    return Rotation(*(replace(turn, first=0) for turn in (made.query, made.key, made.value, made.output)))


def backwards(self: RotatedValues, *arguments: Any) -> Rotation:
    """Keys are turned against queries."""
    made: Any = RIGHT(self, *arguments)
    return replace(made, key=made.key.inverse())


class NotBack(RotatedValues):
    rotation = not_back


class Backwards(RotatedValues):
    rotation = backwards


COMPARED = oracles("rotated_values")
MUTANTS = (
    Mutant("does not turn the output back", RotatedValues, "rotation", not_back, COMPARED),
    Mutant("turns the output on", RotatedValues, "rotation", on, COMPARED),
    Mutant("turns no values", RotatedValues, "rotation", not_at_all, test_rotary_schemes.check_deepseek_v4),
    Mutant("turns the first channels", RotatedValues, "rotation", first_channels, COMPARED),
)
LAWLESS = (Lawless("rotated_values", lambda shape: Backwards(shape.head_dim, 4), "relative"),)
UNTRUE = (Untrue("rotated values", lambda: NotBack(HEAD_DIM, 4, 313.0)),)

GOOD = {"head_dim": 8, "rotary_dim": 4}
REFUSED = {
    "RotatedValues": [
        *sizes(RotatedValues, GOOD, "head_dim", "rotary_dim"),
        *numbers(RotatedValues, GOOD, "base", 1),
        *each(RotatedValues, GOOD, "layout", [("halves", "'halves'")], "'half' or 'interleaved'"),
        *each(RotatedValues, GOOD, "scaling", [(4.0, "4.0")], "a scaling such as …"),
        Row(lambda: RotatedValues(8), "rotary_dim must be even and within 2..head_dim = 8, got 64"),
        Row(lambda: RotatedValues(8, 3), "rotary_dim must be even and within 2..head_dim = 8, got 3"),
    ],
}
