"""Makes scalings by their command-line names."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, arange, float64

from posenc.rotation.scalings import (
    DynamicNTK,
    Llama3,
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
"""Functions from a factor and a trained length to a scaling, by name."""


@dataclass(frozen=True)
class Base:
    """A scaling to the frequencies of RoPE with another base, base^(-2k/d) for pair k, whatever the model's are."""

    base: float

    def __call__(self, theta: Tensor) -> tuple[Tensor, float]:
        pairs = len(theta)
        return self.base ** (-arange(pairs, dtype=float64, device=theta.device) / pairs), 1.0


def scaling_of(name: str, settings: Extension) -> Any:
    """The scaling of a name, for a factor and a trained length; None for none."""
    if name == PLAIN:
        return None
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
