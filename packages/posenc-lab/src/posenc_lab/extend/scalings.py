"""Defines scalings by their command-line names, and reads LongRoPE's factors from a file."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, arange, float64

from posenc.rotation.scalings import DynamicNTK, Llama3, NTKAware, PositionInterpolation, Proportional, Scaling, YaRN

SHARE = 0.25  # of the pairs that "proportional" rotates, as in Gemma 4
NAMED: Mapping[str, Callable[[float, int], Scaling]] = {
    "linear": lambda factor, length: PositionInterpolation(factor),
    "ntk": lambda factor, length: NTKAware(factor),
    "dynamic": lambda factor, length: DynamicNTK(1.0, length),  # the factor is n/L for a text of n tokens
    "yarn": lambda factor, length: YaRN(factor, length),
    "dynamic_yarn": lambda factor, length: YaRN(1.0, length, dynamic=True),  # likewise
    "llama3": lambda factor, length: Llama3(factor, length),
    "proportional": lambda factor, length: Proportional(SHARE),
}
"""Functions from a factor and a trained length to a scaling, by name; without LongRoPE, which needs lists."""


@dataclass(frozen=True)
class Base:
    """A scaling to the frequencies of RoPE with another base, base^(-2k/d) for pair k, whatever the model's are."""

    base: float

    def __call__(self, theta: Tensor) -> tuple[Tensor, float]:
        pairs = len(theta)
        return self.base ** (-arange(pairs, dtype=float64, device=theta.device) / pairs), 1.0


def factors_of(path: str, pairs: int, argument: str) -> tuple[list[float], list[float]]:
    """LongRoPE's two lists from a JSON file. ValueError, naming the argument, for another format, or for lists that do
    not have ``pairs`` numbers."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
        short, long = ([float(x) for x in told[name]] for name in ("short_factor", "long_factor"))
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{argument} must be a JSON file with the lists short_factor and long_factor, got {path!r} ({error})"
        ) from None
    for name, each in (("short_factor", short), ("long_factor", long)):
        if len(each) != pairs:
            raise ValueError(f"{name} of {path} must have {pairs} numbers, one for each pair, got {len(each)}")
    return short, long
