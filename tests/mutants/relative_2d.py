"""Relative2D that reads the vectors of another distance."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from posenc import Relative2D
from posenc.forms import Block, ScoreFunction
from posenc.schemes.catalog import entries_of
from tests.mutants import Mutant, oracles
from tests.schemes import test_laws, test_life_cycle

Two = tuple[Tensor, Tensor]


def bind(
    row: Callable[[Tensor, int], Tensor] = lambda distance, n: distance + n - 1,
    centre: Callable[[tuple[int, int]], tuple[int, int]] = lambda grid: grid,
    axes: tuple[int, int] = (0, 1),
    weights: tuple[float, float] = (1.0, 1.0),
    of_index: bool = False,
    scaled: bool = True,
    head: Callable[[Tensor], Tensor] = lambda h: h,
) -> Callable[[Relative2D, Block], ScoreFunction]:
    """The method as it is, but for one thing. Distances past the tables are clamped, and not refused."""

    def wrong(self: Relative2D, block: Block) -> ScoreFunction:
        x, y = block.query_positions.coords, block.key_positions.coords
        heads = torch.arange(block.query.size(1))
        rows, columns = (
            block.query @ table.expand(len(heads), -1, -1)[head(heads)].to(block.query.dtype).mT
            for table in (self.row_table, self.column_table)
        )

        def along(axis: int, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if of_index:
                width = self.grid[1]
                return j % width - i % width if axis else j // width - i // width
            return y[b, j, axis] - x[b, i, axis]

        def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            for met, axis, middle, weight in zip((rows, columns), axes, centre(self.grid), weights, strict=True):
                index = row(along(axis, b, i, j), middle).clamp(0, met.size(-1) - 1)
                score = score + weight * (block.scale if scaled else 1.0) * met[b, h, i, index]
            return score

        return biased

    return wrong


def rows_alone(self: Relative2D) -> None:
    nn.init.normal_(self.row_table, std=self.head_dim**-0.5)


def of_a_fixed_length() -> None:
    test_laws.check_claim(*entries_of("relative_2d"), "length_free")


COMPARED = oracles("relative_2d")


def mutant(bug: str, wrong: object, check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, Relative2D, "_bind", wrong, check)


MUTANTS = (
    mutant("reads rows by columns and columns by rows", bind(axes=(1, 0))),
    mutant("swaps height and width", bind(centre=lambda grid: (grid[1], grid[0]))),
    mutant("takes every grid for a square", bind(centre=lambda grid: (grid[0], grid[0]))),
    mutant("takes query minus key", bind(lambda r, n: n - 1 - r)),
    mutant("is off by one", bind(lambda r, n: r + n)),
    mutant("knows columns alone", bind(weights=(0.0, 1.0))),
    mutant("knows rows alone", bind(weights=(1.0, 0.0))),
    mutant("counts patches and reads no coordinates", bind(of_index=True)),
    mutant("does not divide by the root of head_dim", bind(scaled=False)),
    mutant("has one pair of tables for all heads", bind(head=torch.zeros_like)),
    mutant("clamps distances past its tables", bind(), of_a_fixed_length),
    Mutant(
        "does not draw its table of columns",
        Relative2D,
        "reset_parameters",
        rows_alone,
        partial(test_life_cycle.check_meta, "relative_2d"),
    ),
)
