"""Options that are misread, passed over, or remembered for the next one that is built."""

from functools import cache
from typing import Any

from torch import Tensor

from posenc_check import Rotary
from tests.check.mutants import Mutant
from tests.check.mutants.phase import Turn, turn


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


class TurnsAll(Turn):
    """Turns every channel, whatever rotary_dim says."""

    def __init__(self, rotary_dim: int | None = None, **options: Any) -> None:
        super().__init__(**options)


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
    Mutant("the latest decides for all", unclaimed(FrequenciesOfTheLatest, base=7.0), caught_by=14, pain=7),
    Mutant("the scaling factor is passed over", rotary(FactorIgnored), caught_by=14, pain=7),
    Mutant("every channel is turned", rotary(TurnsAll), caught_by=15, pain=8),
    Mutant("an unknown key is swallowed", unclaimed(WhateverComes, base=7.0), caught_by=14, pain=7),
)
