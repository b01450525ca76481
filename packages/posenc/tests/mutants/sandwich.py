"""Sandwich of other cosines, or compressed otherwise."""

from posenc import Sandwich
from tests.errors.wrong_calls import Row
from tests.mutants import Mutant, elsewhere, index, lines, oracles

MUTANTS = (
    *lines(
        oracles("sandwich"),
        ("leaves out the cosine", Sandwich, "_bias", ".cos()", ""),
        ("has a sine", Sandwich, "_bias", ".cos()", ".sin()"),
    ),
    Mutant(
        "takes distances between indices", Sandwich, "score", elsewhere(Sandwich, index, index), oracles("sandwich")
    ),
)


REFUSED: dict[str, list[Row]] = {
    "Sandwich": [Row(lambda: Sandwich(6, dim=7), "dim must be positive and even …, got 7")]
}
