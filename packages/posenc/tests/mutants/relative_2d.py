"""Relative2D that reads the vectors of another distance."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from posenc import Relative2D
from posenc.encoding.pieces import Meeting
from tests.hard.wrong import each
from tests.mutants import Mutant, oracles
from tests.schemes import test_life_cycle


def rows_alone(self: Relative2D) -> None:
    nn.init.normal_(self.row_table, std=self.head_dim**-0.5)


COMPARED = oracles("relative_2d")


ALONG = Relative2D._along


def in_sam(change: Callable[[Relative2D, Meeting], Meeting]) -> Callable[[Relative2D, int], Meeting]:
    """The method as it is, but for what is made of its piece in the convention of SAM."""

    def wrong(self: Relative2D, axis: int) -> Meeting:
        made = ALONG(self, axis)
        return change(self, made) if self.convention == "sam" else made

    return wrong


def divided(self: Relative2D, made: Meeting) -> Meeting:
    return replace(made, vectors=lambda r: made.vectors(r) / self.head_dim**0.5)


MUTANTS = (
    Mutant("divides SAM's term by the root of head_dim", Relative2D, "_along", in_sam(divided), COMPARED),
    Mutant(
        "does not draw its table of columns",
        Relative2D,
        "reset_parameters",
        rows_alone,
        partial(test_life_cycle.check_meta, "relative_2d"),
    ),
)


REFUSED = {
    "Relative2D": each(
        Relative2D, {"grid": (2, 3), "head_dim": 4}, "convention", [("vit", "'vit'")], "'botnet' or 'sam'"
    )
}
