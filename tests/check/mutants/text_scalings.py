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


# -- bugs -------------------------------------------------------------------------------------------------------------


class WholePositions(Linear):
    """positions // factor: four neighbours are one."""

    def inv_freq(self) -> Tensor:
        return rates(self.head_dim, self.base)

    def waves(self, position_ids: Tensor) -> Tensor:
        return super().waves(position_ids // int(self.factor))


class MscaleMissing(YaRN):
    def mscale(self) -> float:
        return 1.0


def of_scaled(build: Any, like: Any, **claims: Any) -> Rotary:
    said = {"head_dim": DIM, "relative": True, "causal": True, "layout": "half", "direction": "forward"}
    return Rotary(**{"build": build, "call": llama, "like": like, **said, **claims})


def of_yarn(build: Any = YaRN, **claims: Any) -> Rotary:
    return of_scaled(build, like_yarn, **{"scale": 0.1 * math.log(FACTOR) + 1, **claims})


CORRECT = (of_scaled(Linear, like_linear), of_scaled(NTK, like_ntk), of_yarn())
MUTANTS = (
    Mutant("linear, positions rounded down", of_scaled(WholePositions, like_linear), 6, 7),
    Mutant("linear, positions rounded down, neighbours", of_scaled(WholePositions, like_linear, distinct_to=64), 2, 7),
    Mutant("YaRN, mscale missing", of_yarn(MscaleMissing), 15, 7),
)
