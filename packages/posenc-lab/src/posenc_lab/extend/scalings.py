"""Makes scalings by their command-line names, and reads LongRoPE's factors from a file."""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, arange, float64

from posenc.rotation.scalings import (
    DynamicNTK,
    Llama3,
    LongRoPE,
    NTKAware,
    PositionInterpolation,
    Scaling,
    YaRN,
)
from posenc_lab.extend.settings import PLAIN, Extension

NAMED: Mapping[str, Callable[[float, int], Scaling]] = {
    "linear": lambda factor, length: PositionInterpolation(factor),
    "ntk": lambda factor, length: NTKAware(factor),
    "dynamic": lambda factor, length: DynamicNTK(1.0, length),  # the factor is n/L for a text of n tokens
    "yarn": lambda factor, length: YaRN(factor, length),
    "dynamic_yarn": lambda factor, length: YaRN(1.0, length, dynamic=True),  # likewise
    "llama3": lambda factor, length: Llama3(factor, length),
}
"""Functions from a factor and a trained length to a scaling, by name; without LongRoPE, which needs lists."""

Factors = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Base:
    """A scaling to the frequencies of RoPE with another base, base^(-2k/d) for pair k, whatever the model's are."""

    base: float

    def __call__(self, theta: Tensor) -> tuple[Tensor, float]:
        pairs = len(theta)
        return self.base ** (-arange(pairs, dtype=float64, device=theta.device) / pairs), 1.0


def scaling_of(name: str, settings: Extension, factors: Factors | None = None) -> Any:
    """The scaling of a name, for a factor and a trained length; None for none."""
    if name == PLAIN:
        return None
    if name == "longrope":
        assert factors is not None
        short, long = factors
        return LongRoPE(tuple(short), tuple(long), settings.trained, factor=settings.factor)
    if name == "base":
        assert settings.base is not None
        return Base(settings.base)
    return NAMED[name](settings.factor, settings.trained)


def patched(model: Any, scaling: Any) -> AbstractContextManager[Any]:
    """The model with that scaling, inside the context."""
    if scaling is None:
        return nullcontext()
    from posenc.huggingface import patch

    made: AbstractContextManager[Any] = patch(model, scaling)
    return made


def factors_of(path: str, pairs: int) -> Factors:
    """LongRoPE's two lists from a JSON file. ValueError for another format, or for lists that do not have ``pairs``
    numbers."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
        short, long = ([float(x) for x in told[name]] for name in ("short_factor", "long_factor"))
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"factors must be a JSON file with the lists short_factor and long_factor, got {path!r} ({error})"
        ) from None
    for name, each in (("short_factor", short), ("long_factor", long)):
        if len(each) != pairs:
            raise ValueError(f"{name} of {path} must have {pairs} numbers, one for each pair, got {len(each)}")
    return short, long
