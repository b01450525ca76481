"""ReRoPE with other bands, other far distances, and bands that are run wrongly."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc import Positions, ReRoPE
from posenc.backends import bands
from posenc.backends.call import Call
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Band, Rotation
from posenc.positions.tiles import Visibility
from posenc.rotation.phases import turned_to
from tests.backends import test_parity
from tests.cases import HEAD_DIM
from tests.hard.wrong import NO_WORDS, Row, each, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, index, oracles


def rotation(
    reach: Callable[[int], int] = lambda w: w,
    query: Callable[[Tensor, int, float], Tensor] = lambda p, w, leak: leak * p + (1 - leak) * w,
    key: Callable[[Tensor, int, float], Tensor] = lambda p, w, leak: leak * p,
    coords: Callable[[Tensor], Tensor] = lambda p: p,
    base: Callable[[float], float] = lambda base: base,
    layout: str | None = None,
) -> Callable[..., Rotation]:
    """The method as it is, but for one thing."""

    def wrong(
        self: ReRoPE, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
    ) -> Rotation:
        p, w = coords(positions.coords).double(), self.window
        near, of_query, of_key = (
            turned_to(at, self.head_dim, base(self.base), layout or self.layout, dtype)  # type: ignore[arg-type]
            for at in (p, query(p, w, self.leak).expand(p.shape), key(p, w, self.leak))
        )
        return Rotation(near, near, bands=(Band(max(1, reach(w)), of_query, of_key),))

    return wrong


RIGHT_WINDOW, RIGHT_MASK = bands._by_order, bands._by_mask


def one_further(call: Call, start: int | None, end: int | None) -> Mapping[str, Any] | None:
    """The pairs at the edge of a band are in both."""
    return RIGHT_WINDOW(call, start, None if end is None else end + 1)


def without_its_window(call: Call, start: int | None, end: int | None) -> Mapping[str, Any] | None:
    found = RIGHT_WINDOW(call, start, end)
    if found is None or start is None:
        return found
    return {"visibility": Visibility(False, None, -start)}


def mask_of_its_own(call: Call, start: int | None, end: int | None) -> Call:
    return RIGHT_MASK(replace(call, attn_mask=None), start, end)


def everywhere(call: Call) -> bool:
    return True


def parity(place: str, way: str) -> Callable[[], Any]:
    return partial(test_parity.check_run, ("re_rope", place, way, 2, False), backends=("chunked",))


COMPARED = oracles("re_rope")
MUTANTS = (
    Mutant("begins the far band two places late", ReRoPE, "rotation", rotation(reach=lambda w: w + 2), COMPARED),
    Mutant("begins the far band one place early", ReRoPE, "rotation", rotation(reach=lambda w: w - 1), COMPARED),
    Mutant(
        "has far keys one place nearer",
        ReRoPE,
        "rotation",
        rotation(query=lambda p, w, k: k * p + (1 - k) * w - 1),
        COMPARED,
    ),
    Mutant("turns far keys to their positions", ReRoPE, "rotation", rotation(key=lambda p, w, k: p), COMPARED),
    Mutant("leaks from 0 on", ReRoPE, "rotation", rotation(query=lambda p, w, k: k * p + w), COMPARED),
    Mutant("counts tokens and reads no coordinates", ReRoPE, "rotation", rotation(coords=index), COMPARED),
    Mutant("ignores the base", ReRoPE, "rotation", rotation(base=lambda base: 10_000.0), COMPARED),
    Mutant("is half where interleaved was asked for", ReRoPE, "rotation", rotation(layout="half"), COMPARED),
    Mutant("computes the edge of a band twice", bands, "_by_order", one_further, parity("text", "causal")),
    Mutant(
        "forgets the window of the far band", bands, "_by_order", without_its_window, parity("text", "causal, a window")
    ),
    Mutant("forgets the mask where it needs one", bands, "_by_mask", mask_of_its_own, parity("permuted", "a mask")),
    Mutant(
        "takes every order for a line of coordinates",
        bands,
        "rises_with_order",
        everywhere,
        parity("a prefix", "causal"),
    ),
)


class NearerReRoPE(ReRoPE):
    """Far keys of the even positions are turned as they stand."""

    rotation = rotation(key=lambda p, w, leak: p * (1 - p % 2))


class AbsoluteReRoPE(ReRoPE):
    """Deaf to its base: every law holds."""

    rotation = rotation(base=lambda base: 10_000.0)


LAWLESS = (Lawless("re_rope", lambda shape: NearerReRoPE(shape.head_dim, 8), "relative"),)
UNTRUE = (Untrue("re_rope", lambda: AbsoluteReRoPE(HEAD_DIM, 3, 313.0)),)
OF_TEXTS = {"head_dim": 8}
REFUSED = {
    "ReRoPE": [
        *sizes(ReRoPE, OF_TEXTS, "head_dim", "window"),
        *numbers(ReRoPE, OF_TEXTS, "base", 1),
        *each(ReRoPE, OF_TEXTS, "layout", NO_WORDS, "'half' or 'interleaved'"),
        Row(lambda: ReRoPE(7), "head_dim must be even (channels come in pairs), got 7"),
        Row(lambda: ReRoPE(8, leak=1), "leak must be within [0, 1), got 1"),
        Row(lambda: ReRoPE(8, leak="much"), "leak must be a finite number, got 'much'"),
        Row(lambda: ReRoPE(8)(Positions.grid(2, 2)), "ReRoPE takes one coordinate per token, got positions of 2 axes"),
    ],
}
