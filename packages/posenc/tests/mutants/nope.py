"""NoPE that is not quite nothing."""

import torch
from torch import Tensor

from posenc import NoPE, Positions
from posenc.lowering.distances import Block
from posenc.lowering.forms import ScoreFunction
from tests.cases import DIM
from tests.mutants import Lawless, Mutant, by_pair, oracles


def recent(self: NoPE, block: Block) -> ScoreFunction:
    return lambda score, b, h, i, j: score - 0.001 * (i - j).abs()


def constant_vector(self: NoPE, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((1, len(positions), DIM), 0.01, dtype=dtype)


MUTANTS = (
    Mutant("prefers what is near", NoPE, "score", by_pair(recent), oracles("nope")),
    Mutant("adds a vector", NoPE, "table", constant_vector, oracles("nope")),
)


class FaintNoPE(NoPE):
    score = by_pair(recent)


LAWLESS = (Lawless("nope", lambda shape: FaintNoPE(), "order_free"),)
