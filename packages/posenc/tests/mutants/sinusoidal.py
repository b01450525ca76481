"""Sinusoidal with other frequencies, in another order, or in too little precision."""

from functools import partial

import torch
from torch import Tensor

from posenc import Sinusoidal
from posenc.rotation.phases import frequencies
from posenc.schemes import sinusoidal
from tests.mutants import Mutant, oracles
from tests.mutants.backends import Line
from tests.schemes import test_precision


def over_dim(self: Sinusoidal, device: torch.device | None = None) -> Tensor:
    return frequencies(self.dim // self.axes, self.base, device)


def single_precision(coords: Tensor, theta: Tensor) -> Tensor:
    return coords.float()[..., None] * theta.float()


COMPARED = oracles("sinusoidal")
PRECISE = partial(test_precision.check_sinusoidal, "built", "interleaved")
MUTANTS = (
    Mutant("divides tensor2tensor's by dim/2", Sinusoidal, "_frequencies", over_dim, COMPARED),
    Mutant("computes phases in single precision", sinusoidal, "phases", single_precision, PRECISE),
    Line(
        "begins with cosines",
        Sinusoidal,
        "table",
        ("(angle.sin(), angle.cos())", "(angle.cos(), angle.sin())"),
        COMPARED,
    ),
    Line(
        "takes the axes in reverse", Sinusoidal, "table", ("coords.unbind(-1)", "coords.flip(-1).unbind(-1)"), COMPARED
    ),
)
