"""Self-Extend with other groups, another shift, or another edge of the window."""

from posenc import Positions, SelfExtend
from tests.errors.wrong_calls import Row
from tests.mutants import lines, oracles

SHIFT = "self.window - self.window // self.group"
MUTANTS = lines(
    oracles("self_extend"),
    ("shifts by w - w/G", SelfExtend, "rotation", SHIFT, SHIFT.replace("//", "/")),
    ("shifts by w", SelfExtend, "rotation", SHIFT, "self.window"),
    ("does not shift", SelfExtend, "rotation", SHIFT, "0"),
)


REFUSED = {
    "SelfExtend": [
        Row(lambda: SelfExtend(7), "head_dim must be even (channels come in pairs), got 7"),
        Row(
            lambda: SelfExtend(8)(Positions.grid(2, 2)),
            "SelfExtend takes one coordinate per token, got positions of 2 axes",
        ),
    ]
}
