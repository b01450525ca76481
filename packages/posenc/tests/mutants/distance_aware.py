"""DistanceAware with another factor, or another use of it."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import DistanceAware
from posenc.schemes import distance_aware
from tests.mutants import Lawless, Mutant, elsewhere, index, oracles

COMPARED = oracles("distance_aware")


def rescale(bug: str, wrong: Callable[[Tensor, Tensor], Tensor]) -> Mutant:
    return Mutant(bug, distance_aware, "rescaled", wrong, COMPARED)


def of_distances(
    f: Callable[[Tensor, Tensor, Tensor], Tensor],
    far: Callable[[Tensor], Tensor] = torch.abs,
    of_one_head: bool = False,
) -> Callable[[DistanceAware, Tensor], Tensor]:
    """The method as it is, but for one thing. ``f`` takes distances, w and v."""

    def wrong(self: DistanceAware, distance: Tensor) -> Tensor:
        w, v = (p.to(distance.dtype).view(-1, *[1] * distance.dim()) for p in (self.w, self.v))
        w, v = (p[:1].expand_as(p) if of_one_head else p for p in (w, v))
        return f(far(distance), w, v)

    return wrong


def factor(bug: str, wrong: object) -> Mutant:
    return Mutant(bug, DistanceAware, "factor", wrong, COMPARED)


MUTANTS = (
    rescale("hides negative scores", lambda s, f: torch.where(s < 0, -torch.inf, s * f)),
    Mutant("takes distances between indices", DistanceAware, "score", elsewhere(DistanceAware, index, index), COMPARED),
)


class UnboundedDistanceAware(DistanceAware):
    factor = of_distances(lambda r, w, v: 1 + (w * r).abs())


class WavingDistanceAware(DistanceAware):
    factor = of_distances(lambda r, w, v: 1 + 0.5 * torch.sin(w * r))


LAWLESS = (
    Lawless("distance_aware", lambda shape: UnboundedDistanceAware(shape.num_heads), "bounded"),
    Lawless("distance_aware", lambda shape: WavingDistanceAware(shape.num_heads), "monotone"),
)
