"""T5 with other buckets, or another bias for the right ones."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from posenc import T5
from posenc.encoding import Score
from posenc.forms import Block, ScoreFunction
from posenc.schemes import t5
from posenc.schemes.catalog import entries_of
from tests.mutants import Mutant, oracles
from tests.schemes import test_extras, test_laws, test_life_cycle

RIGHT, BIAS, SCORE = T5._bucket, T5._bias, T5.score


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


def bind(of_index: bool = False, factor: Callable[[Block], float] = lambda block: 1.0) -> Callable[..., ScoreFunction]:
    """The method as it is, but for one thing."""

    def wrong(self: T5, block: Block) -> ScoreFunction:
        x, y = block.query_positions.coords, block.key_positions.coords
        far = 100
        bias = factor(block) * self._bias(block, torch.arange(-far, far + 1))
        return lambda score, b, h, i, j: score + bias[h, (j - i if of_index else y[b, j] - x[b, i]) + far]

    return wrong


def wrapping(self: T5, block: Block) -> ScoreFunction:
    x, y = block.query_positions.coords, block.key_positions.coords
    past = self.edges[-1]
    bias = self._bias(block, torch.arange(-past, past + 1))
    return lambda score, b, h, i, j: score + bias[h, (y[b, j] - x[b, i] + past) % (2 * past + 1)]


def refusing(self: T5, block: Block) -> ScoreFunction:
    block.table_coordinates("T5", (self.max_distance,))
    return bind()(self, block)


def constant_too_early(self: T5) -> Score:
    return replace(SCORE(self), constant_past=self.edges[-1] - 1)


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
    mutant("takes distances between indices", bind(of_index=True), "_bind", oracles("t5", "permuted")),
    mutant("divides the bias by the root of head_dim", bind(factor=lambda block: block.scale), "_bind"),
    mutant("wraps at the end of its table", wrapping, "_bind", oracles("t5", "repeated")),
    mutant("refuses what is further than its last bucket", refusing, "_bind", of_any_length),
    mutant("has another head's bias", lambda self, block, r: BIAS(self, block, r).roll(1, 0), "_bias"),
    mutant("says too early that its bias is constant", constant_too_early, "score", test_extras.check_t5_facts),
    mutant(
        "does not draw its parameters",
        lambda self: None,
        "reset_parameters",
        partial(test_life_cycle.check_meta, "t5"),
    ),
)
