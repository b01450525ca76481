"""Softcap with another bound."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import Softcap
from posenc.schemes import softcap
from tests.hard.wrong import numbers
from tests.mutants import Lawless, Mutant, Untrue, oracles
from tests.oracles.softcap import CAP

COMPARED = oracles("softcap")


def cap(bug: str, wrong: Callable[[Tensor, Tensor], Tensor]) -> Mutant:
    return Mutant(bug, softcap, "capped", wrong, COMPARED)


MUTANTS = (
    cap("does not give the cap back", lambda s, c: torch.tanh(s / c)),
    cap("caps at 1", lambda s, c: c * torch.tanh(s)),
    cap("cuts", lambda s, c: s.clamp(-c, c)),
    Mutant(
        "caps twice as high", Softcap, "_caps", lambda self, r: (torch.full((1, *r.shape), 2 * self.cap),), COMPARED
    ),
)


class GrowingSoftcap(Softcap):
    """A cap that is higher far away."""

    def _caps(self, r: Tensor) -> tuple[Tensor]:
        return ((self.cap / 50 * (1 + r.abs().double()))[None],)


class HigherSoftcap(Softcap):
    """Twice the cap: every law holds."""

    def _caps(self, r: Tensor) -> tuple[Tensor]:
        return (2 * super()._caps(r)[0],)


LAWLESS = (Lawless("softcap", lambda shape: GrowingSoftcap(50.0), "order_free"),)
UNTRUE = (Untrue("softcap", lambda: HigherSoftcap(CAP)),)
REFUSED = {"Softcap": numbers(Softcap, {}, "cap", 0)}
