"""Ulysses: tokens are exchanged for heads, so that each process attends over all tokens in some of the heads.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from posenc.distributed.collectives import transposed
from posenc.distributed.sharding import Shards
from posenc.models.layer_call import LayerCall

Result: TypeAlias = Tensor | tuple[Tensor, Tensor]


class Heads:
    """Which heads each process of a sharding has: whole groups of query heads that share a head of keys. They may be
    uneven, and there are at least as many heads of keys as processes."""

    def __init__(self, sharding: Shards, num_heads: int, kv_heads: int) -> None:
        self.sharding = sharding
        self.of_keys = [len(part) for part in torch.arange(kv_heads).tensor_split(sharding.world)]
        self.of_queries = [count * (num_heads // kv_heads) for count in self.of_keys]
        self.back = torch.cat(sharding.indices).argsort()

    def mine(self, sizes: list[int]) -> slice:
        """This process's heads."""
        start = sum(sizes[: self.sharding.rank])
        return slice(start, start + sizes[self.sharding.rank])

    def taken(self, x: Tensor, sizes: list[int]) -> Tensor:
        """(batch, heads, this process's tokens, ...) -> (batch, this process's heads, all tokens, ...)."""
        if x.size(1) == 1 and sum(sizes) > 1:  # the same for all heads
            return self.sharding.gather(x, 2)
        moved = transposed(x, 1, sizes, 2, self.sharding.counts, self.sharding.group)
        return moved.index_select(2, self.back.to(x.device))

    def returned(self, x: Tensor, sizes: list[int]) -> Tensor:
        """The inverse of `taken`."""
        x = x.index_select(2, torch.cat(self.sharding.indices).to(x.device))
        return transposed(x, 2, self.sharding.counts, 1, sizes, self.sharding.group)

    def cut(self, x: Tensor, sizes: list[int]) -> Tensor:
        """This process's heads of a tensor of all tokens."""
        return x if x.size(1) == 1 and sum(sizes) > 1 else x[:, self.mine(sizes)]


def attend(sharding: Shards, call: LayerCall, inner: Callable[[LayerCall, tuple[slice, slice]], Result]) -> Result:
    """Attention of this process's queries, from ``inner``: attention of all tokens of the sharding in some
    of the heads, given those of queries and of keys."""
    query, mask, sinks = call.query, call.attn_mask, call.sinks
    heads = Heads(sharding, query.size(1), call.key.size(1))
    of_queries, of_keys = heads.of_queries, heads.of_keys
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)  # checked before
        # A row for each query: whether there is one row for all could not be told from a process with one query.
        mask = heads.taken(mask.expand(-1, -1, query.size(2), -1), of_queries)
    if sinks is not None:
        sinks = heads.taken(sinks, of_queries) if sinks.dim() == 3 else sinks[heads.mine(of_queries)]
    taken = replace(
        call,
        query=heads.taken(query, of_queries),
        key=heads.taken(call.key, of_keys),
        value=heads.taken(call.value, of_keys),
        features={name: heads.taken(x, of_queries) for name, x in call.features.items()},
        key_features={name: heads.cut(x, of_queries) for name, x in call.key_features.items()},
        attn_mask=mask,
        sinks=sinks,
    )
    found = inner(taken, (heads.mine(of_queries), heads.mine(of_keys)))
    if isinstance(found, Tensor):
        return heads.returned(found, of_queries)
    out, lse = found
    return heads.returned(out, of_queries), heads.returned(lse, of_queries)
