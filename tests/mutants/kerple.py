"""KERPLE with another kernel, other bounds, or other distances."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from posenc import KERPLE
from posenc.schemes import kerple
from tests.cases import HEAD_DIM, HEADS
from tests.hard.wrong import NO_WORDS, Row, each, sizes
from tests.mutants import Lawless, Mutant, Untrue, drawn, elsewhere, index, oracles
from tests.schemes import test_life_cycle

Numbers = Callable[[Tensor], Tensor]


def bias(
    far: Numbers = torch.abs,
    least: float = kerple.LEAST,
    steepest: float = kerple.STEEPEST,
    log: Numbers = torch.log1p,
    factor: float = 1.0,
    swapped: bool = False,
    head: Numbers = lambda x: x,
) -> Callable[[KERPLE, Tensor], Tensor]:
    """The method as it is, but for one thing."""

    def wrong(self: KERPLE, r: Tensor) -> Tensor:
        both = (self.a, self.p) if swapped else (self.p, self.a)
        p, a = (head(x).clamp(min=least).view(-1, *[1] * r.dim()) for x in both)
        away = far(r).to(p.dtype)
        if self.form == "log":
            return -factor * p * log(a * away)
        return -factor * a * torch.where(away > 0, away.abs().clamp(min=1e-300) ** p.clamp(max=steepest), 0.0)

    return wrong


COMPARED = oracles("kerple")


def mutant(bug: str, wrong: object, name: str = "_bias", check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, KERPLE, name, wrong, check)


MUTANTS = (
    mutant("has its power in the factor's place", bias(swapped=True)),
    mutant("rewards distance", bias(factor=-1.0)),
    mutant("divides the bias by the root of head_dim", bias(factor=HEAD_DIM**-0.5)),
    mutant("does not bound its numbers from below", bias(least=-99.0)),
    mutant("does not bound its power from above", bias(steepest=99.0)),
    mutant("takes a logarithm to base 2", bias(log=lambda x: torch.log2(1 + x))),
    mutant("is off by one", bias(far=lambda r: r.abs() + 1)),
    mutant("gives keys after the query no penalty", bias(far=lambda r: (-r).clamp(min=0)), check=COMPARED),
    mutant("has one kernel for all heads", bias(head=lambda x: x[:1].expand_as(x))),
    mutant("takes distances between indices", elsewhere(KERPLE, index, index), "score"),
    mutant(
        "does not draw its parameters",
        lambda self: None,
        "reset_parameters",
        partial(test_life_cycle.check_meta, "kerple"),
    ),
)


class RewardingKERPLE(KERPLE):
    _bias = bias(factor=-1.0)


class CappedKERPLE(KERPLE):
    """Constant from a distance on, as a table would be."""

    _bias = bias(far=lambda r: r.abs().clamp(max=512))


class OneSidedKERPLE(KERPLE):
    _bias = bias(far=lambda r: (-r).clamp(min=0))


class BinaryKERPLE(KERPLE):
    """A logarithm to another base: every law holds."""

    _bias = bias(log=lambda x: torch.log2(1 + x))


LAWLESS = (
    Lawless("kerple", lambda shape: RewardingKERPLE(shape.num_heads), "decaying"),
    Lawless("kerple", lambda shape: CappedKERPLE(shape.num_heads), "unique"),
    Lawless("kerple", lambda shape: OneSidedKERPLE(shape.num_heads), "directed"),
)
UNTRUE = (Untrue("kerple", lambda: drawn(BinaryKERPLE(HEADS))),)
SIX = {"num_heads": 6}
REFUSED: dict[str, list[Row]] = {
    "KERPLE": [*sizes(KERPLE, SIX, "num_heads"), *each(KERPLE, SIX, "form", NO_WORDS, "'log' or 'power'")]
}
