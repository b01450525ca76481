"""Sandwich of other cosines, or compressed otherwise."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import Sandwich
from posenc.rotation.phases import frequencies, phases
from tests.cases import HEAD_DIM, HEADS
from tests.hard.wrong import Row, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, elsewhere, index, oracles


def bias(
    far: Callable[[Tensor], Tensor] = lambda r: r,
    term: Callable[[Tensor], Tensor] = torch.cos,
    first: int = 1,
    less: float = 0.5,
    ratio: Callable[[Tensor, int], Tensor] = lambda h, heads: 8 * h / heads,
    base: float | None = None,
    factor: float = 1.0,
) -> Callable[[Sandwich, Tensor], Tensor]:
    """The method as it is, but for one thing."""

    def wrong(self: Sandwich, r: Tensor) -> Tensor:
        slowest = self.base if base is None else base
        theta = frequencies(self.dim, slowest) * slowest ** (-2 * first / self.dim)
        below = term(phases(far(r), theta)).sum(-1) - less * self.dim
        h = torch.arange(1, self.num_heads + 1, dtype=torch.float64)
        return factor * torch.tensordot(1 / ratio(h, self.num_heads), below, 0)

    return wrong


COMPARED = oracles("sandwich")


def mutant(bug: str, wrong: object, name: str = "_bias") -> Mutant:
    return Mutant(bug, Sandwich, name, wrong, COMPARED)


MUTANTS = (
    mutant("leaves out the cosine", bias(term=lambda x: x)),
    mutant("has a sine", bias(term=torch.sin)),
    mutant("begins with a cosine of the distance itself", bias(first=0)),
    mutant("does not know its base", bias(base=10_000.0)),
    mutant("lies below 0 by twice as much", bias(less=1.0)),
    mutant("multiplies by the ratio", bias(ratio=lambda h, heads: heads / (8 * h))),
    mutant("counts its heads from 0", bias(ratio=lambda h, heads: 8 * (h - 0.999) / heads)),
    mutant("has one ratio for all heads", bias(ratio=lambda h, heads: 8 + 0 * h)),
    mutant("divides the bias by the root of head_dim", bias(factor=HEAD_DIM**-0.5)),
    mutant("is off by one", bias(far=lambda r: r + r.sign())),
    mutant("takes distances between indices", elsewhere(Sandwich, index, index), "score"),
)


class LinearSandwich(Sandwich):
    """Without the cosine, as one public port has it."""

    _bias = bias(term=lambda x: -x.abs())


class KeyedSandwich(Sandwich):
    score = elsewhere(Sandwich, torch.zeros_like, lambda y: y)


class ShiftedSandwich(Sandwich):
    """Begins with a cosine of the distance itself: every law holds."""

    _bias = bias(first=0)


LAWLESS = (
    Lawless("sandwich", lambda shape: LinearSandwich(shape.num_heads), "bounded"),
    Lawless("sandwich", lambda shape: KeyedSandwich(shape.num_heads), "relative"),
)
UNTRUE = (Untrue("sandwich", lambda: ShiftedSandwich(HEADS)),)
SIX = {"num_heads": 6}
REFUSED: dict[str, list[Row]] = {
    "Sandwich": [
        *sizes(Sandwich, SIX, "num_heads", "dim"),
        *numbers(Sandwich, SIX, "base", 1),
        Row(lambda: Sandwich(6, dim=7), "dim must be positive and even …, got 7"),
    ]
}
