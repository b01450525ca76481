"""ALiBi with other slopes, other distances, or other keys hidden."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from posenc import ALiBi
from tests.mutants import Lawless, Mutant, elsewhere, index, lines, oracles
from tests.schemes import test_precision


def slopes(rule: Callable[[int, int], float]) -> object:
    return staticmethod(
        lambda heads, dtype, device=None: torch.tensor([2.0 ** -rule(h, heads) for h in range(heads)], dtype=dtype)
    )


COMPARED = oracles("alibi")
EXACT = partial(test_precision.test_alibi_distances_are_exact, "built", 8)
MUTANTS = (
    Mutant("halves its slope at every head", ALiBi, "_slopes", slopes(lambda h, H: h + 1), COMPARED),
    Mutant("starts at slope 1", ALiBi, "_slopes", slopes(lambda h, H: 8 * h / H), EXACT),
    Mutant("takes distances between indices", ALiBi, "score", elsewhere(ALiBi, index, index), COMPARED),
    *lines(COMPARED, ("rewards distance", ALiBi, "_bias", "(r if", "(-r if")),
    *lines(EXACT, ("rounds distances to bfloat16", ALiBi, "_bias", "(r if", "(r.bfloat16() if")),
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
