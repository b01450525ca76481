"""Selects the backend of a call: the named one, or the one for "auto", with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from posenc.arguments import check_choice
from posenc.backends.call import Backend, Call
from posenc.backends.chunked import CHUNKED
from posenc.backends.flex import FLEX
from posenc.backends.native.backend import NATIVE, keeps_bfloat16, leaves_out
from posenc.backends.native.crossover import why_ahead
from posenc.backends.native.operator import CHANNELS
from posenc.backends.plane import is_planar
from posenc.backends.reference import REFERENCE
from posenc.backends.sdpa import SDPA, is_plain
from posenc.backends.skipping import computed_share
from posenc.backends.tiled.backend import TILED, has_far_keys, width_of
from posenc.backends.triton.backend import TRITON
from posenc.encoding.pieces import Meeting
from posenc.positions.tiles import tiles

BACKENDS: tuple[Backend, ...] = (SDPA, NATIVE, TRITON, TILED, FLEX, CHUNKED, REFERENCE)

# At most this many scores of all heads are held at once, 16 MB in float32. For fewer scores of one head than FEW_PAIRS,
# dense attention is faster than blocks; than FEW_FOR_KERNEL, faster than the kernel (measured on a CPU: docs/log.md).
FEW_SCORES = 2**22
FEW_PAIRS = 2**14
FEW_FOR_KERNEL = 2**11
# From this many keys on, a kernel call costs less than passes over the keys (measured on a CPU: docs/log.md).
MANY_KEYS = 2**13
# With fewer pairs per tile than this, calls cost more than tiles save.
PAIRS_PER_TILE = 2**12

PLAIN = "nothing is added to the scores, so the fused kernel suffices"


@dataclass(frozen=True)
class Explanation:
    """The backend that ``backend="auto"`` selects for a call, why, and why each unsupported backend cannot run it.

    ``computed`` is an upper bound of the fraction of unmasked pairs that is computed, in blocks of 64 queries and keys:
    below 1 if distant keys are skipped (``skip_below``). If distant pairs are rotated differently and each band is a
    separate call, ``bands`` has an explanation of each.
    """

    backend: str
    why: str
    refusals: Mapping[str, str]
    computed: float = 1.0
    bands: tuple[tuple[str, Explanation], ...] = ()

    def __str__(self) -> str:
        if self.bands:
            return "\n".join([self.why, *(f"{which}: {each}" for which, each in self.bands)])
        lines = [f"{self.backend}: {self.why}"]
        if self.computed < 1:
            lines.append(f"at most {self.computed:.0%} of unmasked pairs are computed: the rest is below skip_below")
        lines += [f"not {name}: {reason}" for name, reason in self.refusals.items()]
        return "\n".join(lines)


def named(call: Call, name: str, needs_lse: str | None = None) -> Backend:
    """The backend of that name. Raises ValueError if it does not exist or cannot run the call; ``needs_lse`` is why the
    log-sum-exp is needed, if the caller of `attention` did not ask for it."""
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
    """The backend for "auto", and the reason."""
    batch, heads, queries, _ = call.query.shape
    keys = call.key.size(2)
    if call.is_forward_mode:
        return REFERENCE, "no fused kernel has a forward-mode derivative"
    dense = SDPA if SDPA.refuses(call) is None else REFERENCE
    has_plane = any(map(is_planar, call.pieces))
    if dense is SDPA and not has_plane and is_plain(call):  # does not load the kernel library
        ahead = why_ahead(call)
        if ahead is not None and NATIVE.refuses(call) is None:
            return NATIVE, ahead
        return SDPA, PLAIN
    has_kernel = NATIVE.refuses(call) is None
    is_even = call.query.size(3) % CHANNELS == 0  # else inputs are copied to pad channels
    most = FEW_FOR_KERNEL if has_kernel and is_even else FEW_PAIRS
    is_few = not torch.compiler.is_compiling() and queries * keys <= most
    # A plane can also be folded into query and key, but they become wide.
    is_plane = has_plane and has_kernel and not call.has_few_queries and not is_few
    if dense is SDPA and has_plane and not is_plane and is_plain(call):
        return SDPA, PLAIN
    few = "there are few queries: dense rows of scores are cheapest"
    if call.has_few_queries and has_kernel and _suits_few(call, dense is SDPA):
        return NATIVE, "there are few queries, and the kernel reads keys only once"
    if call.has_few_queries and dense is SDPA:
        return SDPA, few
    if dense is SDPA and is_few:
        return SDPA, "there are few enough tokens for a dense mask"
    if not call.has_few_queries and has_kernel and _is_worth_tiles(call):
        return NATIVE, "every term depends on distance, and the kernel computes the scores on the fly"
    is_tiled = TILED.refuses(call) is None and _is_worth_tiles(call)
    width = width_of(call) if is_tiled else None
    if is_tiled and width is not None and has_far_keys(call, width):
        return TILED, "the scores are linear in distance beyond a cutoff, and the mask splits into tiles"
    if call.has_few_queries:
        return REFERENCE, few
    is_cuda = call.query.device.type == "cuda"
    if is_cuda and _meets_vectors(call) and TRITON.refuses(call) is None and _is_worth_tiles(call):
        return TRITON, "vectors depend on distance, and the kernel computes their products on the fly"
    if is_cuda and FLEX.refuses(call) is None:
        return FLEX, "a fused kernel computes the score function on the fly"
    if is_tiled:
        return TILED, "the scores depend on distance, computed one band at a time"
    if batch * heads * queries * keys <= FEW_SCORES:
        return dense, "there are few enough scores for a dense mask" if dense is SDPA else "there are few scores"
    return CHUNKED, "the scores are too many to hold at once"


def _suits_few(call: Call, is_dense_fused: bool) -> bool:
    """Whether the kernel is faster for a few queries: if the dense path is not one fused call, or there are many keys;
    but not if a vector is added to each key first, or a projected one is needed for each distance. False in a compiled
    graph, which serves all lengths."""
    if torch.compiler.is_compiling() or (is_dense_fused and call.key.size(2) < MANY_KEYS):
        return False
    if call.query.size(0) * call.key.size(1) < torch.get_num_threads():  # one thread per key head
        return False
    return not any(getattr(p, "key", None) is not None or getattr(p, "through", None) is not None for p in call.pieces)


def _meets_vectors(call: Call) -> bool:
    """Whether queries or weights are multiplied with vectors by distance, for which other kernels would gather a vector
    per pair or store the products of each query with every distance."""
    return len(call.values) > 0 or any(isinstance(piece, Meeting) for piece in call.pieces)


def _is_worth_tiles(call: Call) -> bool:
    """Whether tiles have enough pairs on average. In a compiled graph, whether the layout is known."""
    if torch.compiler.is_compiling() or call.layouts is None:
        return call.layouts is not None
    found = list(tiles(*call.layouts, call.visibility, call.query.size(0)))
    pairs = sum((t.stop - t.start) * (t.last - t.first) * (t.row.stop - t.row.start) for t in found)
    return pairs * call.query.size(1) >= PAIRS_PER_TILE * len(found)


def explain(call: Call) -> Explanation:
    """The explanation of a call's backend for "auto"."""
    backend, why = choose(call)
    if backend is NATIVE and call.query.dtype != call.dtype:
        name = str(call.query.dtype).removeprefix("torch.")
        why += f"; it multiplies in {name}" if keeps_bfloat16(call) else f"; it converts {name} to float32"
    reasons = {other.name: other.refuses(call) for other in BACKENDS}
    refusals = {name: reason for name, reason in reasons.items() if reason is not None}
    computed = 1.0
    if backend is FLEX or (backend is NATIVE and leaves_out(call.turned())):
        computed = computed_share(call.turned())
    return Explanation(backend.name, why, refusals, computed)
