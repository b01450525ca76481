"""Relative1D that reads the vector of another distance."""

from dataclasses import replace
from typing import Any

from posenc import Relative1D
from posenc.encoding.terms import RelativeDot
from posenc.schemes.catalog import entries_of
from tests.mutants import Mutant, lines, oracles, undrawn
from tests.schemes import test_laws


def of_a_fixed_length() -> None:
    test_laws.check_claim(*entries_of("relative_1d"), "length_free")


RIGHT = Relative1D.score


def clamped(self: Relative1D, *given: Any) -> tuple[RelativeDot]:
    (made,) = RIGHT(self, *given)
    far = self.max_positions - 1
    distance = replace(made.distance, reach=None, tail="constant", past=far)  # type: ignore[attr-defined]
    return (RelativeDot(lambda r: made.vectors(r.clamp(-far, far)), distance),)  # type: ignore[attr-defined]


AHEAD, BACK = "r + self.max_positions - 1", "self.max_positions - 1 - r"
MUTANTS = (
    *lines(oracles("relative_1d"), ("takes query minus key", Relative1D, "score", AHEAD, BACK)),
    Mutant("clamps distances past its table", Relative1D, "score", clamped, of_a_fixed_length),
    undrawn(Relative1D, "relative_1d"),
)
