"""DistanceAware with another factor, or another use of it."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import DistanceAware
from posenc.schemes import distance_aware
from tests.mutants import Lawless, Mutant, elsewhere, index, lines, oracles

COMPARED = oracles("distance_aware")


HIDDEN = "torch.where(score < 0, -torch.inf, score * factor)"
MUTANTS = (
    *lines(COMPARED, ("hides negative scores", distance_aware, "rescaled", "score.relu() * factor", HIDDEN)),
    Mutant("takes distances between indices", DistanceAware, "score", elsewhere(DistanceAware, index, index), COMPARED),
)


def of_distances(f: Callable[[Tensor], Tensor]) -> Callable[[DistanceAware, Tensor], Tensor]:
    """The method with another function of w |r|."""
    return lambda self, r: f(self.w.to(r.dtype).view(-1, *[1] * r.dim()) * r.abs())


class UnboundedDistanceAware(DistanceAware):
    factor = of_distances(lambda r: 1 + r.abs())


class WavingDistanceAware(DistanceAware):
    factor = of_distances(lambda r: 1 + 0.5 * torch.sin(r))


LAWLESS = (
    Lawless("distance_aware", lambda shape: UnboundedDistanceAware(shape.num_heads), "bounded"),
    Lawless("distance_aware", lambda shape: WavingDistanceAware(shape.num_heads), "monotone"),
)
