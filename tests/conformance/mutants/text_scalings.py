"""Scaled rotations as people write them: linear, NTK, YaRN, Llama 3; by a row's length, dynamic and LongRoPE."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.conformance import Layer, Rotary
from tests.conformance.mutants import Mutant
from tests.conformance.mutants.text_rotary import Llama, llama, rates, rotate_half

DIM, BASE, FACTOR, ORIGINAL = 32, 500.0, 4.0, 64


class Linear(Llama):
    def __init__(
        self, head_dim: int = DIM, base: float = BASE, factor: float = FACTOR, original: int = ORIGINAL
    ) -> None:
        super().__init__(head_dim, base)
        self.factor, self.original = factor, original

    def inv_freq(self) -> Tensor:
        return rates(self.head_dim, self.base) / self.factor


class NTK(Linear):
    def inv_freq(self) -> Tensor:
        return rates(self.head_dim, self.base * self.factor ** (self.head_dim / (self.head_dim - 2)))


class YaRN(Linear):
    """As its authors' code and transformers' have it."""

    fast, slow = 8.0, 1.0

    def dim(self, rotations: float) -> float:
        """The index that turns so often in the trained text."""
        return self.head_dim * math.log(self.original / (rotations * 2 * math.pi)) / (2 * math.log(self.base))

    def bounds(self) -> tuple[float, float]:
        return max(math.floor(self.dim(self.fast)), 0), min(math.ceil(self.dim(self.slow)), self.head_dim - 1)

    def ramp(self, low: float, high: float) -> Tensor:
        if low == high:
            high += 0.001
        return ((torch.arange(self.head_dim // 2).float() - low) / (high - low)).clamp(0, 1)

    def blend(self, kept: Tensor) -> Tensor:
        plain = rates(self.head_dim, self.base)
        return plain / self.factor * (1 - kept) + plain * kept

    def inv_freq(self) -> Tensor:
        return self.blend(1 - self.ramp(*self.bounds()))

    def mscale(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = super().forward(x, position_ids)
        return cos * self.mscale(), sin * self.mscale()


class Llama3(Linear):
    low, high = 1.0, 4.0

    def inv_freq(self) -> Tensor:
        plain = rates(self.head_dim, self.base)
        wavelength = 2 * math.pi / plain
        longest, shortest = self.original / self.low, self.original / self.high
        scaled = torch.where(wavelength > longest, plain / self.factor, plain)
        smooth = self.smooth(wavelength)
        between = (wavelength >= shortest) & (wavelength <= longest)
        return torch.where(between, (1 - smooth) * plain / self.factor + smooth * plain, scaled)

    def smooth(self, wavelength: Tensor) -> Tensor:
        return (self.original / wavelength - self.low) / (self.high - self.low)


# -- frequencies by the length of a row: whole layers, whose keys are turned when they are asked -----------------------


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


def like_linear() -> Any:
    import posenc

    return posenc.RoPE(DIM, BASE, scaling=posenc.PositionInterpolation(FACTOR))


def like_ntk() -> Any:
    import posenc

    return posenc.RoPE(DIM, BASE, scaling=posenc.NTKAware(FACTOR))


def like_yarn() -> Any:
    import posenc

    return posenc.RoPE(DIM, BASE, scaling=posenc.YaRN(FACTOR, ORIGINAL, beta_fast=8.0, beta_slow=1.0))


def like_llama3() -> Any:
    import posenc

    return posenc.RoPE(DIM, BASE, scaling=posenc.Llama3(FACTOR, ORIGINAL))


def like_dynamic() -> Any:
    import posenc

    return posenc.RoPE(8, 100.0, scaling=posenc.DynamicNTK(2.0, 16))


def like_longrope() -> Any:
    import posenc

    return posenc.RoPE(8, 100.0, scaling=posenc.LongRoPE(list(LongRoPE.short), list(LongRoPE.long), 16, 2.0))


# -- bugs -------------------------------------------------------------------------------------------------------------


class LinearTheOtherWay(Linear):
    """The factor stretches where it should shorten."""

    def inv_freq(self) -> Tensor:
        return rates(self.head_dim, self.base) * self.factor


class LinearOfTheBase(Linear):
    def inv_freq(self) -> Tensor:
        return rates(self.head_dim, self.base * self.factor)


class WholePositions(Linear):
    """positions // factor: four neighbours are one."""

    def inv_freq(self) -> Tensor:
        return rates(self.head_dim, self.base)

    def waves(self, position_ids: Tensor) -> Tensor:
        return super().waves(position_ids // int(self.factor))


class NTKExponent(NTK):
    """d/(d - 1), read off in a hurry."""

    def inv_freq(self) -> Tensor:
        return rates(self.head_dim, self.base * self.factor ** (self.head_dim / (self.head_dim - 1)))


class RampInverted(YaRN):
    """Fast pairs are divided, slow ones stay."""

    def inv_freq(self) -> Tensor:
        return self.blend(self.ramp(*self.bounds()))


class LowAndHighExchanged(YaRN):
    def bounds(self) -> tuple[float, float]:
        low, high = super().bounds()
        return high, low


class RampOverAllChannels(YaRN):
    """Without the 2 before the logarithm of the base: bounds of channels, and a ramp over pairs."""

    def dim(self, rotations: float) -> float:
        return 2 * super().dim(rotations)


class WithoutTruncation(YaRN):
    def bounds(self) -> tuple[float, float]:
        return max(self.dim(self.fast), 0), min(self.dim(self.slow), self.head_dim - 1)


class LengthOfTheStretched(YaRN):
    """The wanted length in the place of the trained one."""

    def dim(self, rotations: float) -> float:
        return (
            self.head_dim * math.log(self.original * self.factor / (rotations * 2 * math.pi)) / 2 / math.log(self.base)
        )


class BetasLeft(YaRN):
    """The configuration's beta_fast is not read: 32."""

    fast = 32.0


class YaRNTheOtherWay(YaRN):
    def blend(self, kept: Tensor) -> Tensor:
        plain = rates(self.head_dim, self.base)
        return plain * self.factor * (1 - kept) + plain * kept


class BlendedPeriods(YaRN):
    """The ramp goes over wavelengths, whose mean is not that of frequencies."""

    def blend(self, kept: Tensor) -> Tensor:
        plain = 1 / rates(self.head_dim, self.base)
        return 1 / (plain * self.factor * (1 - kept) + plain * kept)


class MscaleSquared(YaRN):
    """Meant for scores, and given to queries and keys."""

    def mscale(self) -> float:
        return super().mscale() ** 2


class MscaleMissing(YaRN):
    def mscale(self) -> float:
        return 1.0


class MscaleByTwos(YaRN):
    def mscale(self) -> float:
        return 0.1 * math.log2(self.factor) + 1.0


class MscaleOfCosAlone(YaRN):
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = super().forward(x, position_ids)
        return cos, sin / self.mscale()


class WavelengthsForFrequencies(Llama3):
    """Long waves stay and short ones are divided."""

    def inv_freq(self) -> Tensor:
        plain, right = rates(self.head_dim, self.base), super().inv_freq()
        stays, divided = right == plain, right == plain / self.factor
        return torch.where(stays, plain / self.factor, torch.where(divided, plain, right))


class SmoothTheOtherWay(Llama3):
    def smooth(self, wavelength: Tensor) -> Tensor:
        return 1 - super().smooth(wavelength)


class SmoothOverWavelengths(Llama3):
    """The ramp in wavelengths, with the same ends."""

    def smooth(self, wavelength: Tensor) -> Tensor:
        longest, shortest = self.original / self.low, self.original / self.high
        return (longest - wavelength) / (longest - shortest)


class LowAndHighOfLlama3(Llama3):
    """low_freq_factor read as 4 and high_freq_factor as 8."""

    low, high = 4.0, 8.0


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


def of_scaled(build: Any, like: Any, **claims: Any) -> Rotary:
    said = {"head_dim": DIM, "relative": True, "causal": True, "layout": "half", "direction": "forward"}
    return Rotary(**{"build": build, "call": llama, "like": like, **said, **claims})


def of_yarn(build: Any = YaRN, **claims: Any) -> Rotary:
    return of_scaled(build, like_yarn, **{"scale": 0.1 * math.log(FACTOR) + 1, **claims})


def of_growing(build: Any = Growing, like: Any = like_dynamic) -> Layer:
    return Layer(build=build, call=grow, causal=True, threshold=16, like=like)


CORRECT = (
    of_scaled(Linear, like_linear),
    of_scaled(NTK, like_ntk),
    of_yarn(),
    of_scaled(Llama3, like_llama3),
    of_growing(),
    of_growing(LongRoPE, like_longrope),
)
MUTANTS = (
    Mutant("linear, the factor on the wrong side", of_scaled(LinearTheOtherWay, like_linear), 21, 7),
    Mutant("linear, the base multiplied", of_scaled(LinearOfTheBase, like_linear), 21, 7),
    Mutant("linear, positions rounded down", of_scaled(WholePositions, like_linear), 21, 7),
    Mutant("linear, positions rounded down, neighbours", of_scaled(WholePositions, like_linear, distinct_to=64), 2, 7),
    Mutant("NTK, d/(d - 1)", of_scaled(NTKExponent, like_ntk), 21, 7),
    Mutant("YaRN, the ramp inverted", of_yarn(RampInverted), 21, 7),
    Mutant("YaRN, low and high exchanged", of_yarn(LowAndHighExchanged), 21, 7),
    Mutant("YaRN, the ramp over all channels", of_yarn(RampOverAllChannels), 21, 7),
    Mutant("YaRN, bounds not whole", of_yarn(WithoutTruncation), 21, 7),
    Mutant("YaRN, the wanted length for the trained one", of_yarn(LengthOfTheStretched), 21, 7),
    Mutant("YaRN, beta_fast of the default", of_yarn(BetasLeft), 21, 7),
    Mutant("YaRN, the factor on the wrong side", of_yarn(YaRNTheOtherWay), 21, 7),
    Mutant("YaRN, wavelengths blended", of_yarn(BlendedPeriods), 21, 7),
    Mutant("YaRN, mscale squared", of_yarn(MscaleSquared), 15, 7),
    Mutant("YaRN, mscale squared, like alone", of_yarn(MscaleSquared, scale=None), 21, 7),
    Mutant("YaRN, mscale missing", of_yarn(MscaleMissing), 15, 7),
    Mutant("YaRN, mscale by the logarithm to 2", of_yarn(MscaleByTwos), 15, 7),
    Mutant("YaRN, mscale of cos alone", of_yarn(MscaleOfCosAlone), 15, 7),
    Mutant("Llama 3, wavelengths for frequencies", of_scaled(WavelengthsForFrequencies, like_llama3), 21, 7),
    Mutant("Llama 3, smooth the other way", of_scaled(SmoothTheOtherWay, like_llama3), 21, 7),
    Mutant("Llama 3, smooth over wavelengths", of_scaled(SmoothOverWavelengths, like_llama3), 21, 7),
    Mutant("Llama 3, factors misread", of_scaled(LowAndHighOfLlama3, like_llama3), 21, 7),
    Mutant("dynamic NTK, by the longest row", of_growing(ByTheLongestRow), 19, 6),
    Mutant("dynamic NTK, without - (f - 1)", of_growing(StretchWithoutTheRest), 21, 6),
    Mutant("dynamic NTK, the last index for the length", of_growing(LastIndexForLength), 21, 6),
    Mutant("LongRoPE, short for long", of_growing(ShortForLong, like_longrope), 21, 6),
    Mutant("LongRoPE, long from the trained length on", of_growing(LongFromTheLengthOn, like_longrope), 21, 6),
    Mutant("LongRoPE, factors multiplied", of_growing(FactorsMultiplied, like_longrope), 21, 7),
    Mutant(
        "LongRoPE, the attention factor of the factor alone", of_growing(ScaleOfTheFactorAlone, like_longrope), 21, 7
    ),
)
