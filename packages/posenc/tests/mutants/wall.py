"""Wall with other gates, or with factors of other tokens."""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import Positions, Wall, attention
from posenc.schemes import wall
from tests.errors.wrong_calls import Row
from tests.mutants import Mutant, oracles

COMPARED = oracles("wall")


def gate(bug: str, wrong: Callable[[Tensor, Positions], Tensor]) -> Mutant:
    return Mutant(bug, wall, "log_gate", wrong, COMPARED)


MUTANTS = (
    gate("forgets by the gate and not its logarithm", lambda x, positions: -x.sigmoid()),
    Mutant("fades nothing", Wall, "score", lambda self, *where: (), COMPARED),
)


X = torch.zeros(1, 4, 3, 8)
SAID = {"kept": X}
REFUSED = {
    "Wall": [
        Row(
            lambda: attention(X, X, X, Wall(4, 8)(Positions.arange(3)).with_projected(SAID)),
            "Wall encodes only keys up to the query, but …, or use ALiBi with form='bidirectional'",
        ),
        Row(
            lambda: attention(
                X[..., :6], X[..., :6], X, Wall(4, 8)(Positions.arange(3)).with_projected(SAID), is_causal=True
            ),
            "Wall was made for head_dim 8, got queries of head_dim 6",
        ),
    ]
}
