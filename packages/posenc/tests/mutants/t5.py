"""T5 with other buckets, or another bias for the right ones."""

from posenc import T5
from tests.errors.wrong_calls import NO_NUMBERS, Row, each
from tests.mutants import Mutant, elsewhere, index, lines, oracles, undrawn

COMPARED = oracles("t5")


MUTANTS = (
    Mutant("takes distances between indices", T5, "score", elsewhere(T5, index, index), COMPARED),
    undrawn(T5, "t5"),
    *lines(
        COMPARED,
        ("does not multiply by its factor", T5, "_bias", "self.weight * self.factor", "self.weight"),
        ("takes query minus key", T5, "_bucket", "[r.clamp", "[(-r).clamp"),
        ("is off by one", T5, "_bucket", ".long() + last]", ".long().sub(1).clamp(min=-last) + last]"),
        ("has the heads in reverse", T5, "_bias", "weight.transpose(0, 1)[", "weight.transpose(0, 1).flip(0)["),
    ),
)


REFUSED = {
    "T5": [
        *each(T5, {"num_heads": 6}, "factor", NO_NUMBERS, "a finite number"),
        Row(lambda: T5(6, axis=3, axes=3), "axis must be a whole number within 0..2, got 3"),
    ]
}
