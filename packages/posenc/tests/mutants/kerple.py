"""KERPLE with another kernel, other bounds, or other distances."""

from collections.abc import Callable
from functools import partial

from posenc import KERPLE
from tests.hard.wrong import NO_WORDS, Row, each, sizes
from tests.mutants import Mutant, elsewhere, index, oracles
from tests.mutants.backends import Line
from tests.schemes import test_life_cycle

COMPARED = oracles("kerple")


def mutant(bug: str, wrong: object, name: str = "_bias", check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, KERPLE, name, wrong, check)


MUTANTS = (
    mutant("takes distances between indices", elsewhere(KERPLE, index, index), "score"),
    mutant(
        "does not draw its parameters",
        lambda self: None,
        "reset_parameters",
        partial(test_life_cycle.check_meta, "kerple"),
    ),
    Line(
        "has its logarithm from 0 on", KERPLE, "_bias", ("torch.log1p(a * away)", "torch.log(a * away + 0.5)"), COMPARED
    ),
    Line("rewards distance", KERPLE, "_bias", ("return -a * ", "return a * "), COMPARED),
)


SIX = {"num_heads": 6}
REFUSED: dict[str, list[Row]] = {
    "KERPLE": [*sizes(KERPLE, SIX, "num_heads"), *each(KERPLE, SIX, "form", NO_WORDS, "'log' or 'power'")]
}
