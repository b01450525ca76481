"""Scalings by their command-line names, and LongRoPE's factors from a file."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from posenc.rotation.scalings import DynamicNTK, Llama3, NTKAware, PositionInterpolation, Proportional, Scaling, YaRN

SHARE = 0.25  # of the pairs that "proportional" turns, as in Gemma 4
NAMED: Mapping[str, Callable[[float, int], Scaling]] = {
    "linear": lambda factor, length: PositionInterpolation(factor),
    "ntk": lambda factor, length: NTKAware(factor),
    "dynamic": lambda factor, length: DynamicNTK(1.0, length),  # by n/L for a text of n tokens, and no more
    "yarn": lambda factor, length: YaRN(factor, length),
    "llama3": lambda factor, length: Llama3(factor, length),
    "proportional": lambda factor, length: Proportional(SHARE),
}
"""The scaling of a name for a factor and a trained length L. LongRoPE, which needs lists, is not among them."""


def factors_of(path: str, pairs: int, argument: str) -> tuple[list[float], list[float]]:
    """LongRoPE's two lists from a JSON file. ValueError, in the name of the argument, for another form, and for lists
    of other than so many numbers."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
        short, long = ([float(x) for x in told[name]] for name in ("short_factor", "long_factor"))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{argument} must be a JSON file with the lists short_factor and long_factor, got {path!r} ({error})"
        ) from None
    for name, each in (("short_factor", short), ("long_factor", long)):
        if len(each) != pairs:
            raise ValueError(f"{name} of {path} must have {pairs} numbers, one for each pair, got {len(each)}")
    return short, long
