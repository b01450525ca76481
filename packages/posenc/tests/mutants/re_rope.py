"""ReRoPE with other bands, other far distances, and bands that are run wrongly."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from posenc import Positions, ReRoPE
from posenc.backends import bands
from posenc.backends.call import Call
from tests.backends import test_parity
from tests.errors.wrong_calls import Row
from tests.mutants import Mutant, lines, oracles

RIGHT_WINDOW, RIGHT_MASK = bands._by_order, bands._by_mask


def one_further(call: Call, start: int | None, end: int | None) -> Mapping[str, Any] | None:
    """The pairs at the edge of a band are in both."""
    return RIGHT_WINDOW(call, start, None if end is None else end + 1)


def mask_of_its_own(call: Call, start: int | None, end: int | None) -> Call:
    return RIGHT_MASK(replace(call, attn_mask=None), start, end)


def parity(place: str, way: str) -> Callable[[], Any]:
    return partial(test_parity.check_run, ("re_rope", place, way, 2, False), backends=("chunked",))


MUTANTS = (
    Mutant("computes the edge of a band twice", bands, "_by_order", one_further, parity("text", "causal")),
    Mutant("forgets the mask where it needs one", bands, "_by_mask", mask_of_its_own, parity("permuted", "a mask")),
    *lines(
        oracles("re_rope"),
        (
            "begins the far band two places late",
            ReRoPE,
            "rotation",
            "(w, self.rotation_at(p.new",
            "(w + 2, self.rotation_at(p.new",
        ),
        ("leaks from 0 on", ReRoPE, "rotation", "(1 - leak) * w", "w"),
    ),
)


REFUSED = {
    "ReRoPE": [
        Row(lambda: ReRoPE(7), "head_dim must be even (channels come in pairs), got 7"),
        Row(lambda: ReRoPE(8, leak=1), "leak must be within [0, 1), got 1"),
        Row(lambda: ReRoPE(8, leak="much"), "leak must be a finite number, got 'much'"),
        Row(lambda: ReRoPE(8)(Positions.grid(2, 2)), "ReRoPE takes one coordinate per token, got positions of 2 axes"),
    ]
}
