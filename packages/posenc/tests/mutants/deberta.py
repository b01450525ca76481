"""DeBERTa with other rows of its table, other terms, or another scale."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from posenc import DeBERTa
from tests.cases import HEAD_DIM
from tests.hard.wrong import NO_WORDS, Row, each, flags, sizes
from tests.mutants import Mutant, elsewhere, index, oracles
from tests.mutants.backends import Line
from tests.schemes import test_life_cycle


def scale(number: float) -> property:
    return property(lambda self: number)


COMPARED = oracles("deberta")


def mutant(bug: str, wrong: object, name: str = "_index", check: Callable[[], None] = COMPARED) -> Mutant:
    return Mutant(bug, DeBERTa, name, wrong, check)


MUTANTS = (
    mutant("divides by the root of head_dim", scale(HEAD_DIM**-0.5), "scale"),
    mutant("takes distances between indices", elsewhere(DeBERTa, index, index), "score", oracles("deberta")),
    mutant(
        "does not draw its projections",
        lambda self: None,
        "_reset_projections",
        partial(test_life_cycle.check_meta, "deberta"),
    ),
    Line(
        "knows content to position alone",
        DeBERTa,
        "score",
        ("of_queries[:, self._index(r)]", "0 * of_queries[:, self._index(r)]"),
        COMPARED,
    ),
    Line(
        "exchanges the projections",
        DeBERTa,
        "score",
        (
            "self._projected(table, self.key), self._projected(table, self.query)",
            "self._projected(table, self.query), self._projected(table, self.key)",
        ),
        COMPARED,
    ),
)


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
