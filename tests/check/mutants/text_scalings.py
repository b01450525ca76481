"""Scaled rotations as people write them: linear, NTK, YaRN, Llama 3."""

import math
from typing import Any

import torch
from torch import Tensor

from posenc.tools.check import Rotary
from tests.check.mutants import Mutant
from tests.check.mutants.text_rotary import Llama, llama, rates

DIM, BASE, FACTOR, ORIGINAL = 32, 500.0, 4.0, 256


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
    """Fast pairs are divided, slow ones stay: so do low and high where they are exchanged."""

    def inv_freq(self) -> Tensor:
        return self.blend(self.ramp(*self.bounds()))


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


def of_scaled(build: Any, like: Any, **claims: Any) -> Rotary:
    said = {"head_dim": DIM, "relative": True, "causal": True, "layout": "half", "direction": "forward"}
    return Rotary(**{"build": build, "call": llama, "like": like, **said, **claims})


def of_yarn(build: Any = YaRN, **claims: Any) -> Rotary:
    return of_scaled(build, like_yarn, **{"scale": 0.1 * math.log(FACTOR) + 1, **claims})


CORRECT = (
    of_scaled(Linear, like_linear),
    of_scaled(NTK, like_ntk),
    of_yarn(),
    of_scaled(Llama3, like_llama3),
)
MUTANTS = (
    Mutant("linear, the factor on the wrong side", of_scaled(LinearTheOtherWay, like_linear), 21, 7),
    Mutant("linear, the base multiplied", of_scaled(LinearOfTheBase, like_linear), 21, 7),
    Mutant("linear, positions rounded down", of_scaled(WholePositions, like_linear), 6, 7),
    Mutant("linear, positions rounded down, neighbours", of_scaled(WholePositions, like_linear, distinct_to=64), 2, 7),
    Mutant("NTK, d/(d - 1)", of_scaled(NTKExponent, like_ntk), 21, 7),
    Mutant("YaRN, the ramp inverted", of_yarn(RampInverted), 21, 7),
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
)
