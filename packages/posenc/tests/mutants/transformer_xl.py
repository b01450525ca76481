"""TransformerXL with other distances, another sinusoid, or its terms mixed up."""

from torch import Tensor

from posenc import TransformerXL
from posenc.schemes import transformer_xl
from tests.mutants import Mutant, lines, oracles


def single_precision(coords: Tensor, theta: Tensor) -> Tensor:
    return coords.float()[..., None] * theta.float()


COMPARED = oracles("transformer_xl")
MUTANTS = (
    Mutant("computes phases in single precision", transformer_xl, "phases", single_precision, COMPARED),
    *lines(
        COMPARED,
        ("has no term of segments", TransformerXL, "score", "if self.segment is None:", "if True:"),
        ("exchanges u and v", TransformerXL, "score", "shift=self.position_bias", "shift=self.content_bias"),
        ("takes key minus query", TransformerXL, "_sinusoid", "phases(-r", "phases(r"),
        ("begins with cosines", TransformerXL, "_sinusoid", "(angle.sin(), angle.cos())", "(angle.cos(), angle.sin())"),
    ),
)
