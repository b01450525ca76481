"""Relative2D that reads the vectors of another distance."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from posenc import Relative2D
from posenc.encoding.pieces import Meeting, Row
from posenc.lowering.block import Block
from posenc.lowering.forms import ScoreFunction
from posenc.schemes.catalog import entries_of
from tests.cases import HEAD_DIM
from tests.hard.wrong import each
from tests.mutants import Lawless, Mutant, Untrue, by_pair, drawn, oracles
from tests.schemes import test_laws, test_life_cycle

Two = tuple[Tensor, Tensor]


def score(
    row: Callable[[Tensor, int], Tensor] = lambda distance, n: distance + n - 1,
    centre: Callable[[tuple[int, int]], tuple[int, int]] = lambda grid: grid,
    axes: tuple[int, int] = (0, 1),
    weights: tuple[float, float] = (1.0, 1.0),
    of_index: bool = False,
    scaled: bool = True,
    head: Callable[[Tensor], Tensor] = lambda h: h,
    together: Callable[[Tensor, Tensor], Tensor] = torch.add,
) -> Callable[..., tuple[Row, ...]]:
    """The method as it is, but for one thing. Distances past the tables are clamped, and not refused."""

    def wrong(self: Relative2D, block: Block) -> ScoreFunction:
        x, y = block.query_positions.coords, block.key_positions.coords
        if x.dim() != 3:
            raise ValueError("Relative2D takes 2 coordinates per token")
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
            parts = []
            for met, axis, middle, weight in zip((rows, columns), axes, centre(self.grid), weights, strict=True):
                index = row(along(axis, b, i, j), middle).clamp(0, met.size(-1) - 1)
                parts.append(weight * (block.scale if scaled else 1.0) * met[b, h, i, index])
            return score + together(*parts)

        return biased

    return by_pair(wrong)


def rows_alone(self: Relative2D) -> None:
    nn.init.normal_(self.row_table, std=self.head_dim**-0.5)


def of_a_fixed_length() -> None:
    test_laws.check_claim(*entries_of("relative_2d"), "length_free")


COMPARED = oracles("relative_2d")


def mutant(bug: str, wrong: object, check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, Relative2D, "score", wrong, check)


ALONG = Relative2D._along


def in_sam(change: Callable[[Relative2D, Meeting], Meeting]) -> Callable[[Relative2D, int], Meeting]:
    """The method as it is, but for what is made of its piece in the convention of SAM."""

    def wrong(self: Relative2D, axis: int) -> Meeting:
        made = ALONG(self, axis)
        return change(self, made) if self.convention == "sam" else made

    return wrong


def divided(self: Relative2D, made: Meeting) -> Meeting:
    return replace(made, vectors=lambda r: made.vectors(r) / self.head_dim**0.5)


def key_less_query(self: Relative2D, made: Meeting) -> Meeting:
    return replace(made, vectors=lambda r: made.vectors(-r))


MUTANTS = (
    mutant("reads rows by columns and columns by rows", score(axes=(1, 0))),
    mutant("swaps height and width", score(centre=lambda grid: (grid[1], grid[0]))),
    mutant("takes every grid for a square", score(centre=lambda grid: (grid[0], grid[0]))),
    mutant("takes query minus key", score(lambda r, n: n - 1 - r)),
    Mutant("divides SAM's term by the root of head_dim", Relative2D, "_along", in_sam(divided), COMPARED),
    Mutant("takes key minus query in SAM's convention", Relative2D, "_along", in_sam(key_less_query), COMPARED),
    mutant("is off by one", score(lambda r, n: r + n)),
    mutant("knows columns alone", score(weights=(0.0, 1.0))),
    mutant("knows rows alone", score(weights=(1.0, 0.0))),
    mutant("counts patches and reads no coordinates", score(of_index=True)),
    mutant("does not divide by the root of head_dim", score(scaled=False)),
    mutant("has one pair of tables for all heads", score(head=torch.zeros_like)),
    mutant("clamps distances past its tables", score(), of_a_fixed_length),
    Mutant(
        "does not draw its table of columns",
        Relative2D,
        "reset_parameters",
        rows_alone,
        partial(test_life_cycle.check_meta, "relative_2d"),
    ),
)


class MultipliedRelative2D(Relative2D):
    score = score(together=torch.mul)


class TransposedRelative2D(Relative2D):
    """Rows and columns exchanged: every law holds that holds on a square."""

    score = score(axes=(1, 0))


class EndlessRelative2D(Relative2D):
    """Distances past the tables share their ends, silently."""

    score = score()


LAWLESS = (
    Lawless("relative_2d", lambda shape: MultipliedRelative2D((64, 64), shape.head_dim), "separable"),
    Lawless("relative_2d", lambda shape: EndlessRelative2D((64, 64), shape.head_dim), "length_free"),
)
UNTRUE = (Untrue("relative_2d", lambda: drawn(TransposedRelative2D((3, 5), HEAD_DIM))),)
REFUSED = {
    "Relative2D": each(
        Relative2D, {"grid": (2, 3), "head_dim": 4}, "convention", [("vit", "'vit'")], "'botnet' or 'sam'"
    )
}
