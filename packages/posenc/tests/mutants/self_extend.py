"""Self-Extend with other groups, another shift, or another edge of the window."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import Positions, SelfExtend
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Band, Rotation
from posenc.rotation.phases import turned_to
from tests.hard.wrong import NO_WORDS, Row, each, numbers, sizes
from tests.mutants import Mutant, oracles


def floor(p: Tensor, group: int) -> Tensor:
    return (p / group).floor()


def rotation(
    grouped: Callable[[Tensor, int], Tensor] = floor,
    grouped_key: Callable[[Tensor, int], Tensor] = floor,
    shift: Callable[[int, int], float] = lambda w, g: w - w // g,
    reach: Callable[[int], int] = lambda w: w,
    coords: Callable[[Tensor], Tensor] = lambda p: p,
    base: Callable[[float], float] = lambda base: base,
    layout: str | None = None,
) -> Callable[..., Rotation]:
    """The method as it is, but for one thing."""

    def wrong(
        self: SelfExtend, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
    ) -> Rotation:
        p = coords(positions.coords).double()
        query = grouped(p, self.group) + shift(self.window, self.group)
        near, of_query, of_key = (
            turned_to(at, self.head_dim, base(self.base), layout or self.layout, dtype)  # type: ignore[arg-type]
            for at in (p, query, grouped_key(p, self.group))
        )
        return Rotation(near, near, bands=(Band(max(1, reach(self.window)), of_query, of_key),))

    return wrong


def of(bug: str, **wrong: object) -> Mutant:
    return Mutant(bug, SelfExtend, "rotation", rotation(**wrong), oracles("self_extend"))  # type: ignore[arg-type]


MUTANTS = (
    of("shifts by w - w/G", shift=lambda w, g: w - w / g),
    of("shifts by w", shift=lambda w, g: w),
    of("does not shift", shift=lambda w, g: 0),
)


OF_TEXTS = {"head_dim": 8}
REFUSED = {
    "SelfExtend": [
        *sizes(SelfExtend, OF_TEXTS, "head_dim", "group", "window"),
        *numbers(SelfExtend, OF_TEXTS, "base", 1),
        *each(SelfExtend, OF_TEXTS, "layout", NO_WORDS, "'half' or 'interleaved'"),
        Row(lambda: SelfExtend(7), "head_dim must be even (channels come in pairs), got 7"),
        Row(
            lambda: SelfExtend(8)(Positions.grid(2, 2)),
            "SelfExtend takes one coordinate per token, got positions of 2 axes",
        ),
    ],
}
