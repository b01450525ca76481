"""TUPE with positions that meet otherwise."""

from posenc import TUPE
from posenc.schemes import tupe
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
