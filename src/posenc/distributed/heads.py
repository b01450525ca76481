"""Ulysses: tokens are exchanged for heads, so that each process attends over all tokens in some of the heads.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from posenc.backends.attention import attention
from posenc.distributed.collectives import transposed
from posenc.distributed.sharding import Sharding
from posenc.models.forward_pass import ForwardPass


class Heads:
    """Which heads each process of a sharding has: whole groups of query heads that share a head of keys. They may be
    uneven. Raises ValueError if there are fewer heads of keys than processes."""

    def __init__(self, sharding: Sharding, num_heads: int, kv_heads: int) -> None:
        if kv_heads < sharding.world:
            raise ValueError(
                f"method='ulysses' needs at least one head of keys for each of {sharding.world} processes, got "
                f"{kv_heads}: pass method='ring' or 'gather'"
            )
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


def attend(
    sharding: Sharding,
    step: ForwardPass,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    features: Mapping[str, Tensor],
    key_features: Mapping[str, Tensor],
    **how: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of this process's queries to the keys of all; ``how`` as for `posenc.attention`."""
    heads = Heads(sharding, query.size(1), key.size(1))
    of_queries, of_keys = heads.of_queries, heads.of_keys
    mine = heads.mine(of_queries), heads.mine(of_keys)
    encoding = step.pairs(layer, sharding.whole, sharding.whole, mine)
    if features or key_features:
        encoding = encoding.with_features(
            {name: heads.taken(x, of_queries) for name, x in features.items()},
            {name: heads.cut(x, of_queries) for name, x in key_features.items()},
        )
    mask, sinks = how.pop("attn_mask"), how.pop("sinks")
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)  # checked before
        # A row for each query: whether there is one row for all could not be told from a process with one query.
        mask = heads.taken(mask.expand(-1, -1, query.size(2), -1), of_queries)
    found = attention(
        heads.taken(query, of_queries),
        heads.taken(key, of_keys),
        heads.taken(value, of_keys),
        encoding,
        attn_mask=mask,
        sinks=None if sinks is None else sinks[heads.mine(of_queries)],
        **how,
    )
    if isinstance(found, Tensor):
        return heads.returned(found, of_queries)
    out, lse = found
    return heads.returned(out, of_queries), heads.returned(lse, of_queries)
