"""ALiBi with other slopes, other distances, or other keys hidden."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from posenc import ALiBi
from tests.cases import HEAD_DIM, HEADS
from tests.mutants import Lawless, Mutant, Untrue, elsewhere, index, oracles
from tests.schemes import test_precision

RIGHT = ALiBi._slopes


def slopes(rule: Callable[[int, int], float]) -> object:
    return staticmethod(
        lambda heads, dtype, device=None: torch.tensor([2.0 ** -rule(h, heads) for h in range(heads)], dtype=dtype)
    )


IN_ORDER = staticmethod(lambda heads, dtype, device=None: RIGHT(heads, dtype).sort(descending=True).values)


def bias(
    factor: float = 1.0,
    far: Callable[[Tensor], Tensor] = lambda distance: distance,
    direction_blind: bool = True,
    hides: Callable[[Tensor, Tensor], Tensor] = lambda back, distance: torch.where(back, distance < 0, distance > 0),
    looks_back: Callable[[Tensor, int], Tensor] = lambda h, heads: h < heads // 2,
    slopes: Callable[[ALiBi], tuple[float, ...]] = lambda self: self.slopes,
) -> Callable[[ALiBi, Tensor], Tensor]:
    """The method as it is, but for one thing."""

    def wrong(self: ALiBi, r: Tensor) -> Tensor:
        signed = far(-r)
        distance = signed.abs() if self.form != "causal" and direction_blind else signed
        bias = -factor * torch.tensordot(torch.tensor(slopes(self), dtype=torch.float64), distance.double(), 0)
        if self.form == "directed":
            h = torch.arange(self.num_heads).view(-1, *[1] * r.dim())
            bias = bias.masked_fill(hides(looks_back(h, self.num_heads), signed), -torch.inf)
        return bias

    return wrong


def nobody(back: Tensor, distance: Tensor) -> Tensor:
    return torch.zeros_like(back & (distance < 0))


def itself_too(back: Tensor, distance: Tensor) -> Tensor:
    return torch.where(back, distance <= 0, distance >= 0)


def of_all_heads(self: ALiBi) -> tuple[float, ...]:
    """The slopes of H heads, and not of H/2 twice."""
    return ALiBi(self.num_heads).slopes


def each_twice(self: ALiBi) -> tuple[float, ...]:
    """The slopes of H/2 heads, but on neighbours."""
    return tuple(self.slopes[h // 2] for h in range(self.num_heads)) if self.form == "directed" else self.slopes


COMPARED = oracles("alibi")
EXACT = partial(test_precision.check_alibi, "built", 8)
MUTANTS = (
    Mutant(
        "has the rule for powers of two at 12 heads", ALiBi, "_slopes", slopes(lambda h, H: 8 * (h + 1) / H), COMPARED
    ),
    Mutant("halves its slope at every head", ALiBi, "_slopes", slopes(lambda h, H: h + 1), COMPARED),
    Mutant("starts at slope 1", ALiBi, "_slopes", slopes(lambda h, H: 8 * h / H), EXACT),
    Mutant("has the right slopes on the wrong heads", ALiBi, "_slopes", IN_ORDER, COMPARED),
    Mutant("rewards distance", ALiBi, "_bias", bias(factor=-1.0), COMPARED),
    Mutant("divides the bias by the root of head_dim", ALiBi, "_bias", bias(factor=HEAD_DIM**-0.5), COMPARED),
    Mutant("knows directions where it should be blind", ALiBi, "_bias", bias(direction_blind=False), COMPARED),
    Mutant("takes distances between indices", ALiBi, "score", elsewhere(ALiBi, index, index), COMPARED),
    Mutant("is off by one", ALiBi, "_bias", bias(far=lambda distance: distance + distance.sign()), COMPARED),
    Mutant("rounds distances to bfloat16", ALiBi, "_bias", bias(far=lambda distance: distance.bfloat16()), EXACT),
    Mutant(
        "looks ahead where it should look back", ALiBi, "_bias", bias(looks_back=lambda h, n: h >= n // 2), COMPARED
    ),
    Mutant("looks back with every other head", ALiBi, "_bias", bias(looks_back=lambda h, n: h % 2 == 0), COMPARED),
    Mutant("looks back with all heads", ALiBi, "_bias", bias(looks_back=lambda h, n: h < n), COMPARED),
    Mutant("is directed and hides nothing", ALiBi, "_bias", bias(hides=nobody), COMPARED),
    Mutant("is directed and hides a token from itself", ALiBi, "_bias", bias(hides=itself_too), COMPARED),
    Mutant("is directed and has the slopes of all heads", ALiBi, "_bias", bias(slopes=of_all_heads), COMPARED),
    Mutant("is directed and has every slope twice in a row", ALiBi, "_bias", bias(slopes=each_twice), COMPARED),
)


class RewardingALiBi(ALiBi):
    def _bias(self, r: Tensor) -> Tensor:
        return -super()._bias(r)


class BlindALiBi(ALiBi):
    def _bias(self, r: Tensor) -> Tensor:
        return super()._bias(-r.abs())


class KeyedALiBi(ALiBi):
    """m_h j, which a causal softmax cannot tell from m_h (j - i), but a score can."""

    score = elsewhere(ALiBi, torch.zeros_like, lambda y: y)


class CappedALiBi(ALiBi):
    def _bias(self, r: Tensor) -> Tensor:
        return super()._bias(r.clamp(min=-512))


class PowersALiBi(ALiBi):
    """The rule for powers of two at any number of heads: every law holds."""

    @staticmethod
    def _slopes(heads: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
        return torch.exp2(-8 * torch.arange(1, heads + 1, dtype=dtype) / heads)


LAWLESS = (
    Lawless("alibi", lambda shape: RewardingALiBi(shape.num_heads), "decaying"),
    Lawless("alibi", lambda shape: BlindALiBi(shape.num_heads), "directed"),
    Lawless("alibi", lambda shape: KeyedALiBi(shape.num_heads), "relative"),
    Lawless("alibi", lambda shape: CappedALiBi(shape.num_heads), "unique"),
)
UNTRUE = (Untrue("alibi", lambda: PowersALiBi(HEADS)),)
