"""T5 with other buckets, or another bias for the right ones."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from posenc import T5, Positions
from posenc.encoding.encoding import Context
from posenc.encoding.pieces import Bias, Distance
from posenc.schemes import t5
from posenc.schemes.catalog import entries_of
from tests.cases import HEAD_DIM, HEADS
from tests.hard.wrong import NO_NUMBERS, Row, each, sizes
from tests.mutants import Lawless, Mutant, Untrue, drawn, elsewhere, index, oracles
from tests.schemes import test_extras, test_laws, test_life_cycle

RIGHT, SCORE = T5._bucket, T5.score


def bucket(
    distance: Callable[[Tensor], Tensor] = lambda r: r,
    away: Callable[[Tensor, bool], Tensor] = lambda r, both: r.abs() if both else (-r).clamp(min=0),
    ahead: Callable[[Tensor], Tensor] = lambda r: r > 0,
    right: bool = True,
) -> Callable[[T5, Tensor], Tensor]:
    """The method as it is, but for one thing."""

    def wrong(self: T5, distances: Tensor) -> Tensor:
        r = distance(distances)
        near = torch.bucketize(away(r, self.bidirectional), torch.tensor(self.edges), right=right)
        return near + self.num_buckets // 2 * ahead(r) if self.bidirectional else near

    return wrong


def edges(first: Callable[[int, int, int, int], int]) -> Callable[[int, int], tuple[int, ...]]:
    """The function with another rule for where the shared buckets begin: m of so many, after so many exact."""

    def wrong(side: int, longest: int) -> tuple[int, ...]:
        exact, shared = side // 2, side - side // 2
        return (*range(1, exact + 1), *(first(m, longest, exact, shared) for m in range(1, shared)))

    return wrong


def start(m: int, longest: int, exact: int, shared: int) -> float:
    """Where the logarithm is that of bucket exact + m: at an integer or between two."""
    return exact * (longest / exact) ** (m / shared)


def score(change: Callable[[T5, Bias], Bias]) -> Callable[..., tuple[Bias, ...]]:
    """The method as it is, but for what is made of its piece."""

    def wrong(
        self: T5, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Bias, ...]:
        return tuple(change(self, bias) for bias in SCORE(self, query_positions, key_positions, context))

    return wrong


def divided(self: T5, bias: Bias) -> Bias:
    return replace(bias, at=lambda r: HEAD_DIM**-0.5 * bias.at(r))


def of_another_head(self: T5, bias: Bias) -> Bias:
    return replace(bias, at=lambda r: bias.at(r).roll(1, 0))


def along(change: Callable[[Distance], Distance]) -> Callable[[T5, Bias], Bias]:
    return lambda self, bias: replace(bias, distance=change(bias.distance))


def wrapping(self: T5, bias: Bias) -> Bias:
    past = self.edges[-1]
    return Bias(lambda r: bias.at((r + past) % (2 * past + 1) - past), Distance("T5", integral=True))


def refusing(self: T5, bias: Bias) -> Bias:
    return Bias(bias.at, Distance("T5", integral=True, reach=(self.max_distance,)))


def constant_too_early(self: T5, bias: Bias) -> Bias:
    return replace(bias, distance=replace(bias.distance, past=bias.distance.past - 1))


def of_any_length() -> None:
    test_laws.check_claim(*entries_of("t5"), "length_free")


COMPARED = oracles("t5")


def mutant(bug: str, wrong: object, name: str = "_bucket", check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, t5 if name == "_edges" else T5, name, wrong, check)


MUTANTS = (
    mutant("takes key minus query", bucket(lambda r: -r)),
    mutant("is blind to direction", lambda self, r: RIGHT(self, -r.abs())),
    mutant("is causal and does not clamp what lies ahead", bucket(away=lambda r, both: r.abs())),
    mutant("has the past in the second half", bucket(ahead=lambda r: r < 0)),
    mutant("has the query's own position in the second half", bucket(ahead=lambda r: r >= 0)),
    mutant("begins every bucket one too late", bucket(right=False)),
    mutant("rounds the distances where buckets begin", edges(lambda *s: round(start(*s))), "_edges"),
    mutant("misses a bucket that begins at an integer", edges(lambda *s: math.floor(start(*s) + 1e-9) + 1), "_edges"),
    mutant("spaces its shared buckets evenly", edges(lambda m, D, e, n: math.ceil(e + (D - e) * m / n)), "_edges"),
    mutant("has as many shared as exact buckets", edges(lambda m, D, e, n: math.ceil(start(m, D, e, e))), "_edges"),
    mutant("takes the logarithm of n, not of n / e", edges(lambda m, D, e, n: math.ceil(D ** (m / n))), "_edges"),
    mutant("takes distances between indices", elsewhere(T5, index, index), "score", oracles("t5")),
    mutant("divides the bias by the root of head_dim", score(divided), "score"),
    mutant("wraps at the end of its table", score(wrapping), "score", oracles("t5")),
    mutant("refuses what is further than its last bucket", score(refusing), "score", of_any_length),
    mutant("has another head's bias", score(of_another_head), "score"),
    mutant("takes the first coordinate", score(along(lambda d: replace(d, axis=0))), "score"),
    mutant("does not multiply by its factor", lambda self, r: self.weight.mT[:, self._bucket(r)], "_bias"),
    mutant("rounds distances to the nearest", lambda self, r: RIGHT(self, r.round()), "_bucket"),
    mutant("says too early that its bias is constant", score(constant_too_early), "score", test_extras.check_t5_facts),
    mutant(
        "does not draw its parameters",
        lambda self: None,
        "reset_parameters",
        partial(test_life_cycle.check_meta, "t5"),
    ),
)


class KeyedT5(T5):
    """The bucket of the key's position, not of the distance."""

    score = elsewhere(T5, torch.zeros_like, torch.neg)


class UnsignedT5(T5):
    def _bucket(self, r: Tensor) -> Tensor:
        return super()._bucket(-r.abs())


class EndlessT5(T5):
    """Goes on counting past its last bucket, in a straight line."""

    score = score(
        lambda self, bias: Bias(lambda r: bias.at(r) - (-r - 128).clamp(min=0), Distance("T5", integral=True))
    )


class MirroredT5(T5):
    """Key minus query: every law holds."""

    def _bucket(self, r: Tensor) -> Tensor:
        return super()._bucket(-r)


REFUSED = {
    "T5": [
        *sizes(T5, {"num_heads": 6, "axes": 3}, "num_heads", "axes"),
        *each(T5, {"num_heads": 6}, "factor", NO_NUMBERS, "a finite number"),
        Row(lambda: T5(6, axis=3, axes=3), "axis must be a whole number within 0..2, got 3"),
    ],
}
LAWLESS = (
    Lawless("t5", lambda shape: KeyedT5(shape.num_heads), "relative"),
    Lawless("t5", lambda shape: UnsignedT5(shape.num_heads), "directed"),
    Lawless("t5", lambda shape: EndlessT5(shape.num_heads), "bounded"),
)
UNTRUE = (Untrue("t5", lambda: drawn(MirroredT5(HEADS))),)
