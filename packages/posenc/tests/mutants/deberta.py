"""DeBERTa with other rows of its table, other terms, or another scale."""

import torch
from torch import nn

from posenc import DeBERTa
from tests.cases import HEAD_DIM
from tests.errors.wrong_calls import Row
from tests.mutants import Mutant, elsewhere, index, lines, oracles, undrawn

COMPARED = oracles("deberta")


BOTH = "self._projected(table, self.key), self._projected(table, self.query)"
OTHERS = "self._projected(table, self.query), self._projected(table, self.key)"
MUTANTS = (
    Mutant("divides by the root of head_dim", DeBERTa, "scale", property(lambda self: HEAD_DIM**-0.5), COMPARED),
    Mutant("takes distances between indices", DeBERTa, "score", elsewhere(DeBERTa, index, index), COMPARED),
    undrawn(DeBERTa, "deberta", "_reset_projections"),
    *lines(
        COMPARED,
        (
            "knows content to position alone",
            DeBERTa,
            "score",
            "RelativeDot(lambda r: of_queries",
            "RelativeDot(lambda r: 0 * of_queries",
        ),
        ("exchanges the projections", DeBERTa, "score", BOTH, OTHERS),
    ),
)


with torch.random.fork_rng(devices=()):
    LAYER, HALF, NARROW, OVER = (nn.Linear(n, m) for n, m in ((24, 24), (24, 12), (8, 24), (24, 16)))
    OF_MODEL = DeBERTa(6, 4)
REFUSED: dict[str, list[Row]] = {
    "DeBERTa": [
        Row(lambda: DeBERTa(6, 4, clamp="distance"), "clamp must be 'index' without num_buckets, …, got 'distance'"),
        Row(lambda: DeBERTa(6, 4, num_buckets=7), "num_buckets must be even …, got 7"),
        Row(lambda: DeBERTa(6, 4, max_distance=5, num_buckets=8), "max_distance must be above 5, …, got 5"),
    ],
    "DeBERTa.of_layer": [
        Row(lambda: OF_MODEL.of_layer("query", LAYER), "query must be a Linear, got 'query'"),
        Row(lambda: OF_MODEL.of_layer(LAYER, None), "key must be a Linear, got None"),
        Row(lambda: OF_MODEL.of_layer(HALF, LAYER), "query must project 24 channels to 24, got 24 to 12"),
        Row(lambda: OF_MODEL.of_layer(LAYER, NARROW), "key must project 24 channels to 24, got 8 to 24"),
        Row(lambda: OF_MODEL.of_layer(LAYER, OVER), "key must project 24 channels to 24, got 24 to 16"),
    ],
}
