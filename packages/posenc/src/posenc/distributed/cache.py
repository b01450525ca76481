"""`ShardedCache`: a KV cache whose tokens are divided among processes."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from posenc.arguments import whole
from posenc.backends.bands import merge, sink_of
from posenc.distributed.sharding import gathered, group_of, of_each
from posenc.encoding.context import cumulative_sums, last_sums
from posenc.encoding.terms import gives_weights
from posenc.models.cache import KVCache, append_tokens
from posenc.models.forward_pass import ForwardPass, LayerCall
from posenc.positions.positions import Positions


class ShardedCache(KVCache):
    """The part of a KV cache that one process of a group holds. For inference only.

    A long prompt is read in parallel, under `sharded`: each process then holds the keys of its own tokens. Generated
    tokens are handed to *all* processes. These take turns in holding the new keys, attend to the keys that they hold,
    and merge the results by log-sum-exp, so that all get the same output. A further prompt may be read in parallel too;
    its tokens attend to gathered keys. ``of`` is a ProcessGroup, a DeviceMesh of one axis, or None for all processes.

    >>> cache = ShardedCache()
    >>> with sharded(sharding):
    ...     model(sharding.shard(prompt), positions=sharding.positions, cache=cache)
    >>> logits = model(next_token, positions=cache.positions.following(), cache=cache)

    ``positions`` are those of all tokens, and ``len`` is the number of those that this process holds. `crop` counts all
    tokens, and every process calls it with the same number.

    Cost of a step in each layer: outputs and log-sum-exps of the new tokens are gathered. FoX: every process holds the
    cumulative gates of all tokens, a number per head. CoPE and stick-breaking need whole rows of scores: in each step
    every process gathers the keys and values of *all* tokens, and so needs memory for those of one layer.
    """

    def __init__(self, of: Any = None) -> None:
        super().__init__()
        self.group = group_of(of)
        self.rank, self.world = dist.get_rank(self.group), dist.get_world_size(self.group)
        self._exchange = _InTurn(self)
        self._clocks: list[dict[str, Tensor]] = []  # of all tokens
        self._indices = self._coming = (torch.arange(0),) * self.world
        """Which of all tokens each process holds, and which after this pass."""
        self._after: Positions | None = None
        """The positions of all tokens after this pass."""

    def __len__(self) -> int:
        return len(self._indices[self.rank])

    def _begin(self, positions: Positions, indices: Sequence[Tensor]) -> Positions:
        """The positions of all tokens after a pass over new ones, of which each process is to hold some."""
        self._after = self._extended(positions)
        start = len(self._after) - len(positions)
        self._coming = tuple(
            torch.cat((cached.to(new.device), new + start)) for cached, new in zip(self._indices, indices, strict=True)
        )
        return self._after

    def _commit(self, positions: Positions, num_new: int) -> None:
        super()._commit(positions, num_new)
        self._indices = self._coming

    def crop(self, tokens: int) -> None:
        whole("tokens", tokens, 0, 0 if self.positions is None else len(self.positions))
        mine = (self._indices[self.rank] < tokens).nonzero()[:, 0]
        self._hold(self.positions[:tokens] if self.positions is not None and tokens else None)
        self._layers = [
            {name: x.index_select(2, mine) for name, x in layer.items()} for layer in self._layers if tokens
        ]
        self._indices = tuple(index[index < tokens] for index in self._indices)

    def _of_all(self, x: Tensor) -> Tensor:
        """The tensor of all tokens, in their order, from (batch, heads, tokens that this process holds, ...)."""
        back = torch.cat(self._coming).argsort()
        return gathered(x, 2, [len(index) for index in self._coming], self.group).index_select(2, back)

    def _clock(self, layer: int, name: str, new: Tensor, positions: Positions) -> Tensor:
        """A cumulative feature of all tokens, from the cumulative sums of the new ones at these positions."""
        while layer >= len(self._clocks):
            self._clocks.append({})
        cached = self._clocks[layer].get(name)
        if cached is not None and self.positions is not None:
            cached = cached[:, :, : len(self.positions)]
            new = new + last_sums(cached, self.positions, positions)
        self._clocks[layer][name] = append_tokens(None if self.positions is None else cached, new)
        return self._clocks[layer][name]


class _InTurn:
    """What `ForwardPass` asks of a cache whose tokens processes hold in turn."""

    def __init__(self, cache: ShardedCache) -> None:
        self.cache = cache

    def begin(self, positions: Positions, cache: KVCache | None) -> tuple[Positions, Positions]:
        cached, new = self.cache, torch.arange(len(positions), device=positions.device)
        turn = (new + (0 if cached.positions is None else len(cached.positions))) % cached.world
        whole = cached._begin(positions, [new[turn == rank] for rank in range(cached.world)])
        return whole[cached._coming[cached.rank]]._set(_is_shard=cached.world > 1), whole

    def lengths(self, positions: Positions) -> Tensor:
        return positions.lengths  # new tokens are the last of their texts

    def together(self) -> AbstractContextManager[Any]:
        return nullcontext()  # all processes have the same tokens

    def clock(self, step: ForwardPass, layer: int, name: str, steps: Tensor) -> tuple[Tensor, Tensor]:
        every = self.cache._clock(layer, name, cumulative_sums(steps, step.positions), step.positions)
        return every[:, :, every.size(2) - steps.size(2) :], every

    def attend(self, step: ForwardPass, call: LayerCall) -> Tensor | tuple[Tensor, Tensor]:
        if call.attn_mask is not None or call.dropout_p:
            raise ValueError("attn_mask and dropout are not supported with a ShardedCache")
        cache, sinks, encoding = self.cache, call.sinks, step.pairs(call.layer)
        start = 0 if cache.positions is None else len(cache.positions)
        mine = cache._coming[cache.rank]
        new = mine[mine >= start] - start
        key, value, _ = cache.append(call.layer, call.key[:, :, new], call.value[:, :, new])
        if any(term.reads_rows for term in encoding.score_terms) or gives_weights(encoding.score_terms):
            every = step.pairs(call.layer, cache._after)
            return replace(call, key=cache._of_all(key), value=cache._of_all(value)).attend(every)
        features = {name: x.index_select(2, mine) for name, x in call.key_features.items()}
        part = replace(call, key=key, value=value, key_features=features, sinks=None, return_lse=True)
        found = part.attend(encoding)
        assert isinstance(found, tuple)
        parts = list(zip(*(of_each(x.to(found[1].dtype), cache.group) for x in found), strict=True))
        if sinks is not None:
            parts.append((torch.zeros_like(parts[0][0]), sink_of(sinks, found[1])))
        out, lse = merge(parts)
        out = out.to(call.query.dtype)
        return (out, lse) if call.return_lse else out
