"""LeRoPE whose alpha does something else, or nothing."""

from typing import Any

from posenc import LeRoPE
from posenc.rotary import Rotary
from posenc.rotation.phases import frequencies, in_double
from tests.errors.wrong_calls import Row, each
from tests.mutants import Mutant, oracles
from tests.schemes import test_rotary_schemes


def before_the_scaling(self: LeRoPE, device: Any = None, lengths: Any = None) -> Any:
    """The scaling sees learned frequencies, and YaRN blends others."""
    theta = frequencies(self.rotary_dim, self.base, device) * in_double(self.alpha).exp()
    scaled, factor = (theta, 1.0) if self.scaling is None else self.scaling(theta)
    return scaled[None], factor


COMPARED = oracles("le_rope")
MUTANTS = (
    Mutant("ignores alpha", LeRoPE, "frequencies", Rotary.frequencies, COMPARED),
    Mutant(
        "scales learned frequencies",
        LeRoPE,
        "frequencies",
        before_the_scaling,
        test_rotary_schemes.test_mistral_large_4_turns_by_learned_frequencies_over_yarn,
    ),
)


REFUSED = {
    "LeRoPE": [
        *each(LeRoPE, {"head_dim": 8}, "layout", [("halves", "'halves'")], "'half' or 'interleaved'"),
        *each(LeRoPE, {"head_dim": 8}, "scaling", [(4.0, "4.0")], "a scaling such as …"),
        *each(LeRoPE, {"head_dim": 8}, "first_channel", [(7, "7"), (-1, "-1")], "a whole number within 0..6"),
        Row(
            lambda: LeRoPE(8, rotary_dim=6, first_channel=4),
            "rotary_dim must be even and within 2..head_dim - first_channel = 4, got 6",
        ),
    ]
}
