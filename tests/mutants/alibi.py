"""ALiBi with other slopes, other distances, or other keys hidden."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from posenc import ALiBi
from posenc.forms import Block, ScoreFunction
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
    hides: Callable[[Tensor, Tensor], Tensor] = lambda back, distance: torch.where(back, distance < 0, distance > 0),
    looks_back: Callable[[Tensor, int], Tensor] = lambda h, heads: h < heads // 2,
) -> Callable[[ALiBi, Block], ScoreFunction]:
    """The method as it is, but for one thing."""

    def wrong(self: ALiBi, block: Block) -> ScoreFunction:
        m = torch.tensor(self.slopes, dtype=torch.float64) * factor(block)
        x, y = block.query_positions.coords, block.key_positions.coords

        def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            signed = far(i - j if of_index else x[b, i] - y[b, j])
            distance = signed.abs() if self.form != "causal" and direction_blind else signed
            score = score - m.to(score.dtype)[h] * distance.to(score.dtype)
            if self.form == "directed":
                score = score.masked_fill(hides(looks_back(h, self.num_heads), signed), -torch.inf)
            return score

        return biased

    return wrong


def nobody(back: Tensor, distance: Tensor) -> Tensor:
    return torch.zeros_like(back & (distance < 0))


def itself_too(back: Tensor, distance: Tensor) -> Tensor:
    return torch.where(back, distance <= 0, distance >= 0)


def of_all_heads(self: ALiBi) -> tuple[float, ...]:
    """The slopes of H heads, and not of H/2 twice."""
    return ALiBi(self.num_heads).slopes if self.form == "directed" else RIGHT(self)


def each_twice(self: ALiBi) -> tuple[float, ...]:
    """The slopes of H/2 heads, but on neighbours."""
    return tuple(RIGHT(self)[h // 2] for h in range(self.num_heads)) if self.form == "directed" else RIGHT(self)


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
    Mutant(
        "looks ahead where it should look back", ALiBi, "_bind", bind(looks_back=lambda h, n: h >= n // 2), COMPARED
    ),
    Mutant("looks back with every other head", ALiBi, "_bind", bind(looks_back=lambda h, n: h % 2 == 0), COMPARED),
    Mutant("looks back with all heads", ALiBi, "_bind", bind(looks_back=lambda h, n: h < n), COMPARED),
    Mutant("is directed and hides nothing", ALiBi, "_bind", bind(hides=nobody), COMPARED),
    Mutant("is directed and hides a token from itself", ALiBi, "_bind", bind(hides=itself_too), COMPARED),
    Mutant("is directed and has the slopes of all heads", ALiBi, "slopes", property(of_all_heads), COMPARED),
    Mutant("is directed and has every slope twice in a row", ALiBi, "slopes", property(each_twice), COMPARED),
)
