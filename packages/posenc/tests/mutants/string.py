"""STRING whose basis is not orthogonal, or whose generators are others."""

from posenc import STRING
from tests.errors.wrong_calls import Row
from tests.mutants import lines, oracles
from tests.mutants.lie_re import refused

BACK = "return Rotation(InBasis(of_both.basis, pair_rotation.inverse()), "
MUTANTS = lines(
    oracles("string"),
    ("turns by the negative angle", STRING, "rotation", "angle = (in_double", "angle = -(in_double"),
    ("has the basis transposed", STRING, "rotation", "basis.to(dtype=dtype", "basis.mT.to(dtype=dtype"),
    ("turns queries the other way", STRING, "rotation", "return Rotation(of_both, ", BACK),
)


REFUSED = {
    "STRING": [
        Row(lambda: STRING(7), "head_dim must be even (channels come in pairs), got 7"),
        Row(lambda: STRING(4, 3), "head_dim must be at least 2 axes = 6, got 4"),
        *refused(STRING),
    ]
}
