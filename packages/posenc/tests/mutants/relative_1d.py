"""Relative1D that reads the vector of another distance."""

from dataclasses import replace
from functools import partial
from typing import Any

from posenc import Relative1D
from posenc.encoding.terms import RelativeDot
from tests.laws.audits import check_claim
from tests.mutants import Mutant, lines, oracles, undrawn

RIGHT = Relative1D.score


def clamped(self: Relative1D, *given: Any) -> tuple[RelativeDot]:
    (made,) = RIGHT(self, *given)
    far = self.max_positions - 1
    distance = replace(made.distance, reach=None, tail="constant", past=far)  # type: ignore[attr-defined]
    return (RelativeDot(lambda r: made.vectors(r.clamp(-far, far)), distance),)  # type: ignore[attr-defined]


AHEAD, BACK = "r + self.max_positions - 1", "self.max_positions - 1 - r"
MUTANTS = (
    *lines(oracles("relative_1d"), ("takes query minus key", Relative1D, "score", AHEAD, BACK)),
    Mutant(
        "clamps distances past its table",
        Relative1D,
        "score",
        clamped,
        partial(check_claim, "relative_1d", "length_free"),
    ),
    undrawn(Relative1D, "relative_1d"),
)
