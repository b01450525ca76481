"""Sandwich of other cosines, or compressed otherwise."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import Sandwich
from posenc.rotation.phases import frequencies, phases
from tests.hard.wrong import Row, numbers, sizes
from tests.mutants import Mutant, elsewhere, index, oracles


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
    mutant("takes distances between indices", elsewhere(Sandwich, index, index), "score"),
)


SIX = {"num_heads": 6}
REFUSED: dict[str, list[Row]] = {
    "Sandwich": [
        *sizes(Sandwich, SIX, "num_heads", "dim"),
        *numbers(Sandwich, SIX, "base", 1),
        Row(lambda: Sandwich(6, dim=7), "dim must be positive and even …, got 7"),
    ]
}
