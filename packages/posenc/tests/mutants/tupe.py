"""TUPE with positions that meet otherwise."""

from posenc import TUPE
from posenc.schemes import tupe
from tests.hard.wrong import Row, flags, sizes
from tests.mutants import lines, oracles, undrawn

MUTANTS = (
    undrawn(TUPE, "tupe"),
    *lines(
        oracles("tupe"),
        ("leaves out the projections' biases", TUPE, "_projected", "layer.bias.to(rows)", "None"),
        ("has the first key of a group, and not the mean", tupe, "_beside", ".mean(2)", "[:, :, 0]"),
        ("leaves the norm's bias out", TUPE, "rotation", "self.norm.bias.to(dtype)", "0 * self.norm.bias.to(dtype)"),
        ("does not untie its class token", TUPE, "rotation", "if self.untie_cls:", "if False:"),
    ),
)


MODEL = {"num_heads": 6, "head_dim": 4, "max_positions": 9}
REFUSED: dict[str, list[Row]] = {
    "TUPE": [*sizes(TUPE, MODEL, "num_heads", "head_dim", "max_positions", "dim"), *flags(TUPE, MODEL, "untie_cls")]
}
