"""Stick-breaking with other shares, or in another order."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import Positions, StickBreaking
from posenc.backends import attention
from posenc.encoding.clocks import following
from posenc.encoding.encoding import Context
from posenc.encoding.pieces import Row
from posenc.schemes import stick_breaking
from tests.hard.wrong import flags
from tests.mutants import Lawless, Mutant, Untrue, oracles
from tests.schemes import test_rows_and_features

COMPARED = oracles("stick_breaking")
RIGHT = StickBreaking._shared


def shared(
    share: Callable[[Tensor], Tensor] = F.logsigmoid,
    left: Callable[[Tensor], Tensor] = lambda s: F.logsigmoid(-s),
    hides: bool = True,
    sums: Callable[[Tensor, Positions], Tensor] = lambda x, y: following(x, y, itself=False),
) -> Callable[..., Tensor]:
    """The method as it is, but for one thing."""

    def wrong(
        self: StickBreaking, s: Tensor, visible: Tensor | None, query: Tensor, key: Tensor, x: Positions, y: Positions
    ) -> Tensor:
        here, there = x.order[:, None, :, None], y.order[:, None, None, :]
        takes = there <= here if self.sees_itself else there < here
        seen = takes & visible if hides and visible is not None else takes
        return (share(s) + sums(left(s).masked_fill(~seen, 0.0), y)).masked_fill(~takes, -torch.inf)

    return wrong


def bug(words: str, **one: object) -> Mutant:
    return Mutant(words, StickBreaking, "_shared", shared(**one), COMPARED)  # type: ignore[arg-type]


MUTANTS = (
    Mutant("divides by the sum of its weights", attention, "gives_weights", lambda pieces: False, COMPARED),
    Mutant(
        "lets a key take of what itself has left",
        stick_breaking,
        "following",
        lambda x, keys, itself: following(x, keys, itself=True),
        COMPARED,
    ),
    bug("breaks the stick from the beginning", sums=lambda x, y: x.cumsum(-1) - x),
    bug("breaks the stick by index", sums=lambda x, y: x.flip(-1).cumsum(-1).flip(-1) - x),
    Mutant(
        "lets take what is not seen",
        StickBreaking,
        "_shared",
        shared(hides=False),
        test_rows_and_features.check_hidden_keys_take_nothing,
    ),
    bug("loses the share", share=torch.zeros_like),
    bug("leaves what was taken", left=F.logsigmoid),
)


class KeyedStickBreaking(StickBreaking):
    """Shares grow with the place of the key."""

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Row, ...]:
        add = key_positions.coords[:, None, None, :] * 1e-3
        return (Row(lambda s, *rest: RIGHT(self, s + add, *rest), gives_weights=True),)


class SharingStickBreaking(StickBreaking):
    """Nothing is ever taken."""

    _shared = shared(left=torch.zeros_like)


class SlowStickBreaking(StickBreaking):
    """Half of each share is taken twice: every law holds."""

    _shared = shared(left=lambda s: 2 * F.logsigmoid(-s))


LAWLESS = (
    Lawless("stick_breaking", lambda shape: KeyedStickBreaking(), "relative"),
    Lawless("stick_breaking", lambda shape: SharingStickBreaking(), "unique"),
)
UNTRUE = (Untrue("stick_breaking", lambda: SlowStickBreaking()),)
REFUSED = {"StickBreaking": flags(StickBreaking, {}, "sees_itself")}
