"""Relative2D that reads the vectors of another distance."""

from functools import partial

from torch import nn

from posenc import Relative2D
from tests.errors.wrong_calls import each
from tests.mutants import Mutant, lines, oracles
from tests.schemes import test_life_cycle

MUTANTS = (
    *lines(
        oracles("relative_2d"),
        ("divides SAM's term by the root of head_dim", Relative2D, "_axis_term", " * self.head_dim**0.5", ""),
    ),
    Mutant(
        "does not draw its table of columns",
        Relative2D,
        "reset_parameters",
        lambda self: nn.init.normal_(self.row_table, std=self.head_dim**-0.5),
        partial(test_life_cycle.check_meta, "relative_2d"),
    ),
)


REFUSED = {
    "Relative2D": each(
        Relative2D, {"grid": (2, 3), "head_dim": 4}, "convention", [("vit", "'vit'")], "'botnet' or 'sam'"
    )
}
