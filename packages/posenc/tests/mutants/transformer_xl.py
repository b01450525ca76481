"""TransformerXL with other distances, another sinusoid, or its terms mixed up."""

from torch import Tensor

from posenc import TransformerXL
from posenc.schemes import transformer_xl
from tests.mutants import Mutant, oracles
from tests.mutants.backends import Line


def single_precision(coords: Tensor, theta: Tensor) -> Tensor:
    return coords.float()[..., None] * theta.float()


SCORE = TransformerXL.score


def mutant(bug: str, wrong: object) -> Mutant:
    return Mutant(bug, TransformerXL, "score", wrong, oracles("transformer_xl"))


MUTANTS = (
    mutant("has no term of segments", lambda *given: SCORE(*given)[:2]),
    Mutant(
        "computes phases in single precision", transformer_xl, "phases", single_precision, oracles("transformer_xl")
    ),
    Line(
        "exchanges u and v",
        TransformerXL,
        "score",
        ("shift=self.position_bias", "shift=self.content_bias"),
        oracles("transformer_xl"),
    ),
    Line("takes key minus query", TransformerXL, "_sinusoid", ("phases(-r", "phases(r"), oracles("transformer_xl")),
    Line(
        "begins with cosines",
        TransformerXL,
        "_sinusoid",
        ("(angle.sin(), angle.cos())", "(angle.cos(), angle.sin())"),
        oracles("transformer_xl"),
    ),
)
