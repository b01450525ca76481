"""A layer's attention in a ring: what its blocks are made of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc.backends.merging import merge, sink_of
from posenc.distributed.horizons import Part, parts
from posenc.distributed.leaves import leaves_of
from posenc.distributed.needs import mask_of
from posenc.distributed.ring import Ring, attend_in_ring
from posenc.distributed.sharding import Shards
from posenc.encoding.horizon import skipped_by_default
from posenc.models.forward_pass import ForwardPass
from posenc.models.layer_call import LayerCall


def attend(
    sharding: Shards,
    step: ForwardPass,
    call: LayerCall,
    mine: tuple[slice, slice] | None = None,
    *,
    ready: AbstractContextManager[Any],
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of this process's queries to the keys of all. ``mine`` are the scheme's heads of queries and of keys in
    the call; None: all. In ``ready`` blocks are checked."""
    layer, (visibility, _) = call.layer, mask_of(call.is_causal, call.window)
    scheme, _ = step.of_layer(layer)
    positions = sharding.positions
    pairs = step.pairs(layer, positions, positions, mine)
    around = parts(call, pairs, visibility, sharding)
    mask = call.attn_mask
    # Everything besides query, key and value that may have a gradient is handed to the blocks.
    float_mask = [mask] if mask is not None and mask.is_floating_point() else []
    tensors = [*call.features.values(), *call.key_features.values(), *float_mask]
    skip_below = skipped_by_default(call.query.dtype) if call.skip_below is None else call.skip_below
    of_block = replace(call, sinks=None, return_lse=True)

    def block(part: Part, source: int, q: Tensor, k: Tensor, v: Tensor, given: Sequence[Tensor]) -> LayerCall:
        keys, rest = part.needs.keys(sharding.rank, source), iter(given)
        assert keys is not None
        here = sharding.indices[source][keys]
        features = {name: _of_heads(next(rest), part.queries) for name in call.features}
        key_features = {name: _of_heads(next(rest), part.queries).index_select(2, here) for name in call.key_features}
        attn_mask = next(rest) if float_mask else mask
        if attn_mask is not None and attn_mask.size(-1) > 1:
            attn_mask = attn_mask.index_select(-1, here)
        found = replace(of_block, query=q, key=k, value=v, attn_mask=attn_mask)
        if part.visibility != visibility:
            seen = part.visibility
            found = replace(found, window=(seen.left, seen.right), skip_below=skip_below / 2)
        return replace(found, features=features, key_features=key_features)

    def run(part: Part, source: int, *given: Any) -> tuple[Tensor, Tensor]:
        found = block(part, source, *given).attend(encodings[part, source])
        assert isinstance(found, tuple)
        return found

    encodings = {}
    with ready:
        # Bound here, not in a block, which is computed without gradients at first.
        for part in around:
            heads = mine
            if len(around) > 1:
                of_queries, of_keys = (0, 0) if mine is None else (some.start for some in mine)
                heads = _moved(part.queries, of_queries), _moved(part.keys, of_keys)
            for source in range(sharding.world):
                keys = part.needs.keys(sharding.rank, source)
                if keys is None:
                    continue
                encodings[part, source] = step.pairs(layer, sharding.keys_of(source, keys), positions, heads)
                if not isinstance(ready, nullcontext):
                    k, v = (_like(x, keys.stop - keys.start)[:, part.keys] for x in (call.key, call.value))
                    block(part, source, call.query[:, part.queries], k, v, tensors).check(encodings[part, source])

    is_one_call = not pairs.rotations and not pairs.values  # near and distant pairs would be merged, or values added
    ring = Ring(around, run, sharding.rank, sharding.world, sharding.group, is_one_call)
    out, lse = attend_in_ring(ring, call.query, call.key, call.value, tensors, leaves_of(scheme, pairs))
    if call.sinks is not None:
        out, lse = merge([(out, lse), (torch.zeros_like(out), sink_of(call.sinks, lse))])
    return (out, lse) if call.return_lse else out


def _like(x: Tensor, tokens: int) -> Tensor:
    """A tensor of that many tokens, without memory."""
    return x.new_zeros(()).expand(x.size(0), x.size(1), tokens, x.size(3))


def _moved(heads: slice, by: int) -> slice:
    return slice(heads.start + by, heads.stop + by)


def _of_heads(x: Tensor, heads: slice) -> Tensor:
    """Some of the heads, unless it is the same for all."""
    return x if x.size(1) == 1 else x[:, heads]
