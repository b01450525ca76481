"""Which heads need which keys of other processes: where a bias decays, a head sees no further than its horizon."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor

from posenc.distributed.needs import Needs
from posenc.distributed.sharding import Shards
from posenc.encoding.encoding import Encoding
from posenc.encoding.horizon import differences, skip_threshold, skipped_by_default
from posenc.encoding.pieces import Clock
from posenc.models.layer_call import LayerCall
from posenc.positions.layout import Layout
from posenc.positions.positions import PADDING
from posenc.positions.tiles import Chunk, Visibility

FEWEST_TOKENS = 256  # texts for which finding horizons pays off
LEAST = 64  # horizons are rounded up to powers of two from here on, so that many heads have the same


@dataclass(frozen=True, eq=False)
class Part:
    """Neighbouring heads that need the same keys: heads of keys, the heads of queries that share them, and how far
    they see."""

    keys: slice
    queries: slice
    visibility: Visibility
    needs: Needs


def parts(
    call: LayerCall,
    encoding: Encoding,
    visibility: Visibility,
    sharding: Shards,
) -> list[Part]:
    """The heads of a call in parts, the same on all processes of the group, which must all call this.

    What is beyond a head's horizon has at most half of ``skip_below`` of every row's weight, whatever its queries and
    keys of these norms; the other half is for the blocks. There is one part if a term has no known bound.
    """
    heads, kv_heads = call.query.size(1), call.key.size(1)
    chunk = call.window.size if isinstance(call.window, Chunk) else None
    reaches = _reaches(call, encoding, visibility, sharding)
    if reaches is None:
        return [Part(slice(0, kv_heads), slice(0, heads), visibility, sharding.needs(visibility, chunk))]
    shared = heads // kv_heads
    each = [tuple(max(side[h * shared : (h + 1) * shared]) for side in reaches) for h in range(kv_heads)]
    found = []
    for (left, right), alike in groupby(range(kv_heads), key=lambda h: each[h]):
        keys = list(alike)
        seen = Visibility(
            visibility.is_causal,
            _nearer(visibility.left, left, len(sharding.whole)),
            _nearer(visibility.right, right, len(sharding.whole)),
        )
        of = slice(keys[0], keys[-1] + 1)
        found.append(Part(of, slice(of.start * shared, of.stop * shared), seen, sharding.needs(seen)))
    return found


def _nearer(limit: int | None, reach: int, tokens: int) -> int | None:
    return limit if reach >= tokens else reach - 1 if limit is None else min(limit, reach - 1)


@torch.no_grad()
def _reaches(call: LayerCall, encoding: Encoding, visibility: Visibility, sharding: Shards) -> list[list[int]] | None:
    """How many keys each head of queries needs before and after its own, including it; None if that is not known."""
    tokens, device = len(sharding.whole), call.query.device
    skip_below = skipped_by_default(call.query.dtype) if call.skip_below is None else call.skip_below
    # What a row holds at least is the score of the query's own key, so every query must see its own.
    sees_itself = call.attn_mask is None and (visibility.furthest is None or visibility.furthest >= 0)
    fades = any(piece.fades for piece in encoding.pieces) and not encoding.rotations
    if (
        sharding.world == 1
        or tokens < FEWEST_TOKENS
        or skip_below <= 0
        or not sees_itself
        or not fades
        or not _rises(sharding.whole.layout)
    ):
        return None
    if isinstance(call.window, Chunk):  # in whose place there would be a window
        return None
    clocks = [piece for piece in encoding.pieces if isinstance(piece, Clock)]
    if clocks and visibility.furthest != 0:
        return None
    pieces = [piece for piece in encoding.pieces if not isinstance(piece, Clock)]
    if differences(pieces, torch.arange(1, device=device), 0.0, 0.0, 1.0) is None:
        return None
    query, key = (_longest(x) for x in (call.query, call.key))
    norms = torch.stack((query, key.repeat_interleave(len(query) // len(key))))
    dist.all_reduce(norms, dist.ReduceOp.MAX, sharding.group)
    # The norms of vectors of float32 are rounded.
    rounded = 1 + call.query.size(-1) * torch.finfo(torch.float32).eps
    query, key = (rounded * norms.double().cpu()[..., None]).unbind()
    mine = encoding.context.heads
    if mine is not None:  # terms know of all heads of the scheme: the same norms for all
        query, key = query.amax(), key.amax()
    scale = call.scale if call.scale is not None else encoding.scale
    scale = abs(scale) if scale is not None else 1 / math.sqrt(call.query.size(-1))
    since = _since(call, clocks, sharding)
    below = skip_threshold(skip_below / 2, tokens)
    reaches = torch.full((2, norms.size(1)), tokens)
    for side in (0,) if visibility.furthest == 0 else (0, 1):
        worst: Tensor = torch.full((norms.size(1),), -math.inf, dtype=torch.float64)
        stop = tokens
        # The furthest alone first: most biases that do not decay far enough are told by it.
        for start in (tokens - 1, *_powers(tokens - 1)):
            r = torch.cat((torch.arange(1, device=device), torch.arange(start, stop, device=device)))
            found = differences(pieces, r if side else -r, query, key, scale)
            assert found is not None
            most = (found[0][:, 1:].amax(-1, keepdim=True) + found[1])[:, 0]
            most = most if mine is None or len(most) == 1 else most[mine.start : mine.stop]
            worst = torch.maximum(worst, most + since(start) if clocks else most)
            if not (worst < below).any():  # with NaN, nothing is left out
                break
            if start < tokens - 1:
                reaches[side][worst < below] = start
            stop = start
    # Each process's own, since processes that send by different horizons would wait for ever.
    reaches = reaches.to(norms.device)
    dist.all_reduce(reaches, dist.ReduceOp.MAX, sharding.group)
    return [[int(n) for n in side] for side in reaches.tolist()]


def _since(call: LayerCall, clocks: Sequence[Clock], sharding: Shards) -> Callable[[int], Tensor]:
    """A function of a distance: the greatest difference of a head's clocks between a query of this process and a key at
    least as far back in its document, (heads or 1,); -inf if there is none."""
    if not clocks:
        return lambda _: torch.zeros(1)
    here = torch.stack([call.features[clock.feature].double() for clock in clocks]).sum(0)
    there = torch.stack([call.key_features[clock.feature].double() for clock in clocks]).sum(0)
    document, place = sharding.whole.document, torch.arange(len(sharding.whole), device=sharding.whole.device)
    is_token = document != PADDING
    # Padding belongs to the document before it.
    document = document.gather(1, torch.where(is_token, place, 0).cummax(1).values)
    begins = torch.nn.functional.pad(document[:, 1:] != document[:, :-1], (1, 0))
    first = torch.where(begins, place, 0).cummax(1).values
    # The least of each document so far: every document is moved below those before it.
    down = (begins.cumsum(1) * (there.amax() - there.amin() + 1))[:, None]
    least = (there - down).cummin(-1).values + down
    mine = sharding.indices[sharding.rank]

    def greatest(distance: int) -> Tensor:
        at = mine - distance
        exists = (at >= first[:, mine]) & is_token[:, mine]
        apart = here - least[:, :, at.clamp(min=0)]
        found = apart.masked_fill(~exists[:, None], -math.inf)
        return found.amax((0, 2)).cpu() if found.numel() else torch.full((1,), -math.inf)

    return greatest


def _powers(below: int) -> Sequence[int]:
    """Powers of two, falling, below a number and not below `LEAST`."""
    return [2**n for n in reversed(range(LEAST.bit_length() - 1, below.bit_length())) if 2**n < below]


def _longest(x: Tensor) -> Tensor:
    """The greatest norm of each head; infinite with NaN."""
    norms = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=torch.promote_types(x.dtype, torch.float32))
    longest = norms.amax((0, 2)) if norms.numel() else norms.new_zeros(x.size(1))
    return longest.nan_to_num(nan=math.inf, posinf=math.inf)


def _rises(layout: Layout) -> bool:
    """Whether documents are one after another, and in each coordinates are known to be order plus a constant and rise,
    so that a horizon is a window."""
    for row in layout.rows or ():
        known: dict[int, tuple[int, int]] = {}  # how far coordinates are ahead of the order, and the next order
        last = None
        for span in row:
            line = span.line
            if line is None or span.order_step != 1 or (span.document in known and span.document != last):
                return False
            ahead, following = known.get(span.document, (line - span.order, span.order))
            if line - span.order != ahead or span.order < following:
                return False
            known[span.document] = ahead, span.order + span.stop - span.start
            last = span.document
    return layout.rows is not None
