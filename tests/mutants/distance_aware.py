"""DistanceAware with another factor, or another use of it."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import DistanceAware
from posenc.schemes import distance_aware
from tests.cases import HEADS
from tests.mutants import Lawless, Mutant, Untrue, drawn, elsewhere, index, oracles

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


def right(r: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return (1 + v.exp()) * (w * r - v).sigmoid()


def factor(bug: str, wrong: object) -> Mutant:
    return Mutant(bug, DistanceAware, "factor", wrong, COMPARED)


MUTANTS = (
    rescale("adds its factor", lambda score, factor: score.relu() + factor),
    rescale("multiplies negative scores", lambda score, factor: score * factor),
    rescale("hides negative scores", lambda s, f: torch.where(s < 0, -torch.inf, s * f)),
    rescale("multiplies the weights of attention", lambda score, factor: score.relu() + factor.log()),
    factor("knows directions where it should be blind", of_distances(right, far=torch.neg)),
    Mutant("takes distances between indices", DistanceAware, "score", elsewhere(DistanceAware, index, index), COMPARED),
    factor("has one factor for all heads", of_distances(right, of_one_head=True)),
    factor("is a bare sigmoid", of_distances(lambda r, w, v: (w * r - v).sigmoid())),
    factor("turns v around", of_distances(lambda r, w, v: (1 + v.exp()) * (w * r + v).sigmoid())),
    factor("fades where it should favour", of_distances(lambda r, w, v: (1 + v.exp()) * (-w * r - v).sigmoid())),
    factor("favours the far alone", of_distances(lambda r, w, v: (1 + v.exp()) * (w.abs() * r - v).sigmoid())),
)


class UnboundedDistanceAware(DistanceAware):
    factor = of_distances(lambda r, w, v: 1 + (w * r).abs())


class SignedDistanceAware(DistanceAware):
    factor = of_distances(right, far=torch.neg)


class WavingDistanceAware(DistanceAware):
    factor = of_distances(lambda r, w, v: 1 + 0.5 * torch.sin(w * r))


class HalvedDistanceAware(DistanceAware):
    """sigmoid(R - v) without its (1 + e^v), so f(0) is not 1: every law holds."""

    factor = of_distances(lambda r, w, v: (w * r - v).sigmoid())


LAWLESS = (
    Lawless("distance_aware", lambda shape: UnboundedDistanceAware(shape.num_heads), "bounded"),
    Lawless("distance_aware", lambda shape: SignedDistanceAware(shape.num_heads), "directed"),
    Lawless("distance_aware", lambda shape: WavingDistanceAware(shape.num_heads), "monotone"),
)
UNTRUE = (Untrue("distance_aware", lambda: drawn(HalvedDistanceAware(HEADS))),)
