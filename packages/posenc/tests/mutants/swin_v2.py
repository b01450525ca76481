"""SwinV2 with other differences, another network, or no cosine."""

import torch

from posenc import SwinV2
from tests.cases import HEAD_DIM
from tests.errors.wrong_calls import Row
from tests.mutants import Mutant, lines, oracles, undrawn

COMPARED = oracles("swin_v2")


MUTANTS = (
    Mutant("divides the cosine", SwinV2, "scale", property(lambda self: HEAD_DIM**-0.5), COMPARED),
    undrawn(SwinV2, "swin_v2"),
    *lines(
        COMPARED,
        ("has the wrong root in its differences", SwinV2, "_table", ".log2() / 3", ".log2() / 4"),
        ("is not bounded by 16", SwinV2, "_table", "return 16 * ", "return 8 * "),
    ),
)


with torch.random.fork_rng(devices=()):
    GRIDDED = SwinV2((2, 3), 6)
REFUSED: dict[str, list[Row]] = {
    "SwinV2": [
        Row(lambda: SwinV2(3, 6), "grid must be (height, width), got 3"),
        Row(lambda: SwinV2((2, 3), 6, trained=(4,)), "trained must be (height, width), got (4,)"),
        Row(lambda: SwinV2((2, 3), 6, trained=(4, 0)), "trained[1] must be a whole number of at least 1, got 0"),
    ],
    "SwinV2.resized": [Row(lambda: GRIDDED.resized(5), "grid must be (height, width), got 5")],
}
