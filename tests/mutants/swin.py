"""Swin that reads another number of its table."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from posenc import Positions, Swin
from posenc.encoding.encoding import Context
from posenc.encoding.pieces import Bias, Distance
from posenc.schemes.catalog import entries_of
from tests.cases import HEAD_DIM, HEADS
from tests.hard.wrong import Row, flags, sizes
from tests.mutants import Lawless, Mutant, Untrue, drawn, elsewhere, index, oracles
from tests.schemes import test_laws, test_life_cycle


def bias(
    sign: int = -1,
    axes: tuple[int, int] = (0, 1),
    line: Callable[[int, int], int] = lambda height, width: 2 * width - 1,
    centre: Callable[[int, int], tuple[int, int]] = lambda height, width: (height - 1, width - 1),
    factor: float = 1.0,
    head: Callable[[Tensor], Tensor] = lambda table: table,
) -> Callable[[Swin, Tensor], Tensor]:
    """The method as it is, but for one thing. What lies outside the table is clamped."""

    def wrong(self: Swin, r: Tensor) -> Tensor:
        height, width = self.grid
        down, right = (sign * r[..., axis] + middle for axis, middle in zip(axes, centre(height, width), strict=True))
        at = (down * line(height, width) + right).clamp(0, self.weight.size(0) - 1)
        return factor * head(self.weight.mT)[:, at]

    return wrong


def clamped(self: Swin, x: Positions, y: Positions, context: Context | None = None) -> tuple[Bias, ...]:
    most = [side - 1 for side in self.grid]
    at = lambda r: self._bias(torch.stack([r[..., n].clamp(-m, m) for n, m in enumerate(most)], -1))  # noqa: E731
    return (Bias(at, Distance("Swin", axis=None, integral=True, num_heads=self.num_heads)),)


OF_PAIRS = Swin._of_pairs


def of_a_patch(self: Swin, x: Tensor, y: Tensor) -> tuple[Tensor]:
    """The class token is a patch at the corner."""
    return OF_PAIRS(self, x.clamp(min=0), y.clamp(min=0))


def exchanged(self: Swin, x: Tensor, y: Tensor) -> tuple[Tensor]:
    rest, (row, column, itself) = self.weight[:-3], self.weight[-3:].unbind()
    other = copy(self, torch.cat((rest, torch.stack((column, row, itself)))))
    return OF_PAIRS(other, x, y)


def of_its_row(self: Swin, x: Tensor, y: Tensor) -> tuple[Tensor]:
    return OF_PAIRS(copy(self, torch.cat((self.weight[:-1], self.weight[-3:-2]))), x, y)


def copy(self: Swin, weight: Tensor) -> Swin:
    """The same with another table."""
    other = Swin(self.grid, self.num_heads, self.class_token)
    other.weight = torch.nn.Parameter(weight)
    return other


def of_a_fixed_length() -> None:
    test_laws.check_claim(*entries_of("swin"), "length_free")


COMPARED = oracles("swin")


def mutant(bug: str, wrong: object, name: str = "_bias", check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, Swin, name, wrong, check)


MUTANTS = (
    mutant("takes key less query", bias(sign=1)),
    mutant("reads rows by columns and columns by rows", bias(axes=(1, 0))),
    mutant("takes every window for a square", bias(line=lambda height, width: 2 * height - 1)),
    mutant("swaps height and width", bias(centre=lambda height, width: (width - 1, height - 1))),
    mutant("is off by one", bias(centre=lambda height, width: (height - 1, width))),
    mutant("divides the bias by the root of head_dim", bias(factor=HEAD_DIM**-0.5)),
    mutant("has another head's bias", bias(head=lambda table: table.roll(1, 0))),
    mutant(
        "counts patches and reads no coordinates", elsewhere(Swin, lambda x: raster(x), lambda y: raster(y)), "score"
    ),
    mutant("clamps differences past its window", clamped, "score", of_a_fixed_length),
    mutant("has no bias of its own for a class token", of_a_patch, "_of_pairs"),
    mutant("exchanges the class token's row and column", exchanged, "_of_pairs"),
    mutant("has the bias of the class token's row for itself", of_its_row, "_of_pairs"),
    mutant(
        "does not draw its table",
        lambda self: None,
        "reset_parameters",
        partial(test_life_cycle.check_meta, "swin"),
    ),
)


def raster(coords: Tensor) -> Tensor:
    """What coordinates would be if patches were counted, five in a row."""
    n = index(coords)
    return torch.stack((n // 5, n % 5), -1)


class EndlessSwin(Swin):
    score = clamped


class BlindSwin(Swin):
    """Takes the sizes of differences alone."""

    def _bias(self, r: Tensor) -> Tensor:
        return super()._bias(r.abs())


class MirroredSwin(Swin):
    """Key less query: every law holds."""

    _bias = bias(sign=1)


LAWLESS = (
    Lawless("swin", lambda shape: EndlessSwin((16, 16), shape.num_heads), "length_free"),
    Lawless("swin", lambda shape: BlindSwin((16, 16), shape.num_heads), "directed"),
)
UNTRUE = (Untrue("swin", lambda: drawn(MirroredSwin((3, 5), HEADS))),)
with torch.random.fork_rng(devices=()):
    GRIDDED = Swin((2, 3), 6)
WINDOW = {"grid": (2, 3), "num_heads": 6}
REFUSED: dict[str, list[Row]] = {
    "Swin": [
        *sizes(Swin, WINDOW, "num_heads"),
        *flags(Swin, WINDOW, "class_token"),
        Row(lambda: Swin(3, 6), "grid must be (height, width), got 3"),
        Row(lambda: Swin((0, 5), 6), "grid[0] must be a whole number of at least 1, got 0"),
    ],
    "Swin.positions": [Row(lambda: GRIDDED.positions("there"), "device must be one that torch knows, got 'there'")],
    "Swin.resized": [
        Row(lambda: GRIDDED.resized(5), "grid must be (height, width), got 5"),
        Row(lambda: GRIDDED.resized((5, "x")), "grid[1] must be a whole number of at least 1, got 'x'"),
    ],
}
