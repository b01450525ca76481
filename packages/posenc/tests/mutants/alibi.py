"""ALiBi with other slopes, other distances, or other keys hidden."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from posenc import ALiBi
from tests.mutants import Lawless, Mutant, elsewhere, index, oracles
from tests.schemes import test_precision


def slopes(rule: Callable[[int, int], float]) -> object:
    return staticmethod(
        lambda heads, dtype, device=None: torch.tensor([2.0 ** -rule(h, heads) for h in range(heads)], dtype=dtype)
    )


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


COMPARED = oracles("alibi")
EXACT = partial(test_precision.check_alibi, "built", 8)
MUTANTS = (
    Mutant("halves its slope at every head", ALiBi, "_slopes", slopes(lambda h, H: h + 1), COMPARED),
    Mutant("starts at slope 1", ALiBi, "_slopes", slopes(lambda h, H: 8 * h / H), EXACT),
    Mutant("rewards distance", ALiBi, "_bias", bias(factor=-1.0), COMPARED),
    Mutant("takes distances between indices", ALiBi, "score", elsewhere(ALiBi, index, index), COMPARED),
    Mutant("rounds distances to bfloat16", ALiBi, "_bias", bias(far=lambda distance: distance.bfloat16()), EXACT),
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


LAWLESS = (
    Lawless("alibi", lambda shape: RewardingALiBi(shape.num_heads), "decaying"),
    Lawless("alibi", lambda shape: BlindALiBi(shape.num_heads), "directed"),
    Lawless("alibi", lambda shape: KeyedALiBi(shape.num_heads), "relative"),
    Lawless("alibi", lambda shape: CappedALiBi(shape.num_heads), "unique"),
)
