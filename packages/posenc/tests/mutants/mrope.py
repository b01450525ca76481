"""MRoPE with its pairs dealt out otherwise."""

from functools import partial

import torch

from posenc import MRoPE, Positions
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Rotation
from posenc.schemes import mrope
from tests.errors.wrong_calls import Row, numbers
from tests.mutants import Mutant, moved, oracles

RIGHT, DEALT = MRoPE.rotation, mrope.dealt
COMPARED = oracles("mrope")


def of_the_first_axis(
    self: MRoPE, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
) -> Rotation:
    """Time alone, which text cannot tell from the whole."""
    return RIGHT(self, moved(positions, lambda coords: coords[..., :1].expand_as(coords)), dtype, context)


def transposed(form: mrope.Form, *sections: int) -> tuple[int, ...]:
    return tuple(-axis % 3 for axis in DEALT(form, *sections))


MUTANTS = (
    Mutant("turns by time alone", MRoPE, "rotation", of_the_first_axis, COMPARED),
    Mutant("exchanges rows and columns", mrope, "dealt", transposed, COMPARED),
    Mutant("pairs halves in every form", mrope, "LAYOUTS", dict.fromkeys(mrope.LAYOUTS, "half"), COMPARED),
)


VIDEO = MRoPE(8, (2, 1, 1), "videorope")
REFUSED = {
    "MRoPE": [
        Row(lambda: MRoPE(7, (1, 1, 1)), "head_dim must be even, got 7"),
        Row(lambda: MRoPE(8, (1, 1, 1), rotary_dim=7), "rotary_dim must be even and within 2..head_dim = 8, got 7"),
        Row(lambda: MRoPE(8, (2, 2, 1), rotary_dim=10), "rotary_dim must be even and within …, got 10"),
        Row(lambda: MRoPE(8, (2, 1, 1), rotary_dim=4), "sections must sum to rotary_dim/2 = 2, got (2, 1, 1)"),
        Row(lambda: MRoPE(8, (2, 1, 1), scaling=3), "scaling must be a scaling such as …, got 3"),
        Row(lambda: MRoPE(8, 4), "sections must be the pairs of time, row and column, got 4"),
        Row(lambda: MRoPE(8, (2, 2)), "sections must be the pairs of time, row and column, got (2, 2)"),
        Row(lambda: MRoPE(8, (5, -1, 0)), "sections must be a whole number of at least 0, got -1"),
        Row(lambda: MRoPE(8, (2, 1, 2)), "sections must sum to head_dim/2 = 4, got (2, 1, 2)"),
        Row(
            lambda: MRoPE(8, (1, 1, 2), "ernie"),
            "sections must have equal numbers for row and column for form='ernie', in the order time, row, column, "
            "got (1, 1, 2)",
        ),
        Row(
            lambda: MRoPE(8, (2, 1, 1))(Positions.arange(3)),
            "MRoPE takes 3 coordinates per token, got positions of 1 axes: make them with Positions.multimodal(parts), "
            "or …",
        ),
    ],
    "MRoPE.multimodal": [
        Row(
            lambda: MRoPE(8, (2, 1, 1)).multimodal([3]),
            "form must be 'videorope' for this layout, got 'sections': use Positions.multimodal",
        ),
        *numbers(partial(VIDEO.multimodal, [3]), {}, "spacing", 0),
        Row(
            lambda: VIDEO.multimodal([3, (2, 2, 2)]),
            "parts must end with text, from which generated tokens continue, got (2, 2, 2)",
        ),
        Row(lambda: VIDEO.multimodal([(1, 2), 1]), "parts must be a whole number of at least 0, got (1, 2)"),
    ],
    "Positions.multimodal": [
        Row(lambda: Positions.multimodal(3), "parts must be a sequence of ints and (frames, …), got 3"),
        Row(lambda: Positions.multimodal([-1]), "parts must be a whole number of at least 0, got -1"),
        Row(lambda: Positions.multimodal([(1, 2)]), "parts must be a whole number of at least 0, got (1, 2)"),
        Row(lambda: Positions.multimodal([(1, 2, 2.5)]), "parts must be a whole number of at least 0, got 2.5"),
        Row(lambda: Positions.multimodal([1], start=0.5), "start must be a whole number, got 0.5"),
        Row(lambda: Positions.multimodal([1], device="there"), "device must be one that torch knows, got 'there'"),
    ],
}
