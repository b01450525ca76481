"""ALiBi with other slopes or other distances."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from posenc import ALiBi
from posenc.encoding import Block, ScoreFunction
from tests.mutants import Mutant, oracles
from tests.schemes import test_precision


def slopes(rule: Callable[[int, int], float]) -> property:
    return property(lambda self: tuple(2.0 ** -rule(h, self.num_heads) for h in range(self.num_heads)))


RIGHT = ALiBi.slopes.fget  # type: ignore[attr-defined]
IN_ORDER = property(lambda self: tuple(sorted(RIGHT(self), reverse=True)))


def bind(
    factor: Callable[[Block], float] = lambda block: 1.0,
    far: Callable[[Tensor], Tensor] = lambda distance: distance,
    of_index: bool = False,
    direction_blind: bool = True,
) -> Callable[[ALiBi, Block], ScoreFunction]:
    """The method as it is, but for one thing."""

    def wrong(self: ALiBi, block: Block) -> ScoreFunction:
        m = torch.tensor(self.slopes, dtype=torch.float64) * factor(block)
        x, y = block.query_positions.coords, block.key_positions.coords

        def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = far(i - j if of_index else x[b, i] - y[b, j])
            distance = distance.abs() if self.bidirectional and direction_blind else distance
            return score - m.to(score.dtype)[h] * distance.to(score.dtype)

        return biased

    return wrong


COMPARED = oracles("alibi")
EXACT = partial(test_precision.check_alibi, "built", 8)
MUTANTS = (
    Mutant(
        "has the rule for powers of two at 12 heads", ALiBi, "slopes", slopes(lambda h, H: 8 * (h + 1) / H), COMPARED
    ),
    Mutant("halves its slope at every head", ALiBi, "slopes", slopes(lambda h, H: h + 1), COMPARED),
    Mutant("starts at slope 1", ALiBi, "slopes", slopes(lambda h, H: 8 * h / H), EXACT),
    Mutant("has the right slopes on the wrong heads", ALiBi, "slopes", IN_ORDER, COMPARED),
    Mutant("rewards distance", ALiBi, "_bind", bind(factor=lambda block: -1.0), COMPARED),
    Mutant(
        "divides the bias by the root of head_dim", ALiBi, "_bind", bind(factor=lambda block: block.scale), COMPARED
    ),
    Mutant("knows directions where it should be blind", ALiBi, "_bind", bind(direction_blind=False), COMPARED),
    Mutant("takes distances between indices", ALiBi, "_bind", bind(of_index=True), COMPARED),
    Mutant("is off by one", ALiBi, "_bind", bind(far=lambda distance: distance + distance.sign()), COMPARED),
    Mutant("rounds distances to bfloat16", ALiBi, "_bind", bind(far=lambda distance: distance.bfloat16()), EXACT),
)
