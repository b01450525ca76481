"""Sinusoidal with other frequencies, in another order, or in too little precision."""

from functools import partial

from torch import Tensor

from posenc import Sinusoidal
from posenc.schemes import sinusoidal
from tests.mutants import Mutant, lines, oracles
from tests.schemes import test_precision


def single_precision(coords: Tensor, theta: Tensor) -> Tensor:
    return coords.float()[..., None] * theta.float()


COMPARED = oracles("sinusoidal")
PRECISE = partial(test_precision.test_sinusoidal_vectors, "built", "interleaved")
MUTANTS = (
    Mutant("computes phases in single precision", sinusoidal, "phases", single_precision, PRECISE),
    *lines(
        COMPARED,
        ("divides tensor2tensor's by dim/2", Sinusoidal, "_frequencies", 'self.layout == "tensor2tensor"', "False"),
        ("begins with cosines", Sinusoidal, "table", "(angle.sin(), angle.cos())", "(angle.cos(), angle.sin())"),
        ("takes the axes in reverse", Sinusoidal, "table", "coords.unbind(-1)", "coords.flip(-1).unbind(-1)"),
    ),
)
