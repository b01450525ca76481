"""`ShardedCache`: a KV cache whose tokens are divided among processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from posenc.backends.merging import merge
from posenc.distributed.sharding import group_of
from posenc.encoding.encoding import Context
from posenc.encoding.features import NOTHING
from posenc.encoding.pieces import gives_weights
from posenc.models.forward_pass import ForwardPass, KVCache
from posenc.models.layer_call import LayerCall
from posenc.positions.positions import Positions
from posenc.scheme import Scheme


class ShardedCache(KVCache):
    """The part of a KV cache that one process of a group holds. For inference only.

    A long prompt is read in parallel, under `sharded`: each process then holds the keys of its own tokens. Generated
    tokens are handed to *all* processes. These take turns in holding the new keys, attend to the keys that they hold,
    and merge the results by log-sum-exp, so that all get the same output. ``of`` is a ProcessGroup, a DeviceMesh of one
    axis, or None for all processes.

    >>> cache = ShardedCache()
    >>> with sharded(sharding):
    ...     model(sharding.shard(prompt), positions=sharding.positions, cache=cache)
    >>> logits = model(next_token, positions=Positions.arange(1, start=len(prompt)), cache=cache)

    Not for schemes with cumulative features (FoX) or those that need whole rows of scores (CoPE, stick-breaking), which
    raise ValueError.
    """

    def __init__(self, of: Any = None) -> None:
        super().__init__()
        self.group = group_of(of)
        self.rank, self.world = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.exchange = _InTurn(self)
        self._generated = self._after = 0  # tokens that were handed to all processes, and that after this pass

    def _commit(self, positions: Positions) -> None:
        super()._commit(positions)
        self._generated = self._after


class _InTurn:
    """What `ForwardPass` asks of a cache whose tokens processes hold in turn."""

    def __init__(self, cache: ShardedCache) -> None:
        self.cache = cache
        self._mine = torch.arange(0)  # of the new tokens, those that this process is to hold

    def begin(self, positions: Positions, cache: KVCache | None) -> tuple[Positions, Positions]:
        held = self.cache
        new = positions.order.size(1)
        turn = (torch.arange(new, device=positions.device) + held._generated) % held.world
        self._mine = (turn == held.rank).nonzero()[:, 0]
        held._after = held._generated + new
        mine = positions[self._mine]
        keys = mine if held.positions is None else Positions.cat([held.positions, mine], documents="same")
        return keys, keys

    def context(self, scheme: Scheme, context: Context | None, positions: Positions) -> Context | None:
        if not scheme.needs_lengths or (context is not None and context.lengths is not None):
            return context
        return replace(context or Context(), lengths=positions.lengths)  # new tokens are the last of their texts

    def gather(self, x: Tensor, dim: int) -> Tensor:
        raise ValueError("a ShardedCache does not hold cumulative features (such as FoX's gates): pass a KVCache")

    def attend(self, step: ForwardPass, call: LayerCall) -> Tensor | tuple[Tensor, Tensor]:
        encoding, sinks = step.pairs(call.layer), call.sinks
        if any(piece.reads_rows for piece in encoding.pieces) or gives_weights(encoding.pieces):
            raise ValueError("a ShardedCache cannot be used with a scheme that needs whole rows of scores")
        if call.attn_mask is not None or call.dropout_p:
            raise ValueError("attn_mask and dropout are not supported with a ShardedCache")
        mine = self._mine
        key, value, _ = self.cache.append(call.layer, call.key[:, :, mine], call.value[:, :, mine])
        found = replace(call, key=key, value=value, key_features=NOTHING, sinks=None, return_lse=True).attend(encoding)
        assert isinstance(found, tuple)
        parts = list(zip(*(self._of_all(x.to(found[1].dtype)) for x in found), strict=True))
        if sinks is not None:  # one more key of every row, without a value
            sink = sinks.to(found[1].dtype)[:, None].expand_as(found[1])
            parts.append((torch.zeros_like(parts[0][0]), sink))
        out, lse = merge(parts)
        out = out.to(call.query.dtype)
        return (out, lse) if call.return_lse else out

    def _of_all(self, x: Tensor) -> list[Tensor]:
        found = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.cache.world)]
        dist.all_gather(found, x.contiguous(), group=self.cache.group)
        return found
