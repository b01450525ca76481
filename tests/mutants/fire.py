"""FIRE of another share, or by another network."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import FIRE, PositionError, Positions
from posenc.backends.native import bounds
from posenc.encoding.encoding import Context
from posenc.schemes import fire
from posenc.schemes.catalog import entries_of
from tests.backends import test_native, test_skipping
from tests.cases import HEAD_DIM, HEADS
from tests.hard.wrong import Row, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, drawn, elsewhere, index, oracles
from tests.mutants.backends import Line
from tests.schemes import test_laws, test_life_cycle

RIGHT = FIRE.score


def bias(
    psi: Callable[[Tensor], Tensor] = torch.log1p,
    away: Callable[[Tensor, Tensor], Tensor] = lambda x, y: (x - y).clamp(min=0),
    over: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda x, y, threshold: torch.maximum(x, threshold),
    epsilon: float = fire.EPSILON,
    scale: Callable[[Tensor], Tensor] = torch.abs,
    threshold: Callable[[FIRE], Tensor] = lambda self: (self.multiple * self.length).abs(),
    bend: Callable[[Tensor], Tensor] = F.relu,
    factor: float = 1.0,
) -> Callable[[FIRE, Tensor, Tensor], tuple[Tensor]]:
    """The method as it is, but for one thing."""

    def wrong(self: FIRE, x: Tensor, y: Tensor) -> tuple[Tensor]:
        x, y, c = x.to(self.c.dtype), y.to(self.c.dtype), scale(self.c)
        share = psi(c * away(x, y)) / (psi(c * over(x, y, threshold(self))) + epsilon)
        return (factor * self.outer(bend(self.inner(share[..., None]))).movedim(-1, 0),)

    return wrong


def of_any_length() -> None:
    test_laws.check_claim(*entries_of("fire"), "length_free")


def ending(self: FIRE, x: Positions, y: Positions, context: Context | None = None) -> object:
    if max(x.coords.max(), y.coords.max()) > 600:
        raise PositionError("FIRE ends at 600")
    return RIGHT(self, x, y, context)


COMPARED = oracles("fire")


def mutant(bug: str, wrong: object, name: str = "_bias", check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, FIRE, name, wrong, check)


MUTANTS = (
    mutant("takes the share of the key's position", bias(over=lambda x, y, t: torch.maximum(y, t))),
    mutant("has no threshold", bias(over=lambda x, y, t: x.clamp(min=1.0) + 0 * t)),
    mutant("divides by the threshold alone", bias(over=lambda x, y, t: t + 0 * x)),
    mutant("adds position and threshold", bias(over=lambda x, y, t: x + t)),
    mutant("counts the query's position from 1", bias(over=lambda x, y, t: torch.maximum(x + 1, t))),
    mutant("does not learn its threshold", bias(threshold=lambda self: torch.tensor(self.length))),
    mutant("takes distances as they are", bias(psi=lambda x: x)),
    mutant("takes the magnitude of keys to come", bias(away=lambda x, y: (x - y).abs())),
    mutant("has a tangent in its network", bias(bend=torch.tanh)),
    mutant("divides the bias by the root of head_dim", bias(factor=HEAD_DIM**-0.5)),
    mutant("has another epsilon", bias(epsilon=1e-3)),
    mutant("takes distances between indices", elsewhere(FIRE, index, index), "score"),
    mutant("ends", ending, "score", of_any_length),
    mutant(
        "does not draw its parameters",
        lambda self: None,
        "reset_parameters",
        partial(test_life_cycle.check_meta, "fire"),
    ),
    Mutant(
        "the kernel takes a bias for all that fades, beside a broken line",
        bounds,
        "UNBOUNDED",
        tuple(name for name in bounds.UNBOUNDED if name != "away"),
        test_skipping.test_what_lifts_far_keys_is_not_left_out,
    ),
    Line(
        "the kernel's units that bend at no distance are past it",
        FIRE,
        "_lines",
        ("torch.cat((is_on[None], ", "torch.cat(((breaks[:1, None] >= bends) ^ falls, "),
        partial(test_native.test_a_network_is_a_broken_line_wherever_it_bends, "bends at 0", True),
    ),
    Line(
        "the kernel's units that never bend are taken for those that bend far away",
        FIRE,
        "_lines",
        ("torch.where(w1 == 0, is_on, w1 < 0)", "w1 < 0"),
        partial(test_native.test_a_network_is_a_broken_line_wherever_it_bends, "never bends", True),
    ),
)


class RelativeFIRE(FIRE):
    """Divides by its threshold, wherever the query stands."""

    _bias = bias(over=lambda x, y, t: t + 0 * x)


class EndlessFIRE(FIRE):
    _bias = bias(over=lambda x, y, t: t + 0 * x, psi=lambda x: x)


class SharplyBentFIRE(FIRE):
    """Another bend: every law holds."""

    _bias = bias(bend=torch.tanh)


LAWLESS = (
    Lawless("fire", lambda shape: RelativeFIRE(shape.num_heads), "relative"),
    Lawless("fire", lambda shape: EndlessFIRE(shape.num_heads), "bounded"),
)
UNTRUE = (Untrue("fire", lambda: drawn(SharplyBentFIRE(HEADS, 5, length=17.0))),)
SIX = {"num_heads": 6}
REFUSED: dict[str, list[Row]] = {"FIRE": [*sizes(FIRE, SIX, "num_heads", "hidden"), *numbers(FIRE, SIX, "length", 0)]}
