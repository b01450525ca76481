"""FoPE with other series."""

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import FoPE, Positions
from posenc.rotation.phases import frequencies
from posenc.schemes import fope
from tests.hard.wrong import NO_WORDS, Row, each, numbers, sizes
from tests.mutants import Mutant, oracles

RIGHT_PAD = F.pad

COMPARED = oracles("fope")


def without_phase(x: Tensor, by: tuple[int, int], value: float) -> Tensor:
    """The other pairs are lengthened, and not turned."""
    return RIGHT_PAD(x, by, value=0.0)


def one_lower(dim: int, base: float, device: torch.device | None = None) -> Tensor:
    return frequencies(dim, base, device).roll(-1)


def across(x: Tensor) -> Tensor:
    return x.double().flip(-2) if x.dim() == 4 else x.double()


def planted(bug: str, name: str, wrong: object) -> Mutant:
    return Mutant(bug, fope, name, wrong, COMPARED)


MUTANTS = (
    planted("keeps the low frequencies", "frequencies", one_lower),
    planted("mixes the frequencies in reverse", "in_double", across),
    Mutant("multiplies the other pairs by 0", F, "pad", without_phase, COMPARED),
)


OF_FOUR = FoPE(4, 8, 64)
SIZES = {"num_heads": 2, "head_dim": 8, "length": 64}
REFUSED = {
    "FoPE": [
        *sizes(FoPE, SIZES, "num_heads", "head_dim"),
        *numbers(FoPE, SIZES, "base", 1),
        *each(FoPE, SIZES, "layout", NO_WORDS, "'half' or 'interleaved'"),
        Row(lambda: FoPE(2, 7, 64), "head_dim must be even (channels come in pairs), got 7"),
        Row(lambda: FoPE(2, 8, 6), "length must be a whole number of at least 7, got 6"),
        Row(lambda: FoPE(2, 8, 64, series=3), "series must be a whole number within 1..2, got 3"),
        Row(lambda: FoPE(2, 8, 64, strength=-1.0), "strength must be a finite number of at least 0, got -1.0"),
        Row(
            lambda: OF_FOUR(Positions.arange(3)).rotate(torch.ones(1, 4, 3, 8), torch.ones(1, 2, 3, 8)),
            "the rotation was made for keys of 4 heads, got 2: build it for as many heads as keys have",
        ),
    ],
}
