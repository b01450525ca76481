"""Softcap with another bound."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import Softcap
from posenc.schemes import softcap
from tests.hard.wrong import numbers
from tests.mutants import Mutant, oracles

COMPARED = oracles("softcap")


def cap(bug: str, wrong: Callable[[Tensor, Tensor], Tensor]) -> Mutant:
    return Mutant(bug, softcap, "capped", wrong, COMPARED)


MUTANTS = (
    cap("does not give the cap back", lambda s, c: torch.tanh(s / c)),
    cap("caps at 1", lambda s, c: c * torch.tanh(s)),
    Mutant(
        "caps twice as high", Softcap, "_caps", lambda self, r: (torch.full((1, *r.shape), 2 * self.cap),), COMPARED
    ),
)


REFUSED = {"Softcap": numbers(Softcap, {}, "cap", 0)}
