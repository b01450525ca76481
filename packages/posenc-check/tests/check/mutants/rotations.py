"""Rotations of queries and keys, and what goes wrong with them."""

import torch
from torch import Tensor

from posenc_check import Rotary
from tests.check.mutants import Mutant

THRESHOLD = 16


def rotary_base(base: float = 100.0) -> float:
    """All there is to build."""
    return base


def turned(base: float, x: Tensor, positions: Tensor) -> Tensor:
    """Pairs of channels (c, c + head_dim/2) turned by p · base^(-2c/head_dim)."""
    angle = positions[:, None, :, None].double() * base ** -torch.linspace(0, 1, x.size(-1) // 2 + 1).double()[:-1]
    left, right = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((left * cos - right * sin, left * sin + right * cos), -1).to(x.dtype)


def turn(base: float, x: Tensor, positions: Tensor) -> Tensor:
    return turned(base, x, positions)


def turn_from(base: float, x: Tensor, offset: int = 0) -> Tensor:
    return turned(base, x, torch.arange(offset, offset + x.size(2))[None])


# -- bugs -------------------------------------------------------------------------------------------------------------


def turn_keys_the_other_way(base: float, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Scores then go by the sum of two positions."""
    return turned(base, query, positions), turned(base, key, -positions)


def turn_by_bfloat16(base: float, x: Tensor, positions: Tensor) -> Tensor:
    """Which has no odd number above 256."""
    return turned(base, x, positions.bfloat16())


def turn_by_a_table(base: float, x: Tensor, positions: Tensor) -> Tensor:
    """Whose end is taken for all that lies past it."""
    return turned(base, x, positions.clamp(max=511))


def turn_a_run(base: float, x: Tensor, positions: Tensor) -> Tensor:
    """As if positions went up by one from the first."""
    return turned(base, x, positions[:, :1] + torch.arange(x.size(2)))


def grown(base: float, length: int, head_dim: int) -> float:
    """The base of dynamic scaling for a text of that length."""
    return base * max(length / THRESHOLD, 1.0) ** (head_dim / (head_dim - 2))


def turn_by_chunk(base: float, x: Tensor, positions: Tensor) -> Tensor:
    """Takes the length of the chunk for that of the text: one token is always short."""
    return turned(base if x.size(2) <= THRESHOLD else 8 * base, x, positions)


class Longest:
    """Remembers the longest text."""

    def __init__(self, base: float = 100.0) -> None:
        self.base, self.length = base, 0


def turn_by_the_longest(made: Longest, x: Tensor, positions: Tensor) -> Tensor:
    made.length = max(made.length, int(positions.max()) + 1)
    return turned(grown(made.base, made.length, x.size(-1)), x, positions)


ROTARY = Rotary(build=rotary_base, call=turn, causal=True, relative=True)
OFFSET = Rotary(build=rotary_base, call=turn_from, causal=True, relative=True)


CORRECT = (ROTARY, OFFSET)


def with_call(call: object, **claims: object) -> Rotary:
    return Rotary(**{"build": rotary_base, "call": call, "causal": True, "relative": True, **claims})  # type: ignore[arg-type]


MUTANTS = (
    Mutant("keys turned the other way", with_call(turn_keys_the_other_way), 6, 8),
    Mutant("positions in bfloat16", with_call(turn_by_bfloat16), 6, 1),
    Mutant("positions past the end of a table", with_call(turn_by_a_table), 6, 14),
    Mutant("positions taken for a run", with_call(turn_a_run), 12, 17),
    Mutant("scaling by the length of the chunk", with_call(turn_by_chunk, threshold=THRESHOLD), 13, 6),
    Mutant("frequencies that stay long", with_call(turn_by_the_longest, build=Longest), 13, 6),
)
