"""PoPE with other phases, or other lengths."""

from posenc import PoPE, Positions
from posenc.schemes.pope import Polar
from tests.errors.wrong_calls import Row
from tests.mutants import lines, oracles

MUTANTS = lines(
    oracles("pope"),
    ("scales by the width it has made", PoPE, "scale", "self.head_dim", "2 * self.head_dim"),
    ("rectifies", Polar, "__call__", "nn.functional.softplus", "nn.functional.relu"),
    ("leaves the phase out", PoPE, "rotation", "angle - delta.clamp(-2 * math.pi, 0.0)[:, None]", "angle"),
)


REFUSED = {
    "PoPE": [
        Row(
            lambda: PoPE(8)(Positions.grid(2, 2)),
            "PoPE takes one coordinate per token, got positions of 2 axes: build it with axes=2",
        )
    ]
}
