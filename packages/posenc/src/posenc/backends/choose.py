"""Selects the backend of a call: the named one, or the one for "auto", with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from posenc import compat
from posenc.arguments import check_choice
from posenc.backends.blockwise import computed_share, distances_of
from posenc.backends.call import Backend, Call
from posenc.backends.chunked import CHUNKED
from posenc.backends.flex import FLEX, FLEX_FLASH
from posenc.backends.native.backend import NATIVE, keeps_bfloat16, skips_keys
from posenc.backends.native.library import warn_if_not_built
from posenc.backends.races import fastest_on_gpu, kernel_is_ahead, learns
from posenc.backends.reference import REFERENCE
from posenc.backends.sdpa import SDPA, is_plain
from posenc.backends.triton.backend import TRITON, counted_share
from posenc.encoding.terms import RelativeDot
from posenc.positions.tiles import tiles

BACKENDS: tuple[Backend, ...] = (SDPA, NATIVE, TRITON, FLEX, FLEX_FLASH, CHUNKED, REFERENCE)

# At most this many scores of all heads are held at once, 16 MB in float32. For fewer scores of one head than FEW_PAIRS,
# dense attention is faster than blocks; than FEW_ON_PLANE, with two
# coordinates, faster than the kernel (docs/decisions/010-kernel-in-cpp.md).
FEW_SCORES = 2**22
FEW_PAIRS = 2**14
FEW_ON_PLANE = 2**11
# With fewer pairs per tile than this, calls cost more than tiles save.
PAIRS_PER_TILE = 2**12
PAIRS_PER_KERNEL_TILE = 2**6  # where a tile is no call


@dataclass(frozen=True)
class Explanation:
    """The backend that ``backend="auto"`` selects for a call, why, and why each unsupported backend cannot run it.

    ``computed`` is an upper bound of the fraction of unmasked pairs that is computed, in blocks of queries and keys:
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


