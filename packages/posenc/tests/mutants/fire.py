"""FIRE of another share, or by another network."""

from functools import partial

from posenc import FIRE
from posenc.backends.native import operator
from tests.backends import test_native, test_skipping
from tests.mutants import Line, Mutant, elsewhere, index, lines, oracles

COMPARED = oracles("fire")


SUM = "here + self._threshold(dtype)"
MUTANTS = (
    Mutant("takes distances between indices", FIRE, "score", elsewhere(FIRE, index, index), COMPARED),
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
    *lines(
        COMPARED,
        ("adds position and threshold", FIRE, "_bias", "torch.maximum(here, self._threshold(dtype))", SUM),
        ("has a tangent in its network", FIRE, "_bias", ".relu()", ".tanh()"),
    ),
)
