"""Pairs of channels that are not those of the weights."""

from typing import Any

from posenc_check import Rotary
from tests.check.mutants import Mutant
from tests.check.mutants.phase import Turn, turn


class TurnsAll(Turn):
    """Turns every channel, whatever rotary_dim says."""

    def __init__(self, rotary_dim: int | None = None, **options: Any) -> None:
        super().__init__(**options)


def rotary(build: Any, layout: str = "half") -> Rotary:
    other = "interleaved" if layout == "half" else "half"
    return Rotary(
        build=build,
        call=turn,
        options={"layout": layout, "rotary_dim": 12},
        layout=layout,
        rotary_dim=12,
        other_layout={"layout": other},
        relative=True,
        causal=True,
    )


CORRECT: tuple[Any, ...] = ()  # that of configuration.py makes all claims that are made here
MUTANTS = (Mutant("every channel is turned", rotary(TurnsAll), caught_by=15, pain=8),)
