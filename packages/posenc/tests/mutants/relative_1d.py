"""Relative1D that reads the vector of another distance."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from posenc import Relative1D
from posenc.encoding.pieces import Row
from posenc.lowering.distances import Block
from posenc.lowering.forms import ScoreFunction
from posenc.schemes.catalog import entries_of
from tests.mutants import Mutant, by_pair, oracles
from tests.schemes import test_laws, test_life_cycle


def score(
    row: Callable[[Tensor, int], Tensor] = lambda distance, n: distance + n - 1,
    of_index: bool = False,
    scaled: bool = True,
    head: Callable[[Tensor], Tensor] = lambda h: h,
    ahead: float = 1.0,
) -> Callable[..., tuple[Row, ...]]:
    """The method as it is, but for one thing. Distances past the table are clamped, and not refused."""

    def wrong(self: Relative1D, block: Block) -> ScoreFunction:
        x, y = block.query_positions.coords, block.key_positions.coords
        weight = self.weight.expand(block.query.size(1), -1, -1).to(block.query.dtype)
        met = block.query @ weight[head(torch.arange(block.query.size(1)))].mT
        met = met * block.scale if scaled else met

        def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = j - i if of_index else y[b, j] - x[b, i]
            index = row(distance, self.max_positions).clamp(0, 2 * self.max_positions - 2)
            return score + met[b, h, i, index] * torch.where(distance > 0, ahead, 1.0).to(score.dtype)

        return biased

    return by_pair(wrong)


def of_a_fixed_length() -> None:
    test_laws.check_claim(*entries_of("relative_1d"), "length_free")


COMPARED = oracles("relative_1d")


def mutant(bug: str, wrong: object, check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, Relative1D, "score", wrong, check)


MUTANTS = (
    mutant("takes query minus key", score(lambda r, n: n - 1 - r)),
    mutant("clamps distances past its table", score(), of_a_fixed_length),
    Mutant(
        "does not draw its parameters",
        Relative1D,
        "reset_parameters",
        lambda self: None,
        partial(test_life_cycle.check_meta, "relative_1d"),
    ),
)
