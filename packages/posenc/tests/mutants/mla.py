"""MLA's rotation of other channels, other pairs, or without its scale."""

from posenc import MLA
from tests.errors.wrong_calls import Row, each
from tests.mutants import Mutant, lines, oracles
from tests.schemes import test_rotary_schemes

MUTANTS = (
    Mutant("scales by the slice", MLA, "scale", property(lambda self: self.rope_dim**-0.5), oracles("mla")),
    *lines(
        test_rotary_schemes.test_mla_has_yarns_scale,
        ("forgets YaRN's mscale", MLA, "scale", "if isinstance(self.scaling, YaRN)", "if False"),
    ),
)


REFUSED = {
    "MLA": [
        *each(MLA, {"head_dim": 8, "rope_dim": 4}, "layout", [("halves", "'halves'")], "'half' or 'interleaved'"),
        *each(MLA, {"head_dim": 8, "rope_dim": 4}, "scaling", [(4.0, "4.0")], "a scaling such as …"),
        Row(lambda: MLA(8), "rope_dim must be even and within 2..head_dim = 8, got 64"),
        Row(lambda: MLA(8, 3), "rope_dim must be even and within 2..head_dim = 8, got 3"),
    ]
}
