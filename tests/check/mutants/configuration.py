"""Options that are misread, passed over, or remembered for the next one that is built."""

from functools import cache
from typing import Any

from torch import Tensor

from posenc.tools.check import Rotary
from tests.check.mutants import Mutant
from tests.check.mutants.phase import Turn, turn


class BaseIgnored(Turn):
    def __init__(self, head_dim: int = 16, base: float = 10_000.0, **options: Any) -> None:
        super().__init__(head_dim, **options)


@cache
def remembered(rotary_dim: int) -> list[Tensor]:
    return []


class RememberedFrequencies(Turn):
    """A cache that looks at the width alone: whoever comes first decides on the base for all."""

    def theta(self) -> Tensor:
        kept = remembered(self.rotary_dim)
        if not kept:
            kept.append(super().theta())
        return kept[0]


@cache
def latest() -> dict[str, Tensor]:
    return {}


class FrequenciesOfTheLatest(Turn):
    """The frequencies of whichever was built last, for all."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        latest()["theta"] = super().theta()

    def theta(self) -> Tensor:
        return latest()["theta"]


class FactorIgnored(Turn):
    def theta(self) -> Tensor:
        return super().theta() * self.factor


class LengtheningForgotten(Turn):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "lengthening": 1.0})


class FrequenciesOverTheHead(Turn):
    """Those of a head of 16 channels, though 12 are turned."""

    def theta(self) -> Tensor:
        whole = Turn(16, self.base, factor=self.factor)
        return whole.theta()[: self.rotary_dim // 2]


class WhateverComes(Turn):
    def __init__(self, head_dim: int = 16, base: float = 10_000.0, factor: float = 1.0, **rest: Any) -> None:
        super().__init__(head_dim, base, factor=factor, **{k: v for k, v in rest.items() if k != "scaling_typ"})


def rotary(build: Any, base: float = 500.0, factor: float = 4.0, lengthening: float = 1.25) -> Rotary:
    """12 of 16 channels turned, with positions divided by the factor and lengthened."""
    return Rotary(
        build=build,
        call=turn,
        options={"base": base, "factor": factor, "lengthening": lengthening, "rotary_dim": 12},
        frequencies=[base ** (-2 * c / 12) / factor for c in range(6)],
        layout="half",
        rotary_dim=12,
        other_layout={"layout": "interleaved"},
        scale=lengthening,
        relative=True,
        causal=True,
        varied={"base": 10_000.0, "factor": 8.0, "lengthening": 1.5, "rotary_dim": 8},
        refused=[{"scaling_typ": "yarn"}, {"rotary_dim": 5}, {"head_dim": 15}],
    )


def unclaimed(build: Any, **varied: Any) -> Rotary:
    """The same where no frequencies are claimed."""
    return Rotary(build=build, call=turn, options={"base": 500.0}, varied=varied, refused=[{"scaling_typ": "yarn"}])


CORRECT = (rotary(Turn),)
MUTANTS = (
    Mutant("the base is passed over", unclaimed(BaseIgnored, base=10_000.0), caught_by=14, pain=7),
    Mutant(
        "frequencies are remembered without the base", unclaimed(RememberedFrequencies, base=7.0), caught_by=14, pain=7
    ),
    Mutant("the latest decides for all", unclaimed(FrequenciesOfTheLatest, base=7.0), caught_by=14, pain=7),
    Mutant("the scaling factor is passed over", rotary(FactorIgnored), caught_by=14, pain=7),
    Mutant("the attention factor is forgotten", rotary(LengtheningForgotten), caught_by=14, pain=7),
    Mutant("frequencies of another width", rotary(FrequenciesOverTheHead), caught_by=14, pain=7),
    Mutant("an unknown key is swallowed", unclaimed(WhateverComes, base=7.0), caught_by=14, pain=7),
)
