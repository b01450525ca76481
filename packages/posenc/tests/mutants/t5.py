"""T5 with other buckets, or another bias for the right ones."""

from collections.abc import Callable
from functools import partial

from posenc import T5
from posenc.schemes import t5
from tests.hard.wrong import NO_NUMBERS, Row, each, sizes
from tests.mutants import Mutant, elsewhere, index, oracles
from tests.mutants.backends import Line
from tests.schemes import test_life_cycle

COMPARED = oracles("t5")


def mutant(bug: str, wrong: object, name: str = "_bucket", check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, t5 if name == "_edges" else T5, name, wrong, check)


MUTANTS = (
    mutant("takes distances between indices", elsewhere(T5, index, index), "score", oracles("t5")),
    mutant("does not multiply by its factor", lambda self, r: self.weight.mT[:, self._bucket(r)], "_bias"),
    mutant(
        "does not draw its parameters",
        lambda self: None,
        "reset_parameters",
        partial(test_life_cycle.check_meta, "t5"),
    ),
    Line("takes query minus key", T5, "_bucket", ("[r.clamp", "[(-r).clamp"), COMPARED),
    Line("is off by one", T5, "_bucket", (".long() + last]", ".long().sub(1).clamp(min=-last) + last]"), COMPARED),
    Line(
        "has the heads in reverse",
        T5,
        "_bias",
        ("weight.transpose(0, 1)[", "weight.transpose(0, 1).flip(0)["),
        COMPARED,
    ),
)


REFUSED = {
    "T5": [
        *sizes(T5, {"num_heads": 6, "axes": 3}, "num_heads", "axes"),
        *each(T5, {"num_heads": 6}, "factor", NO_NUMBERS, "a finite number"),
        Row(lambda: T5(6, axis=3, axes=3), "axis must be a whole number within 0..2, got 3"),
    ],
}
