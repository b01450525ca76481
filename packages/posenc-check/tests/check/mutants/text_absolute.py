"""Vectors added to the input as people write them: sinusoids of two layouts, OPT's and RoBERTa's learned tables."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc_check import Layer
from tests.check.mutants import Mutant

PLACES, PAD = 64, 48  # rows of the learned tables; the id of padding


class OPT(nn.Module):
    """A learned table whose first two rows are of no position; places are counted in the mask."""

    offset = 2

    def __init__(self) -> None:
        super().__init__()
        self.embed_positions = nn.Embedding(PLACES + 2, 32)

    def positions(self, mask: Tensor, past: int) -> Tensor:
        return ((mask.long().cumsum(1) * mask).long() - 1)[:, past:]

    def rows(self, positions: Tensor, past: int) -> Tensor:
        if int(positions.max()) >= PLACES:
            raise ValueError(f"positions must be below {PLACES}, got {int(positions.max())}")
        return self.embed_positions(positions + self.offset)

    def forward(self, x: Tensor, mask: Tensor, past: int) -> Tensor:
        return x + self.rows(self.positions(mask, past), past)


def opt(layer: OPT, x: Tensor, padding: Tensor | None = None, cache: int | None = None) -> tuple[Tensor, int]:
    past = cache or 0
    mask = torch.ones(x.size(0), past + x.size(1)).bool() if padding is None else padding
    return layer(x, mask, past), past + x.size(1)


# -- the schemes that they are ----------------------------------------------------------------------------------------


def table() -> Any:
    import posenc

    return posenc.Learned(PLACES, 32)


def match_opt(made: OPT, scheme: Any) -> None:
    scheme.weight.data.copy_(made.embed_positions.weight.data[2:])


# -- bugs -------------------------------------------------------------------------------------------------------------


class WithoutOffset(OPT):
    offset = 0

    def positions(self, mask: Tensor, past: int) -> Tensor:
        return super().positions(mask, past).clamp(min=0)


class WithoutOffsetInDecode(OPT):
    """Places of new tokens are taken for rows."""

    def rows(self, positions: Tensor, past: int) -> Tensor:
        return super().rows(positions - 2 if past else positions, past)


def of_opt(build: Any = OPT) -> Layer:
    said = {"causal": True, "relative": None, "max_positions": PLACES, "like": table, "match": match_opt}
    return Layer(build=build, call=opt, **said)


CORRECT = (of_opt(),)
MUTANTS = (
    Mutant("OPT, without its offset", of_opt(WithoutOffset), 21, 5),
    Mutant("OPT, without its offset in decode", of_opt(WithoutOffsetInDecode), 8, 5),
)
