"""FIRE of another share, or by another network."""

from collections.abc import Callable
from functools import partial

from posenc import FIRE
from posenc.backends.native import operator
from tests.backends import test_native, test_skipping
from tests.hard.wrong import Row, numbers, sizes
from tests.mutants import Mutant, elsewhere, index, oracles
from tests.mutants.backends import Line

COMPARED = oracles("fire")


def mutant(bug: str, wrong: object, name: str = "_bias", check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, FIRE, name, wrong, check)


MUTANTS = (
    mutant("takes distances between indices", elsewhere(FIRE, index, index), "score"),
    Mutant(
        "the kernel takes a bias for all that fades, beside a broken line",
        operator,
        "UNBOUNDED",
        tuple(name for name in operator.UNBOUNDED if name != "away"),
        test_skipping.test_what_lifts_far_keys_is_not_left_out,
    ),
    Line(
        "the kernel's units that bend at no distance are past it",
        FIRE,
        "_lines",
        ("torch.cat((is_on[None], ", "torch.cat(((breaks[:1, None] >= bends) ^ falls, "),
        partial(test_native.test_a_network_is_a_broken_line_wherever_it_bends, "bends at 0", True),
    ),
    Line(
        "adds position and threshold",
        FIRE,
        "_bias",
        ("torch.maximum(here, self._threshold(dtype))", "here + self._threshold(dtype)"),
        COMPARED,
    ),
    Line("has a tangent in its network", FIRE, "_bias", (".relu()", ".tanh()"), COMPARED),
)


SIX = {"num_heads": 6}
REFUSED: dict[str, list[Row]] = {"FIRE": [*sizes(FIRE, SIX, "num_heads", "hidden"), *numbers(FIRE, SIX, "length", 0)]}
