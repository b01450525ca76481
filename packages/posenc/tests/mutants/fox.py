"""FoX with other gates, or a clock that runs otherwise."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from posenc import Positions
from posenc.encoding import context as room
from posenc.encoding.context import cumulative_sums
from posenc.schemes import fox
from tests.mutants import Mutant, oracles

COMPARED = oracles("fox")


def gate(bug: str, wrong: Callable[[Tensor, Positions], Tensor]) -> Mutant:
    return Mutant(bug, fox, "log_gate", wrong, COMPARED)


def clock(bug: str, wrong: Callable[..., Tensor]) -> Mutant:
    """``room.cumulative_sums`` is what makes a clock of steps."""
    return Mutant(bug, room, "cumulative_sums", wrong, COMPARED)


def by_index(steps: Tensor, positions: Positions, at: Positions | None = None) -> Tensor:
    total = steps.cumsum(-1)
    return total if at is None else total[..., total.size(-1) - len(at) :]


def its_own_left_out(steps: Tensor, positions: Positions, at: Positions | None = None) -> Tensor:
    """The query's own gate, and not the key's, goes missing."""
    own = steps if at is None else steps[..., steps.size(-1) - len(at) :]
    return cumulative_sums(steps, positions, at) - own


MUTANTS = (
    clock("leaves the query's own gate out and takes the key's", its_own_left_out),
    gate("forgets by the gate and not its logarithm", lambda x, positions: -x.sigmoid()),
    gate("has its gates the wrong way round", lambda x, positions: F.logsigmoid(-x)),
    clock("runs by index and not by order", by_index),
)
