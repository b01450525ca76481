"""TAPA with other phases, or another scale."""

import torch

from posenc import TAPA, Positions
from tests.errors.wrong_calls import Row
from tests.mutants import lines, oracles

MUTANTS = lines(
    oracles("tapa"),
    ("has the parts exchanged", TAPA, "_row_scores", "split(sizes, -1)", "split(sizes[::-1], -1)[::-1]"),
    ("divides by the whole width", TAPA, "_row_scores", "sizes[0] ** -0.5", "self.head_dim ** -0.5"),
    ("turns by the distance itself", TAPA, "_row_scores", "** self.alpha", ""),
    ("leaves the product in", TAPA, "_row_scores", "(amplitude + phase)", "0.0"),
)


def called(width: int) -> torch.Tensor:
    x = torch.zeros(1, 4, 3, width)
    return TAPA(8)(Positions.arange(3)).score_terms[0].apply(x @ x.mT, None, x, x, *2 * (Positions.arange(3),))


REFUSED = {
    "TAPA": [
        Row(lambda: TAPA(8, 8), "amplitude_dim must be a whole number within 1..7, got 8"),
        Row(lambda: TAPA(1), "head_dim must be a whole number of at least 2, got 1"),
        Row(lambda: TAPA(8, alpha=0), "alpha must be a finite number above 0, got 0"),
        Row(lambda: called(6), "TAPA was made for head_dim 8, got queries of head_dim 6"),
    ]
}
