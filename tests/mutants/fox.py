"""FoX with other gates, or a clock that runs otherwise."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import FoX, Positions
from posenc.encoding import features as room
from posenc.encoding.clocks import readings
from posenc.encoding.encoding import Context
from posenc.encoding.features import Feature
from posenc.encoding.pieces import Bias, Clock, Distance
from posenc.schemes import fox
from tests.cases import HEADS
from tests.hard.wrong import sizes
from tests.mutants import Lawless, Mutant, Untrue, oracles

FEATURES = FoX.features.fget
COMPARED = oracles("fox")


def gate(bug: str, wrong: Callable[[Tensor, Positions], Tensor]) -> Mutant:
    return Mutant(bug, fox, "log_gate", wrong, COMPARED)


def clock(bug: str, wrong: Callable[..., Tensor]) -> Mutant:
    """``room.readings`` is what makes a clock of steps."""
    return Mutant(bug, room, "readings", wrong, COMPARED)


def by_index(steps: Tensor, positions: Positions, at: Positions | None = None) -> Tensor:
    total = steps.cumsum(-1)
    return total if at is None else total[..., total.size(-1) - len(at) :]


def its_own_left_out(steps: Tensor, positions: Positions, at: Positions | None = None) -> Tensor:
    """The query's own gate, and not the key's, goes missing."""
    own = steps if at is None else steps[..., steps.size(-1) - len(at) :]
    return readings(steps, positions, at) - own


def of_padding_too(steps: Tensor, positions: Positions, at: Positions | None = None) -> Tensor:
    def one(p: Positions) -> Positions:
        return Positions(p.coords, order=torch.arange(p.order.size(1))[None] + 9 - p.order.size(1))

    return readings(steps, one(positions), None if at is None else one(at))


def with_steps(change: Callable[[Tensor], Tensor]) -> property:
    """The features as they are, but for what the clock goes by."""
    (name,) = FoX(1).features

    def features(self: FoX) -> Mapping[str, Feature]:
        wanted = FEATURES(self)[name]
        return {name: replace(wanted, map=lambda x, positions: change(wanted.map(x, positions)))}

    return property(features)


MUTANTS = (
    Mutant("rewards what lies far back", FoX, "features", with_steps(torch.neg), COMPARED),
    gate("forgets by the gate and not its logarithm", lambda x, positions: -x.sigmoid()),
    gate("has its gates the wrong way round", lambda x, positions: F.logsigmoid(-x)),
    gate("forgets by coordinates", lambda x, p: F.logsigmoid(x) * p.coords.expand(2, -1)[:, None]),
    clock("leaves the query's own gate out and takes the key's", its_own_left_out),
    clock("runs by index and not by order", by_index),
    clock("is wound by padding and by other documents", of_padding_too),
)


class KeyedFoX(FoX):
    """Beside the clock a bias that grows with where the text stands."""

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Clock | Bias, ...]:
        far = key_positions.coords.amax()
        return Clock("forgotten"), Bias(lambda r: (r.double() * far * 1e-3)[None], Distance("KeyedFoX"))


class RewardingFoX(FoX):
    features = with_steps(torch.neg)


class EvenFoX(FoX):
    """No gate forgets anything."""

    features = with_steps(torch.zeros_like)


class HalfFoX(FoX):
    """Forgets by the root of the gate: every law holds."""

    features = with_steps(lambda steps: steps / 2)


LAWLESS = (
    Lawless("fox", lambda shape: RewardingFoX(shape.num_heads), "decaying"),
    Lawless("fox", lambda shape: KeyedFoX(shape.num_heads), "relative"),
    Lawless("fox", lambda shape: EvenFoX(shape.num_heads), "unique"),
)
UNTRUE = (Untrue("fox", lambda: HalfFoX(HEADS)),)
REFUSED = {"FoX": sizes(FoX, {"num_heads": 4}, "num_heads")}
