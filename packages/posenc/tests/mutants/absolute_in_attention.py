"""AbsoluteInAttention that reads another row, or lets another meet it."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from posenc import AbsoluteInAttention
from posenc.encoding.pieces import Row
from posenc.lowering.distances import Block
from posenc.lowering.forms import ScoreFunction
from posenc.schemes.catalog import entries_of
from tests.mutants import Mutant, by_pair, oracles
from tests.schemes import test_laws, test_life_cycle


def score(
    row: Callable[[Tensor, int], Tensor] = lambda index, rows: index,
    of: str = "key",
    scaled: bool = True,
    side: str = "query",
) -> Callable[..., tuple[Row, ...]]:
    """The method as it is, but for one thing."""

    def wrong(self: AbsoluteInAttention, block: Block) -> ScoreFunction:
        x, y = (row(p.coords, self.max_positions) for p in (block.query_positions, block.key_positions))
        key = block.key.repeat_interleave(block.query.size(1) // block.key.size(1), 1)
        met = (block.query if side == "query" else key) @ self.weight.to(block.query.dtype).mT
        met = met * block.scale if scaled else met

        def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            index = {"key": lambda: y[b, j], "query": lambda: x[b, i], "neither": lambda: j}[of]()
            return score + met[b, h, i if side == "query" else j, index]

        return biased

    return by_pair(wrong)


def of_a_fixed_length() -> None:
    test_laws.check_claim(*entries_of("absolute_in_attention"), "length_free")


COMPARED = oracles("absolute_in_attention")


def mutant(bug: str, wrong: object, check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, AbsoluteInAttention, "score", wrong, check)


MUTANTS = (
    mutant("reads the row of the query", score(of="query")),
    mutant("clamps positions past its table", score(lambda index, rows: index.clamp(0, rows - 1)), of_a_fixed_length),
    Mutant(
        "does not draw its parameters",
        AbsoluteInAttention,
        "reset_parameters",
        lambda self: None,
        partial(test_life_cycle.check_meta, "absolute_in_attention"),
    ),
)
