"""Stick-breaking with other shares, or in another order."""

from posenc import StickBreaking
from posenc.backends import plan
from posenc.encoding.context import following
from posenc.schemes import stick_breaking
from tests.mutants import Mutant, lines, oracles

COMPARED = oracles("stick_breaking")


MUTANTS = (
    Mutant("divides by the sum of its weights", plan, "gives_weights", lambda score_terms: False, COMPARED),
    Mutant(
        "lets a key take of what itself has left",
        stick_breaking,
        "following",
        lambda x, keys, itself: following(x, keys, itself=True),
        COMPARED,
    ),
    *lines(
        COMPARED,
        ("loses the share", StickBreaking, "_log_weights", "F.logsigmoid(scores)", "0 * scores"),
        ("leaves what was taken", StickBreaking, "_log_weights", "F.logsigmoid(-scores)", "F.logsigmoid(scores)"),
    ),
)
