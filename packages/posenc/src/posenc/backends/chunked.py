"""Attention in blocks of queries: any score term in linear memory, forward and backward, on any device.

Each block uses only the keys that causality and documents allow, and is recomputed in the backward pass, so only one
block of scores exists at a time. Autograd computes the gradients of everything that a term reads.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from posenc.backends.call import Backend, Call
from posenc.backends.reference import REFERENCE
from posenc.backends.sdpa import SDPA
from posenc.positions.positions import PADDING
from posenc.positions.tiles import tiles

# Scores held at once, of all batch rows and heads: 16 MB in float32. And the minimum number of queries in a block, for
# efficient matrix products.
SCORES = 2**22
ROWS = 64
# A dynamic graph cannot have a loop whose length depends on the text.
BLOCKS_IN_A_GRAPH = 8


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    batch, heads, queries, _ = call.query.shape
    if torch.compiler.is_compiling():
        rows = -(-queries // BLOCKS_IN_A_GRAPH)
        starts = [number * rows for number in range(BLOCKS_IN_A_GRAPH)]
    else:
        rows = max(ROWS, SCORES // max(1, batch * heads * call.key.size(2)))
        starts = list(range(0, max(queries, 1), rows))
    outs, sums = [], []
    for start, (first, last) in zip(starts, _spans(call, starts, rows), strict=True):
        block = call.part(slice(start, start + rows), slice(first, last))
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            out, lse = checkpoint(_of_block, block, use_reentrant=False, preserve_rng_state=bool(call.dropout_p))
        else:
            out, lse = _of_block(block)
        outs.append(out)
        sums.append(lse)
    return torch.cat(outs, 2), torch.cat(sums, 2) if call.return_lse else None


def _of_block(block: Call) -> tuple[Tensor, Tensor | None]:
    return (REFERENCE if SDPA.refuses(block) else SDPA).run(block)


def _spans(call: Call, starts: list[int], rows: int) -> list[tuple[int, int]]:
    """For each block of queries, the range of keys that any of them may attend to."""
    query, key = call.query_positions, call.key_positions
    keys = call.key.size(2)
    if any(term.reads_rows for term in call.score_terms):  # a Row gets all keys
        return [(0, keys)] * len(starts)
    if torch.compiler.is_compiling():
        runs = query.layout.run, key.layout.run
        seen = call.visibility
        if runs[0] is None or runs[1] is None or seen.furthest is None or runs[0].document != runs[1].document:
            return [(0, keys)] * len(starts)
        level = runs[0].order - runs[1].order + seen.furthest
        return [(0, min(max(start + rows + level, 0), keys)) for start in starts]
    if call.query.is_meta or 0 in (call.query.size(2), keys):
        return [(0, keys)] * len(starts)
    if call.layouts is not None:
        spans = []
        for start in starts:
            mine = call.layouts[0][slice(start, min(start + rows, call.query.size(2)))]
            found = list(tiles(mine, call.layouts[1], call.visibility, call.query.size(0)))
            spans.append((min(t.first for t in found), max(t.last for t in found)) if found else (0, 0))
        return spans
    # A key is needed if, in any batch row, its document is between the lowest and highest of the block's queries and,
    # if causal, its order is not above their highest. Synchronizes the device once for all blocks.
    needed = []
    for start in starts:
        document = query.document[:, start : start + rows]
        seen_here = (key.document >= document.amin(1, keepdim=True)) & (key.document <= document.amax(1, keepdim=True))
        order = query.order[:, start : start + rows]
        if call.visibility.furthest is not None:
            seen_here = seen_here & (key.order <= order.amax(1, keepdim=True) + call.visibility.furthest)
        if call.visibility.left is not None:
            seen_here = seen_here & (key.order >= order.amin(1, keepdim=True) - call.visibility.left)
        needed.append((seen_here & (key.document != PADDING)).any(0))
    indices = torch.arange(keys, device=key.device)
    every = torch.stack(needed)
    first = torch.where(every, indices, keys).amin(1).tolist()
    last = (torch.where(every, indices, -1).amax(1) + 1).tolist()
    return [(int(a), int(b)) if a < b else (0, 0) for a, b in zip(first, last, strict=True)]


CHUNKED = Backend("chunked", _run)
