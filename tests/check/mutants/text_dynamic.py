"""Rotations whose frequencies go by the length of a row, as people write them: dynamic NTK and LongRoPE."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.tools.check import Layer
from tests.check.mutants import Mutant
from tests.check.mutants.text_rotary import rotate_half


class Growing(nn.Module):
    """Causal attention of four heads of eight channels; ``rates`` of every row (rows, 1, pairs) go by its length."""

    def __init__(self, factor: float = 2.0, original: int = 16, base: float = 100.0) -> None:
        super().__init__()
        self.factor, self.original, self.base = factor, original, base
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def rates(self, lengths: Tensor) -> Tensor:
        stretch = (self.factor * lengths / self.original - (self.factor - 1)).clamp(min=1)
        return 1.0 / (self.base * stretch ** (8 / 6)) ** (torch.arange(0, 8, 2) / 8)

    def scale(self) -> float:
        return 1.0

    def lengths(self, positions: Tensor) -> Tensor:
        return positions.amax(-1).double()[:, None, None] + 1

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        phase = positions[..., None].double() * self.rates(self.lengths(positions))
        waves = torch.cat((phase, phase), -1)[:, None]
        cos, sin = (self.scale() * w.to(x.dtype) for w in (waves.cos(), waves.sin()))
        query, key = (y * cos + rotate_half(y) * sin for y in (query, key))
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class LongRoPE(Growing):
    short, long = (1.0, 1.1, 1.3, 1.6), (1.0, 2.0, 3.0, 5.0)

    def rates(self, lengths: Tensor) -> Tensor:
        factors = torch.where(self.is_long(lengths), torch.tensor(self.long), torch.tensor(self.short))
        return 1.0 / (factors * self.base ** (torch.arange(0, 8, 2) / 8))

    def is_long(self, lengths: Tensor) -> Tensor:
        return lengths > self.original

    def scale(self) -> float:
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original))


def grow(layer: Growing, x: Tensor, positions: Tensor | None = None) -> Tensor:
    return layer(x, torch.arange(x.size(1)).expand(x.size(0), -1) if positions is None else positions)


# -- the schemes that they are ----------------------------------------------------------------------------------------


def like_dynamic() -> Any:
    import posenc

    return posenc.RoPE(8, 100.0, scaling=posenc.DynamicNTK(2.0, 16))


def like_longrope() -> Any:
    import posenc

    return posenc.RoPE(8, 100.0, scaling=posenc.LongRoPE(list(LongRoPE.short), list(LongRoPE.long), 64, 2.0))


# -- bugs -------------------------------------------------------------------------------------------------------------


class ByTheLongestRow(Growing):
    """max(position_ids) + 1 over the batch."""

    def lengths(self, positions: Tensor) -> Tensor:
        return super().lengths(positions).amax(0, keepdim=True)


class StretchWithoutTheRest(Growing):
    """f n/L, without - (f - 1): a leap at the trained length."""

    def rates(self, lengths: Tensor) -> Tensor:
        stretch = torch.where(lengths > self.original, self.factor * lengths / self.original, 1.0)
        return 1.0 / (self.base * stretch ** (8 / 6)) ** (torch.arange(0, 8, 2) / 8)


class LastIndexForLength(Growing):
    """max(position_ids), which is one less."""

    def lengths(self, positions: Tensor) -> Tensor:
        return super().lengths(positions) - 1


class ShortForLong(LongRoPE):
    short, long = LongRoPE.long, LongRoPE.short


class LongFromTheLengthOn(LongRoPE):
    """>= where it is >."""

    def is_long(self, lengths: Tensor) -> Tensor:
        return lengths >= self.original


class FactorsMultiplied(LongRoPE):
    def rates(self, lengths: Tensor) -> Tensor:
        return 1.0 / self.base ** (torch.arange(0, 8, 2) / 8) ** 2 / super().rates(lengths)


class ScaleOfTheFactorAlone(LongRoPE):
    """sqrt(1 + ln s), not over ln L."""

    def scale(self) -> float:
        return math.sqrt(1 + math.log(self.factor))


def of_growing(build: Any = Growing) -> Layer:
    return Layer(build=build, call=grow, causal=True, threshold=16, like=like_dynamic)


def of_longrope(build: Any = LongRoPE) -> Layer:
    said = {"causal": True, "threshold": 64, "like": like_longrope, "softmax_scale": 8**-0.5}
    return Layer(build=build, call=grow, options={"original": 64}, **said)


CORRECT = (of_growing(), of_longrope())
MUTANTS = (
    Mutant("dynamic NTK, by the longest row", of_growing(ByTheLongestRow), 19, 6),
    Mutant("dynamic NTK, without - (f - 1)", of_growing(StretchWithoutTheRest), 21, 6),
    Mutant("dynamic NTK, the last index for the length", of_growing(LastIndexForLength), 21, 6),
    Mutant("LongRoPE, short for long", of_longrope(ShortForLong), 21, 6),
    Mutant("LongRoPE, long from the trained length on", of_longrope(LongFromTheLengthOn), 21, 6),
    Mutant("LongRoPE, factors multiplied", of_longrope(FactorsMultiplied), 21, 7),
    Mutant("LongRoPE, the factor alone in the scale", of_longrope(ScaleOfTheFactorAlone), 21, 7),
)