class CallFacts:
    """A call, and what is asked of it before it is run. What takes time is asked once; without
    `functools.cached_property`, which a compiled graph does not know."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.has_few_queries = call.has_few_queries
        self.has_plane = any(term.is_planar for term in call.score_terms)
        self.pairs_per_tile: float | None = None
        self._known: dict[str, bool] = {}

    def takes(self, backend: Backend) -> bool:
        if backend.name not in self._known:
            reason = backend.refuses(self.call)
            warn_if_not_built(reason)
            self._known[backend.name] = reason is None
        return self._known[backend.name]

    def is_plain(self) -> bool:
        if "plain" not in self._known:
            self._known["plain"] = is_plain(self.call)
        return self._known["plain"]

    def is_worth_tiles(self, least: int = PAIRS_PER_TILE) -> bool:
        """Whether tiles have enough pairs on average. In a compiled graph, whether the layout is known."""
        if self.pairs_per_tile is None:
            self.pairs_per_tile = _pairs_per_tile(self.call)
        return self.pairs_per_tile >= least

    def has_few_pairs(self, most: int = FEW_PAIRS) -> bool:
        """Whether a head has few enough scores for a dense mask to be cheaper than blocks. False in a compiled graph,
        which serves all lengths."""
        return not torch.compiler.is_compiling() and self.call.query.size(2) * self.call.key.size(2) <= most

    def has_few_scores(self) -> bool:
        batch, heads, queries, _ = self.call.query.shape
        return batch * heads * queries * self.call.key.size(2) <= FEW_SCORES

    def is_cuda(self) -> bool:
        return self.call.query.device.type == "cuda"

    def winner(self) -> tuple[Backend, str] | None:
        """The backend that won the race of such calls on this device, and why: on a CPU the kernel, where no mask is
        needed. What is exported, or has a forward-mode derivative, does not ask."""
        if compat.is_exporting() or compat.is_forward_mode():
            return None
        if self.is_cuda():
            known = {backend.name: backend for backend in BACKENDS}
            found = fastest_on_gpu(self.call, lambda name: self.fits(known[name]))
            return None if found is None else (known[found[0]], found[1])
        is_raced = not self.has_plane and self.takes(SDPA) and self.is_plain() and self.takes(NATIVE)
        why = kernel_is_ahead(self.call) if is_raced else None
        return None if why is None else (NATIVE, why)

    def fits(self, backend: Backend) -> bool:
        """The backend takes it, and makes no mask of many pairs."""
        return self.takes(backend) and (backend is not SDPA or self.is_plain() or self.has_few_scores())

    # What the rows of `CHOICES` ask, in their order.

    def needs_no_mask(self) -> bool:
        """The fused kernel suffices. A plane can be folded into query and key too, but they become wide."""
        if not self.takes(SDPA):
            return False
        is_plane = self.has_plane and not self.has_few_queries and not self.has_few_pairs(FEW_ON_PLANE)
        return not (is_plane and self.takes(NATIVE)) and self.is_plain()

    def suits_few_queries(self) -> bool:
        """The kernel is faster for a few queries, unless it first needs a vector for each key. Not in a compiled graph,
        which serves all lengths."""
        return not torch.compiler.is_compiling() and self.has_few_queries_beside(NATIVE)

    def has_few_queries_beside(self, kernel: Backend) -> bool:
        """A few queries, and the kernel needs no vector for each key: one that is added to it, or a projected one."""
        terms = self.call.score_terms
        changes = any(getattr(p, "key", None) is not None or getattr(p, "through", None) is not None for p in terms)
        return self.has_few_queries and not changes and self.takes(kernel)

    def suits_kernel(self) -> bool:
        """The kernel takes it, tile by tile: on a line always faster than a mask
        (docs/decisions/010-kernel-in-cpp.md)."""
        if self.has_few_queries or (self.has_plane and self.takes(SDPA) and self.has_few_pairs(FEW_ON_PLANE)):
            return False
        return self.takes(NATIVE) and self.is_worth_tiles(PAIRS_PER_KERNEL_TILE)

    def is_for_gpu_kernel(self) -> bool:
        """A GPU's kernel takes it, tile by tile."""
        has_terms = len(self.call.score_terms) + len(self.call.values) > 0
        return self.is_cuda() and has_terms and self.takes(TRITON) and self.is_worth_tiles()

    def meets_vectors(self) -> bool:
        """Queries or weights are multiplied with vectors by distance, for which other kernels would gather a vector per
        pair or store the products of each query with every distance."""
        meets = len(self.call.values) > 0 or any(isinstance(term, RelativeDot) for term in self.call.score_terms)
        return meets and self.is_for_gpu_kernel()

    def is_simple_far_away(self) -> bool:
        """A GPU's kernel needs no table for far pairs."""
        tails = [distance.tail for distance in distances_of(self.call)]
        return self.is_for_gpu_kernel() and all(tail is not None for tail in tails)

    def is_learned(self) -> bool:
        """A number per distance has a gradient."""
        return torch.is_grad_enabled() and self.is_for_gpu_kernel() and learns(self.call)

    def has_mask(self) -> bool:
        """A mask can be held: there are few scores, or it is given for every pair and no term is added to it."""
        mask = self.call.attn_mask
        is_given = mask is not None and not (len(self.call.score_terms) or mask.requires_grad or 1 in mask.shape[2:])
        return self.takes(SDPA) and (is_given or self.has_few_scores())


class Choice(NamedTuple):
    """A backend that "auto" takes, when, and why."""

    backend: Backend
    when: Callable[[CallFacts], bool]
    why: str


FEW = "there are few queries: dense rows of scores are cheapest"
ALONE = "; of GPUs, it was timed on an H100 alone"
SPLIT = f"there are few queries, and the kernel splits the keys over its programs{ALONE}"
ON_THE_FLY = "every term depends on distance, and the kernel computes the scores on the fly"
VECTORS = f"vectors depend on distance, and the kernel computes their products on the fly{ALONE}"
FAR = f"the scores are constant or linear at large distances, where the kernel needs no table{ALONE}"
LEARNED = f"a table by distance is learned, and the kernel sums its gradient without atomic additions{ALONE}"
FEW_TOKENS = "there are few enough tokens for a dense mask"
COMPILED = f"a fused kernel computes the score function on the fly{ALONE}"
# Such a program may run where posenc is not: as ONNX, for one.
EXPORTED = "an exported program has PyTorch's operators alone, unless a backend is named"

