"""xPos that fades otherwise, counts from elsewhere, or leaves the numbers that there are."""

from torch import Tensor

from posenc import Positions, XPos
from posenc.scheme import Scheme
from posenc.schemes import xpos
from tests.errors.wrong_calls import Row, each
from tests.mutants import Mutant, lines, oracles
from tests.schemes import test_rotary_schemes


def with_padding(positions: Positions, coords: Tensor) -> tuple[Tensor, float]:
    low, high = coords.amin(1), coords.amax(1)
    return (low + high) / 2, float((high - low).max())


COMPARED = oracles("xpos")
MUTANTS = (
    *lines(COMPARED, ("has another zeta", XPos, "_decay", "0.4) / 1.4", "0.5) / 1.5")),
    Mutant("counts keys from their own middle", XPos, "bind", Scheme.bind, COMPARED),
    Mutant("takes padding for text", xpos, "_middle", with_padding, test_rotary_schemes.test_padding_moves_no_origin),
)


REFUSED = {
    "XPos": [
        *each(XPos, {"head_dim": 8}, "layout", [("halves", "'halves'")], "'half' or 'interleaved'"),
        Row(lambda: XPos(7), "head_dim must be even (channels come in pairs), got 7"),
        Row(
            lambda: XPos(8)(Positions.grid(2, 2)),
            "XPos takes one coordinate per token, got positions of 2 axes: build it with axes=2",
        ),
    ]
}
