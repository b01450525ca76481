"""KERPLE with another kernel, other bounds, or other distances."""

from posenc import KERPLE
from tests.errors.wrong_calls import NO_WORDS, Row, each
from tests.mutants import Mutant, elsewhere, index, lines, oracles, undrawn

COMPARED = oracles("kerple")


MUTANTS = (
    Mutant("takes distances between indices", KERPLE, "score", elsewhere(KERPLE, index, index), COMPARED),
    undrawn(KERPLE, "kerple"),
    *lines(
        COMPARED,
        ("has its logarithm from 0 on", KERPLE, "_bias", "torch.log1p(a * away)", "torch.log(a * away + 0.5)"),
        ("rewards distance", KERPLE, "_bias", "return -a * ", "return a * "),
    ),
)


SIX = {"num_heads": 6}
REFUSED: dict[str, list[Row]] = {"KERPLE": [*each(KERPLE, SIX, "form", NO_WORDS, "'log' or 'power'")]}
