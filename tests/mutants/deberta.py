"""DeBERTa with other rows of its table, other terms, or another scale."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from posenc import DeBERTa, Positions
from posenc.encoding.encoding import Context
from posenc.encoding.pieces import Meeting
from posenc.schemes.catalog import entries_of
from tests.cases import HEAD_DIM, HEADS
from tests.hard.wrong import NO_WORDS, Row, each, flags, sizes
from tests.mutants import Lawless, Mutant, Untrue, drawn, elsewhere, index, oracles
from tests.schemes import test_laws, test_life_cycle

INDEX, SCORE = DeBERTa._index, DeBERTa.score


def rows(
    distance: Callable[[Tensor], Tensor] = lambda r: r,
    found: Callable[[Tensor, int], Tensor] = lambda c, k: c,
    bucketed: bool = True,
) -> Callable[[DeBERTa, Tensor], Tensor]:
    """The method as it is, but for one thing."""

    def wrong(self: DeBERTa, r: Tensor) -> Tensor:
        k = self.span
        c = INDEX(self, distance(r)) if bucketed else (k - distance(r)).clamp(0, 2 * k - 1)
        return found(c, k).clamp(0, 2 * k - 1)

    return wrong


def of_indices(self: DeBERTa, r: Tensor) -> Tensor:
    other = copy.copy(self)
    other.clamp = "index"
    return INDEX(other, r)


def score(change: Callable[[DeBERTa, tuple[Meeting, ...]], tuple[Meeting, ...]]) -> Callable[..., tuple[Meeting, ...]]:
    """The method as it is, but for what is made of its terms."""

    def wrong(self: DeBERTa, x: Positions, y: Positions, context: Context | None = None) -> tuple[Meeting, ...]:
        return change(self, SCORE(self, x, y, context))

    return wrong


def scale(number: float) -> property:
    return property(lambda self: number)


def other_way(self: DeBERTa, terms: tuple[Meeting, ...]) -> tuple[Meeting, ...]:
    """As the paper writes it."""
    first, second = terms
    return first, replace(second, vectors=lambda r: second.vectors(-r))


def without(n: int) -> Callable[[DeBERTa, tuple[Meeting, ...]], tuple[Meeting, ...]]:
    return lambda self, terms: terms[:n] + terms[n + 1 :]


def exchanged(self: DeBERTa, terms: tuple[Meeting, ...]) -> tuple[Meeting, ...]:
    first, second = terms
    return replace(first, vectors=second.vectors), replace(second, vectors=first.vectors)


def of_a_fixed_length(self: DeBERTa, terms: tuple[Meeting, ...]) -> tuple[Meeting, ...]:
    reach = (self.max_distance,)
    return tuple(replace(t, distance=replace(t.distance, tail=None, past=0, reach=reach)) for t in terms)


def of_any_length() -> None:
    test_laws.check_claim(*entries_of("deberta"), "length_free")


COMPARED = oracles("deberta")


def mutant(bug: str, wrong: object, name: str = "_index", check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, DeBERTa, name, wrong, check)


MUTANTS = (
    mutant("takes key less query", rows(lambda r: -r)),
    mutant("is off by one", rows(found=lambda c, k: c + 1)),
    mutant("puts no distance into a bucket", rows(bucketed=False)),
    mutant("ends its table a row early", rows(found=lambda c, k: c.clamp(max=2 * k - 2))),
    mutant("clamps indices where distances were asked for", of_indices),
    mutant("has position to content the other way round", score(other_way), "score"),
    mutant("knows content to position alone", score(without(1)), "score"),
    mutant("knows position to content alone", score(without(0)), "score"),
    mutant("exchanges the projections", score(exchanged), "score"),
    mutant("divides by the root of head_dim", scale(HEAD_DIM**-0.5), "scale"),
    mutant("divides for two terms and not three", scale((2 * HEAD_DIM) ** -0.5), "scale"),
    mutant("refuses what is further than its table", score(of_a_fixed_length), "score", of_any_length),
    mutant("takes distances between indices", elsewhere(DeBERTa, index, index), "score", oracles("deberta")),
    mutant(
        "does not draw its projections",
        lambda self: None,
        "_reset_projections",
        partial(test_life_cycle.check_meta, "deberta"),
    ),
)


class KeyedDeBERTa(DeBERTa):
    """The row of the key's position, not of the distance."""

    score = elsewhere(DeBERTa, torch.zeros_like, torch.neg)


class EndingDeBERTa(DeBERTa):
    score = score(of_a_fixed_length)


class PaperDeBERTa(DeBERTa):
    """Position to content at p_j - p_i, as the paper has it: every law holds."""

    score = score(other_way)


LAWLESS = (
    Lawless("deberta", lambda shape: KeyedDeBERTa(shape.num_heads, shape.head_dim, 8, 64), "relative"),
    Lawless("deberta", lambda shape: EndingDeBERTa(shape.num_heads, shape.head_dim, 8, 64), "length_free"),
)
UNTRUE = (Untrue("deberta", lambda: drawn(PaperDeBERTa(HEADS, HEAD_DIM, 5, 4))),)
MODEL = {"num_heads": 6, "head_dim": 4}
with torch.random.fork_rng(devices=()):
    LAYER, HALF, NARROW, OVER = (nn.Linear(n, m) for n, m in ((24, 24), (24, 12), (8, 24), (24, 16)))
    OF_MODEL = DeBERTa(6, 4)
REFUSED: dict[str, list[Row]] = {
    "DeBERTa": [
        *sizes(DeBERTa, MODEL, "num_heads", "head_dim", "dim", "max_distance", "num_buckets"),
        *flags(DeBERTa, MODEL, "normalized"),
        *each(DeBERTa, MODEL, "clamp", NO_WORDS, "'index' or 'distance'"),
        Row(lambda: DeBERTa(6, 4, clamp="distance"), "clamp must be 'index' without num_buckets, …, got 'distance'"),
        Row(lambda: DeBERTa(6, 4, num_buckets=7), "num_buckets must be even …, got 7"),
        Row(lambda: DeBERTa(6, 4, max_distance=5, num_buckets=8), "max_distance must be above 5, …, got 5"),
    ],
    "DeBERTa.of_layer": [
        Row(lambda: OF_MODEL.of_layer("query", LAYER), "query must be a Linear, got 'query'"),
        Row(lambda: OF_MODEL.of_layer(LAYER, None), "key must be a Linear, got None"),
        Row(
            lambda: OF_MODEL.of_layer(HALF, LAYER),
            "query must project 24 channels to 24, got 24 to 12",
        ),
        Row(lambda: OF_MODEL.of_layer(LAYER, NARROW), "key must project 24 channels to 24, got 8 to 24"),
        Row(lambda: OF_MODEL.of_layer(LAYER, OVER), "key must project 24 channels to 24, got 24 to 16"),
    ],
}
