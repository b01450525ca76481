"""QueryScale that counts otherwise, or scales something else."""

from typing import Any

from torch import Tensor

from posenc import Positions, QueryScale
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import PositionError
from tests.errors.wrong_calls import NO_NUMBERS, NO_SIZES, Row, each
from tests.mutants import Lawless, Mutant, oracles

COMPARED = oracles("query_scale")
RIGHT, LEARNED, TURN = QueryScale._factor, QueryScale._learned, QueryScale.rotation


def of_both(self: QueryScale, *given: Any) -> Rotation:
    made = TURN(self, *given)
    return Rotation(made.query, made.query)


MUTANTS = (
    Mutant("divides", QueryScale, "_factor", lambda self, n: 1 / RIGHT(self, n), COMPARED),
    Mutant("scales keys too", QueryScale, "rotation", of_both, COMPARED),
)


class RoundedQueryScale(QueryScale):
    def _learned(self, log_n: Tensor, context: Context | None) -> Tensor:
        return LEARNED(self, log_n.exp().round().log(), context)


LAWLESS = (Lawless("query_scale", lambda shape: RoundedQueryScale("ssmax", num_heads=shape.num_heads), "fractional"),)

REFUSED = {
    "QueryScale": [
        *each(QueryScale, {"form": "ssmax"}, "num_heads", NO_SIZES, "a whole number of at least 1"),
        *each(QueryScale, {"form": "llama4"}, "length", NO_SIZES, "a whole number of at least 2"),
        *each(QueryScale, {"form": "beam"}, "strength", [n for n in NO_NUMBERS if n[0] is not None], "a finite number"),
        Row(lambda: QueryScale("ssmax"), "num_heads is needed by form 'ssmax', got None"),
        Row(lambda: QueryScale("beam", num_heads=3), "num_heads is not for form 'beam', got 3"),
        Row(lambda: QueryScale("ssmax", num_heads=3, length=9), "length is not for form 'ssmax', got 9"),
        Row(lambda: QueryScale("rerope", length=9, strength=1.0), "strength is not for form 'rerope', got 1.0"),
        Row(lambda: QueryScale("rerope"), "length must be given for form 'rerope', got None"),
        Row(lambda: QueryScale("chunkllama"), "length must be given for form 'chunkllama', got None"),
        Row(
            lambda: QueryScale("qwen2_5_1m", length=4)(Positions.packed([3, 4])),
            "a row of several documents has no single length: give each document its own row…",
        ),
        Row(
            lambda: QueryScale("beam")(Positions.arange(3).shift(-2)),
            "QueryScale encodes positions from 0 on, got -2",
            PositionError,
        ),
    ]
}
