"""SwinV2 with other differences, another network, or no cosine."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import Positions, SwinV2
from posenc.encoding.encoding import Context
from posenc.encoding.pieces import Bias
from posenc.encoding.rotation import Rotation
from posenc.schemes import swin_v2
from tests.cases import HEAD_DIM, HEADS
from tests.hard.wrong import Row, sizes
from tests.mutants import Lawless, Mutant, Untrue, drawn, oracles
from tests.schemes import test_life_cycle, test_published_scores

ROTATION, SCORE = SwinV2.rotation, SwinV2.score


def table(
    space: Callable[[Tensor], Tensor] = lambda u: u.sign() * (u.abs() + 1).log2() / 3,
    side: Callable[[SwinV2], tuple[int, int]] = lambda self: self.trained,
    factor: float = 8.0,
    less: int = 1,
    bend: Callable[[Tensor], Tensor] = F.relu,
    last: Callable[[Tensor], Tensor] = lambda bias: 16 * bias.sigmoid(),
) -> Callable[[SwinV2, torch.device], Tensor]:
    """The method as it is, but for one thing."""

    def wrong(self: SwinV2, device: torch.device) -> Tensor:
        lines = [
            space(torch.arange(1 - n, n).to(self.tau.dtype) * factor / max(m - less, 1))
            for n, m in zip(self.grid, side(self), strict=True)
        ]
        x = torch.stack(torch.meshgrid(*lines, indexing="ij"), -1)
        return last(self.outer(bend(self.inner(x)))).movedim(-1, 0)

    return wrong


def rotation(
    key: Callable[[Tensor], Tensor] = lambda k: F.normalize(k, dim=-1),
    query: Callable[[Tensor], Tensor] = lambda q: F.normalize(q, dim=-1),
    steepest: float = swin_v2.STEEPEST,
) -> Callable[..., Rotation]:
    """The method as it is, but for one thing."""

    def wrong(self: SwinV2, positions: Positions, dtype: torch.dtype, context: Context | None = None) -> Rotation:
        factor = self.tau.clamp(max=steepest).exp()[:, None, None]
        return Rotation(lambda q: query(q) * factor, key)

    return wrong


def score(change: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Bias, ...]]:
    """The method as it is, of other differences."""

    def wrong(self: SwinV2, x: Positions, y: Positions, context: Context | None = None) -> tuple[Bias, ...]:
        return tuple(replace(b, at=lambda r, b=b: b.at(change(r))) for b in SCORE(self, x, y, context))

    return wrong


COMPARED = oracles("swin_v2")


def mutant(bug: str, wrong: object, name: str = "_table", check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, SwinV2, name, wrong, check)


MUTANTS = (
    mutant("takes key less query", score(torch.neg), "score"),
    mutant("counts differences in the window at hand", table(side=lambda self: self.grid)),
    mutant("divides differences by the side itself", table(less=0)),
    mutant("does not space differences by their logarithm", table(space=lambda u: u)),
    mutant("takes a natural logarithm", table(space=lambda u: u.sign() * u.abs().log1p())),
    mutant("loses the sign of a difference", table(space=lambda u: (u.abs() + 1).log2() / 3)),
    mutant("does not bound its bias", table(last=lambda bias: bias)),
    mutant("has a bias of up to 1", table(last=torch.sigmoid)),
    mutant("has a tangent in its network", table(bend=torch.tanh)),
    mutant("takes keys as they are", rotation(key=lambda k: k), "rotation"),
    mutant("takes queries as they are", rotation(query=lambda q: q), "rotation"),
    mutant("does not bound its scale", rotation(steepest=math.inf), "rotation", test_published_scores.check_steepest),
    mutant("divides the cosine by the root of head_dim", property(lambda self: HEAD_DIM**-0.5), "scale"),
    mutant(
        "does not draw its parameters",
        lambda self: None,
        "reset_parameters",
        partial(test_life_cycle.check_meta, "swin_v2"),
    ),
)


class UnsignedSwinV2(SwinV2):
    _table = table(space=lambda u: (u.abs() + 1).log2() / 3)


class EndlessSwinV2(SwinV2):
    """Clamps differences past its window."""

    def score(self, x: Positions, y: Positions, context: Context | None = None) -> tuple[Bias, ...]:
        most = [side - 1 for side in self.grid]
        return tuple(
            Bias(
                lambda r, b=b: b.at(torch.stack([r[..., n].clamp(-m, m) for n, m in enumerate(most)], -1)),
                replace(b.distance, reach=None),
            )
            for b in super().score(x, y, context)
        )


class DottedSwinV2(SwinV2):
    """Products and no cosines: every law holds."""

    rotation = rotation(key=lambda k: k, query=lambda q: q)


LAWLESS = (
    Lawless("swin_v2", lambda shape: UnsignedSwinV2((16, 16), shape.num_heads, hidden=8), "directed"),
    Lawless("swin_v2", lambda shape: EndlessSwinV2((16, 16), shape.num_heads, hidden=8), "length_free"),
)
UNTRUE = (Untrue("swin_v2", lambda: drawn(DottedSwinV2((3, 5), HEADS, hidden=7))),)
with torch.random.fork_rng(devices=()):
    GRIDDED = SwinV2((2, 3), 6)
WINDOW = {"grid": (2, 3), "num_heads": 6}
REFUSED: dict[str, list[Row]] = {
    "SwinV2": [
        *sizes(SwinV2, WINDOW, "num_heads", "hidden"),
        Row(lambda: SwinV2(3, 6), "grid must be (height, width), got 3"),
        Row(lambda: SwinV2((2, 3), 6, trained=(4,)), "trained must be (height, width), got (4,)"),
        Row(lambda: SwinV2((2, 3), 6, trained=(4, 0)), "trained[1] must be a whole number of at least 1, got 0"),
    ],
    "SwinV2.resized": [Row(lambda: GRIDDED.resized(5), "grid must be (height, width), got 5")],
}