CHOICES = (
    Choice(REFERENCE, lambda asked: compat.is_forward_mode(), "no fused kernel has a forward-mode derivative"),
    Choice(SDPA, lambda asked: compat.is_exporting() and asked.takes(SDPA), EXPORTED),
    Choice(REFERENCE, lambda asked: compat.is_exporting(), EXPORTED),
    Choice(SDPA, CallFacts.needs_no_mask, "nothing is added to the scores, so the fused kernel suffices"),
    Choice(NATIVE, CallFacts.suits_few_queries, "there are few queries, and the kernel reads keys only once"),
    Choice(TRITON, lambda asked: asked.is_cuda() and asked.has_few_queries_beside(TRITON), SPLIT),
    Choice(SDPA, lambda asked: asked.has_few_queries and asked.takes(SDPA), FEW),
    Choice(NATIVE, CallFacts.suits_kernel, ON_THE_FLY),
    Choice(SDPA, lambda asked: asked.takes(SDPA) and asked.has_few_pairs(), FEW_TOKENS),
    Choice(REFERENCE, lambda asked: asked.has_few_queries, FEW),
    Choice(TRITON, CallFacts.meets_vectors, VECTORS),
    Choice(TRITON, CallFacts.is_simple_far_away, FAR),
    Choice(TRITON, CallFacts.is_learned, LEARNED),
    Choice(FLEX, lambda asked: asked.is_cuda() and asked.takes(FLEX), COMPILED),
    Choice(SDPA, CallFacts.has_mask, "there are few enough scores for a dense mask"),
    Choice(REFERENCE, CallFacts.has_few_scores, "there are few scores"),
    Choice(CHUNKED, lambda asked: True, "the scores are too many to hold at once"),
)
"""Read from the top: the first row that applies is taken, so each relies on those above it."""


def _pairs_per_tile(call: Call) -> float:
    """The pairs of all heads in a tile, on average; in a compiled graph any number. 0 if the layout is unknown."""
    if call.layouts is None:
        return 0
    if torch.compiler.is_compiling():
        return math.inf
    found = list(tiles(*call.layouts, call.visibility, call.query.size(0)))
    pairs = sum((t.stop - t.start) * (t.last - t.first) * (t.row.stop - t.row.start) for t in found)
    return pairs * call.query.size(1) / len(found) if found else math.inf


def choose(call: Call) -> tuple[Backend, str]:
    """The backend for "auto", and the reason: the winner of a race, or the first row of `CHOICES` that applies."""
    asked = CallFacts(call)
    winner = asked.winner()
    if winner is not None:
        return winner
    for choice in CHOICES:
        if choice.when(asked):
            break
    return choice.backend, choice.why


def explain(call: Call) -> Explanation:
    """The explanation of a call's backend for "auto"."""
    backend, why = choose(call)
    if backend is NATIVE and call.query.dtype != call.dtype:
        name = str(call.query.dtype).removeprefix("torch.")
        why += f"; it multiplies in {name}" if keeps_bfloat16(call) else f"; it converts {name} to float32"
    if backend is SDPA and call.query.device.type == "cuda" and (active := compat.flash_attention()) is not None:
        why += f"; {active} is in the place of PyTorch's FlashAttention"
    reasons = {other.name: other.refuses(call) for other in BACKENDS}
    refusals = {name: reason for name, reason in reasons.items() if reason is not None}
    computed = 1.0
    if backend is FLEX or (backend is NATIVE and skips_keys(call.rotated())):
        computed = computed_share(call.rotated())
    elif backend is TRITON:
        computed = counted_share(call.rotated())
    return Explanation(backend.name, why, refusals, computed)
