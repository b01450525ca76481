"""Rotated values that are not turned back, or are turned elsewhere."""

from dataclasses import replace
from typing import Any

from posenc import RotatedValues
from posenc.encoding.rotation import Rotation
from tests.errors.wrong_calls import Row, each
from tests.mutants import Mutant, oracles
from tests.schemes import test_rotary_schemes

RIGHT = RotatedValues.rotation


def not_back(self: RotatedValues, *arguments: Any) -> Rotation:
    made: Any = RIGHT(self, *arguments)
    return replace(made, output=lambda x: x)


def not_at_all(self: RotatedValues, *arguments: Any) -> Rotation:
    return replace(RIGHT(self, *arguments), value=None, output=None)


COMPARED = oracles("rotated_values")
MUTANTS = (
    Mutant("does not turn the output back", RotatedValues, "rotation", not_back, COMPARED),
    Mutant(
        "turns no values",
        RotatedValues,
        "rotation",
        not_at_all,
        test_rotary_schemes.test_rotated_values_are_deepseek_v4s,
    ),
)

GOOD = {"head_dim": 8, "rotary_dim": 4}
REFUSED = {
    "RotatedValues": [
        *each(RotatedValues, GOOD, "layout", [("halves", "'halves'")], "'half' or 'interleaved'"),
        *each(RotatedValues, GOOD, "scaling", [(4.0, "4.0")], "a scaling such as …"),
        Row(lambda: RotatedValues(8), "rotary_dim must be even and within 2..head_dim = 8, got 64"),
        Row(lambda: RotatedValues(8, 3), "rotary_dim must be even and within 2..head_dim = 8, got 3"),
    ]
}
