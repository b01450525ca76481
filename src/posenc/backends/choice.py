"""Which backend runs a call: the one asked for, or the one that "auto" takes, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from posenc.arguments import check_choice
from posenc.backends import by_distance
from posenc.backends.call import Backend, Call
from posenc.backends.chunked import CHUNKED
from posenc.backends.flex import FLEX
from posenc.backends.near_far import NEAR_FAR, band_width
from posenc.backends.reference import REFERENCE
from posenc.backends.sdpa import SDPA
from posenc.positions import same_run, sees_all

BACKENDS: tuple[Backend, ...] = (SDPA, NEAR_FAR, FLEX, CHUNKED, REFERENCE)

# As many scores as this may be held at once, 16 MB in float32, of all heads; and of one head, as many as this are done
# densely before a loop over blocks has begun (measured on a CPU: docs/log.md).
FEW_SCORES = 2**22
FEW_PAIRS = 2**14
# Below this many band widths of keys, what is near is most of it.
BANDS = 8


@dataclass(frozen=True)
class Explanation:
    """What ``backend="auto"`` takes for a call, why, and the reason of every backend that could not run it."""

    backend: str
    why: str
    refusals: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{self.backend}: {self.why}"]
        lines += [f"not {name}: {reason}" for name, reason in self.refusals.items()]
        return "\n".join(lines)


def named(call: Call, name: str) -> Backend:
    """The backend of that name. ValueError where there is none, or it cannot run the call."""
    known = {backend.name: backend for backend in BACKENDS}
    check_choice("backend", name, ("auto", *known))
    reason = known[name].refuses(call)
    if reason is not None:
        able = [backend.name for backend in BACKENDS if backend.refuses(call) is None]
        raise ValueError(f"backend {name!r} cannot run this: {reason}; these can: {', '.join(able)}")
    return known[name]


def choose(call: Call) -> tuple[Backend, str]:
    """The backend that "auto" takes, and why."""
    batch, heads, queries, _ = call.query.shape
    keys = call.key.size(2)
    if call.is_forward_mode:
        return REFERENCE, "no fused kernel has a forward-mode derivative"
    dense = SDPA if SDPA.refuses(call) is None else REFERENCE
    if dense is SDPA and len(call.unfolded) == 0 and call.attn_mask is None and _needs_no_mask(call):
        return SDPA, "nothing is added to the scores, so it is the fused kernel alone"
    if call.has_few_queries and dense is SDPA:
        return SDPA, "there are few queries: a row of scores for each is the least work"
    if not torch.compiler.is_compiling() and dense is SDPA and queries * keys <= FEW_PAIRS:
        return SDPA, "the tokens are few enough to lay out a mask"
    is_near_far = NEAR_FAR.refuses(call) is None
    if is_near_far and (torch.compiler.is_compiling() or BANDS * band_width(call) <= keys):
        return NEAR_FAR, "past some distance the bias is constant or a straight line"
    if call.has_few_queries:
        return REFERENCE, "there are few queries: a row of scores for each is the least work"
    if call.query.device.type == "cuda" and FLEX.refuses(call) is None:
        return FLEX, "one fused kernel computes the score function as it goes"
    if by_distance.suits(call):
        return CHUNKED, "the bias is a function of the distance, laid out one block at a time"
    if batch * heads * queries * keys <= FEW_SCORES:
        return dense, "the scores are few enough to lay out a mask" if dense is SDPA else "the scores are few"
    return CHUNKED, "the scores are too many to hold at once"


def _needs_no_mask(call: Call) -> bool:
    x, y = call.query_positions, call.key_positions
    return (call.is_causal and same_run(x, y)) or sees_all(x, y, is_causal=call.is_causal)


def explain(call: Call) -> Explanation:
    """What "auto" takes for a call, and why not the others."""
    backend, why = choose(call)
    reasons = {other.name: other.refuses(call) for other in BACKENDS}
    return Explanation(backend.name, why, {name: reason for name, reason in reasons.items() if reason is not None})
