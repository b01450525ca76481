"""DistanceAware with another factor, or another use of it."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import DistanceAware
from posenc.forms import Block, ScoreFunction
from tests.mutants import Mutant, oracles


def bind(
    rescale: Callable[[Tensor, Tensor], Tensor] = lambda score, factor: score.relu() * factor,
    far: Callable[[Tensor], Tensor] = lambda distance: distance.abs(),
    of_index: bool = False,
    head: Callable[[Tensor], Tensor] = lambda h: h,
) -> Callable[[DistanceAware, Block], ScoreFunction]:
    """The method as it is, but for one thing."""

    def wrong(self: DistanceAware, block: Block) -> ScoreFunction:
        x, y = block.query_positions.coords, block.key_positions.coords
        w, v = self.w.to(block.query.dtype), self.v.to(block.query.dtype)

        def rescaled(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = far(i - j if of_index else x[b, i] - y[b, j]).to(score.dtype)
            return rescale(score, self._factor(distance, w[head(h)], v[head(h)]))

        return rescaled

    return wrong


def mutant(bug: str, wrong: object) -> Mutant:
    return Mutant(bug, DistanceAware, "_bind", wrong, oracles("distance_aware"))


def factor(bug: str, wrong: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Mutant:
    return Mutant(bug, DistanceAware, "_factor", staticmethod(wrong), oracles("distance_aware"))


MUTANTS = (
    mutant("adds its factor", bind(lambda score, factor: score.relu() + factor)),
    mutant("multiplies negative scores", bind(lambda score, factor: score * factor)),
    mutant("hides negative scores", bind(lambda s, f: torch.where(s < 0, -torch.inf, s * f))),
    mutant("multiplies the weights of attention", bind(lambda score, factor: score.relu() + factor.log())),
    mutant("knows directions where it should be blind", bind(far=lambda distance: distance)),
    mutant("takes distances between indices", bind(of_index=True)),
    mutant("has one factor for all heads", bind(head=torch.zeros_like)),
    factor("is a bare sigmoid", lambda r, w, v: (w * r - v).sigmoid()),
    factor("turns v around", lambda r, w, v: (1 + v.exp()) * (w * r + v).sigmoid()),
    factor("fades where it should favour", lambda r, w, v: (1 + v.exp()) * (-w * r - v).sigmoid()),
    factor("favours the far alone", lambda r, w, v: (1 + v.exp()) * (w.abs() * r - v).sigmoid()),
)
