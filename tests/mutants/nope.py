"""NoPE that is not quite nothing."""

import torch
from torch import Tensor

from posenc import NoPE, Positions
from posenc.encoding import Rotation, Score
from posenc.schemes.catalog import entries_of
from tests.cases import DIM
from tests.mutants import Mutant, oracles
from tests.schemes import test_laws


def faint_recency(self: NoPE) -> Score:
    return Score(lambda block: lambda score, b, h, i, j: score - 0.001 * (i - j).abs())


def constant_vector(self: NoPE, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((1, len(positions), DIM), 0.01, dtype=dtype)


def longer_queries(self: NoPE, positions: Positions, dtype: torch.dtype = torch.float32) -> Rotation:
    return Rotation(lambda query: 1.01 * query, lambda key: key)


def order_free() -> None:
    test_laws.check_claim(*entries_of("nope"), "order_free")


MUTANTS = (
    Mutant("prefers what is near", NoPE, "score", faint_recency, oracles("nope")),
    Mutant("tells the tokens' places apart", NoPE, "score", faint_recency, order_free),
    Mutant("adds a vector", NoPE, "table", constant_vector, oracles("nope")),
    Mutant("lengthens queries", NoPE, "rotation", longer_queries, oracles("nope")),
)
