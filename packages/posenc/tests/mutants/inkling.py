"""Inkling with other profiles, or other queries that mix them."""

from posenc import Inkling
from posenc.schemes import inkling
from tests.errors.wrong_calls import NO_NUMBERS, NO_SIZES, each
from tests.mutants import Mutant, lines, oracles

COMPARED = oracles("inkling")
OF_LAYER = inkling._of_layer


MUTANTS = (
    Mutant("clips nothing", inkling, "_of_layer", lambda c, n, a, r, p: OF_LAYER(None, n, a, r, p), COMPARED),
    *lines(
        COMPARED,
        ("counts from 0", inkling, "_factor", ") + 1\n", ")\n"),
        ("looks ahead", Inkling, "_profile_vectors", "back = -r", "back = r"),
        (
            "goes on with its last profile",
            Inkling,
            "_profile_vectors",
            "(back >= 0) & (back < self.extent)",
            "back >= 0",
        ),
    ),
)


GOOD = {"num_heads": 4}
REFUSED = {
    "Inkling": [
        *each(Inkling, GOOD, "length", NO_SIZES, "a whole number of at least 1"),
        *each(Inkling, GOOD, "strength", NO_NUMBERS, "a finite number"),
        *each(
            Inkling, GOOD, "clip", [(0, "0"), (-1.0, "-1.0"), ("8", "'8'"), (True, "True")], "a finite number above 0"
        ),
    ]
}
