"""Swin that reads another number of its table."""

import torch
from torch import Tensor

from posenc import Swin
from tests.errors.wrong_calls import Row
from tests.mutants import Mutant, elsewhere, index, lines, oracles, undrawn

OF_PAIRS = Swin._of_pairs


def of_a_patch(self: Swin, x: Tensor, y: Tensor) -> tuple[Tensor]:
    """The class token is a patch at the corner."""
    return OF_PAIRS(self, x.clamp(min=0), y.clamp(min=0))


COMPARED = oracles("swin")


MUTANTS = (
    Mutant("counts patches", Swin, "score", elsewhere(Swin, lambda x: raster(x), lambda y: raster(y)), COMPARED),
    Mutant("has no bias of its own for a class token", Swin, "_of_pairs", of_a_patch, COMPARED),
    undrawn(Swin, "swin"),
    *lines(
        COMPARED,
        ("takes its rows for as wide as the grid is high", Swin, "_index", "(2 * width - 1)", "(2 * height - 1)"),
        ("takes columns the other way", Swin, "_index", "(width - 1 - r[..., 1])", "(width - 1 + r[..., 1])"),
    ),
)


def raster(coords: Tensor) -> Tensor:
    """What coordinates would be if patches were counted, five in a row."""
    n = index(coords)
    return torch.stack((n // 5, n % 5), -1)


with torch.random.fork_rng(devices=()):
    GRIDDED = Swin((2, 3), 6)
REFUSED: dict[str, list[Row]] = {
    "Swin": [
        Row(lambda: Swin(3, 6), "grid must be (height, width), got 3"),
        Row(lambda: Swin((0, 5), 6), "grid[0] must be a whole number of at least 1, got 0"),
    ],
    "Swin.positions": [Row(lambda: GRIDDED.positions("there"), "device must be one that torch knows, got 'there'")],
    "Swin.resized": [
        Row(lambda: GRIDDED.resized(5), "grid must be (height, width), got 5"),
        Row(lambda: GRIDDED.resized((5, "x")), "grid[1] must be a whole number of at least 1, got 'x'"),
    ],
}
