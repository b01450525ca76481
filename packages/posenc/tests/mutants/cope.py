"""CoPE that counts other tokens, or looks its count up elsewhere."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import CoPE, Positions
from posenc.encoding.context import following
from posenc.schemes import cope
from tests.hard.wrong import flags, sizes
from tests.mutants import Mutant, oracles

COMPARED = oracles("cope")


def counted(
    gate: Callable[[Tensor], Tensor] = torch.sigmoid,
    hides: bool = True,
    most: Callable[[CoPE], int] = lambda self: self.max_positions - 1,
    share: Callable[[Tensor], Tensor] = lambda f: f,
    scale: Callable[[CoPE], float] = lambda self: self.head_dim**-0.5 if self.scaled else 1.0,
    sums: Callable[[Tensor, Positions], Tensor] = lambda g, y: following(g, y, itself=True),
    score: Callable[[Tensor], Tensor] = lambda s: s,
) -> Callable[..., Tensor]:
    """The method as it is, but for one thing."""

    def wrong(
        self: CoPE, s: Tensor, visible: Tensor | None, query: Tensor, key: Tensor, x: Positions, y: Positions
    ) -> Tensor:
        g = gate(s)
        g = g.masked_fill(~visible, 0.0) if hides and visible is not None else g
        p = sums(g, y).clamp(min=0, max=most(self))
        met, f = query.to(s) @ self.e.to(s).mT * scale(self), share(p - p.floor())
        return score(s) + (1 - f) * met.gather(-1, p.floor().long()) + f * met.gather(-1, p.ceil().long())

    return wrong


def bug(words: str, **one: object) -> Mutant:
    return Mutant(words, CoPE, "_counted", counted(**one), COMPARED)  # type: ignore[arg-type]


MUTANTS = (
    Mutant(
        "leaves the key itself out", cope, "following", lambda x, y, itself: following(x, y, itself=False), COMPARED
    ),
    bug("counts by index and not by order", sums=lambda g, y: g.flip(-1).cumsum(-1).flip(-1)),
    bug("counts from the beginning", sums=lambda g, y: g.cumsum(-1)),
)


GOOD = {"head_dim": 4, "max_positions": 9}
REFUSED = {"CoPE": [*sizes(CoPE, GOOD, "head_dim", "max_positions"), *flags(CoPE, GOOD, "scaled")]}
