"""Which backend runs a call: the one asked for, or the one that "auto" takes, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from posenc.arguments import check_choice
from posenc.backends.ahead import why_ahead
from posenc.backends.call import Backend, Call
from posenc.backends.chunked import CHUNKED
from posenc.backends.flex import FLEX
from posenc.backends.native.backend import NATIVE, keeps_bfloat16, leaves_out
from posenc.backends.native.operator import CHANNELS
from posenc.backends.plane import is_planar
from posenc.backends.reference import REFERENCE
from posenc.backends.sdpa import SDPA, is_plain
from posenc.backends.skipping import computed_share
from posenc.backends.tiled import TILED, has_far_keys, width_of
from posenc.backends.triton.backend import TRITON
from posenc.pieces import Meeting
from posenc.tiles import tiles

BACKENDS: tuple[Backend, ...] = (SDPA, NATIVE, TRITON, TILED, FLEX, CHUNKED, REFERENCE)

# As many scores as this may be held at once, 16 MB in float32, of all heads; and of one head, as many as this are done
# densely before a loop over blocks has begun, or the kernel has (measured on a CPU: docs/log.md).
FEW_SCORES = 2**22
FEW_PAIRS = 2**14
FEW_FOR_KERNEL = 2**11
# For so many keys a call of the kernel costs less than passes over them (measured on a CPU: docs/log.md).
MANY_KEYS = 2**13
# Tiles that see fewer pairs than this on average cost more in calls than they save.
PAIRS_PER_TILE = 2**12

PLAIN = "nothing is added to the scores, so it is the fused kernel alone"


@dataclass(frozen=True)
class Explanation:
    """What ``backend="auto"`` takes for a call, why, and the reason of every backend that could not run it.

    ``computed`` is the share of what may be seen that is computed, at most, in blocks of 64 queries and keys: less than
    1 where scores fade so far with the distance that the rest cannot count (``skip_below``). Where far pairs are turned
    otherwise than near ones and each band is a call by itself, ``bands`` says of each what it takes.
    """

    backend: str
    why: str
    refusals: Mapping[str, str]
    computed: float = 1.0
    bands: tuple[tuple[str, Explanation], ...] = ()

    def __str__(self) -> str:
        if self.bands:
            return "\n".join([self.why, *(f"{which}: {told}" for which, told in self.bands)])
        lines = [f"{self.backend}: {self.why}"]
        if self.computed < 1:
            lines.append(f"at most {self.computed:.0%} of what may be seen is computed: the rest is too faint to count")
        lines += [f"not {name}: {reason}" for name, reason in self.refusals.items()]
        return "\n".join(lines)


def named(call: Call, name: str, needs_lse: str | None = None) -> Backend:
    """The backend of that name. ValueError where there is none, or it cannot run the call; ``needs_lse`` says what the
    log-sum-exp is for, where the caller of `attention` has not asked for it."""
    known = {backend.name: backend for backend in BACKENDS}
    check_choice("backend", name, ("auto", *known))
    reason = known[name].refuses(call)
    if reason is not None:
        if needs_lse is not None and known[name].refuses(replace(call, return_lse=False)) != reason:
            reason = f"{reason}, {needs_lse}"
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
    has_plane = any(map(is_planar, call.pieces))
    if dense is SDPA and not has_plane and is_plain(call):  # nothing asks whether there is a kernel
        ahead = why_ahead(call)
        if ahead is not None and NATIVE.refuses(call) is None:
            return NATIVE, ahead
        return SDPA, PLAIN
    has_kernel = NATIVE.refuses(call) is None
    is_even = call.query.size(3) % CHANNELS == 0  # else channels are added, by copies
    most = FEW_FOR_KERNEL if has_kernel and is_even else FEW_PAIRS
    is_few = not torch.compiler.is_compiling() and queries * keys <= most
    # Into query and key a plane can be taken too, but they grow wide.
    is_plane = has_plane and has_kernel and not call.has_few_queries and not is_few
    if dense is SDPA and has_plane and not is_plane and is_plain(call):
        return SDPA, PLAIN
    few = "there are few queries: a row of scores for each is the least work"
    if call.has_few_queries and has_kernel and _suits_few(call, dense is SDPA):
        return NATIVE, "there are few queries, and the kernel reads their keys once"
    if call.has_few_queries and dense is SDPA:
        return SDPA, few
    if dense is SDPA and is_few:
        return SDPA, "the tokens are few enough to lay out a mask"
    if not call.has_few_queries and has_kernel and _is_worth_tiles(call):
        return NATIVE, "every term depends on distance, and the kernel computes the scores on the fly"
    is_tiled = TILED.refuses(call) is None and _is_worth_tiles(call)
    width = width_of(call) if is_tiled else None
    if is_tiled and width is not None and has_far_keys(call, width):
        return TILED, "the scores are straight in the distance past some of them, and what is seen falls into tiles"
    if call.has_few_queries:
        return REFERENCE, few
    is_cuda = call.query.device.type == "cuda"
    if is_cuda and _meets_vectors(call) and TRITON.refuses(call) is None and _is_worth_tiles(call):
        return TRITON, "vectors go by distance, and the kernel makes what they give as it goes"
    if is_cuda and FLEX.refuses(call) is None:
        return FLEX, "one fused kernel computes the score function as it goes"
    if is_tiled:
        return TILED, "the scores are a function of the distance, laid out one band at a time"
    if batch * heads * queries * keys <= FEW_SCORES:
        return dense, "the scores are few enough to lay out a mask" if dense is SDPA else "the scores are few"
    return CHUNKED, "the scores are too many to hold at once"


def _suits_few(call: Call, is_dense_fused: bool) -> bool:
    """Whether the kernel is quicker for a few queries: where the dense way is not one fused call, or there are many
    keys; not where a vector is added to each key first, nor where it would make a wide one for each distance. A graph
    serves every length, and does not ask."""
    if torch.compiler.is_compiling() or (is_dense_fused and call.key.size(2) < MANY_KEYS):
        return False
    if call.query.size(0) * call.key.size(1) < torch.get_num_threads():  # a key head is one thread's
        return False
    return not any(getattr(p, "key", None) is not None or getattr(p, "through", None) is not None for p in call.pieces)


def _meets_vectors(call: Call) -> bool:
    """Whether queries or weights meet vectors by distance, of which other kernels would gather one for each pair, or
    lay out what each query gives by every distance."""
    return len(call.values) > 0 or any(isinstance(piece, Meeting) for piece in call.pieces)


def _is_worth_tiles(call: Call) -> bool:
    """Whether tiles are few for what they hold. A graph that is compiled once has as few as the layout says."""
    if torch.compiler.is_compiling() or call.layouts is None:
        return call.layouts is not None
    found = list(tiles(*call.layouts, call.visibility, call.query.size(0)))
    pairs = sum((t.stop - t.start) * (t.last - t.first) * (t.row.stop - t.row.start) for t in found)
    return pairs * call.query.size(1) >= PAIRS_PER_TILE * len(found)


def explain(call: Call) -> Explanation:
    """What "auto" takes for a call, and why not the others."""
    backend, why = choose(call)
    if backend is NATIVE and call.query.dtype != call.dtype:
        name = str(call.query.dtype).removeprefix("torch.")
        why += f"; it multiplies {name} as it is" if keeps_bfloat16(call) else f"; it widens {name} to float32"
    reasons = {other.name: other.refuses(call) for other in BACKENDS}
    refusals = {name: reason for name, reason in reasons.items() if reason is not None}
    computed = 1.0
    if backend is FLEX or (backend is NATIVE and leaves_out(call.turned())):
        computed = computed_share(call.turned())
    return Explanation(backend.name, why, refusals, computed)
