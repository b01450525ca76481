"""Attention over tokens that several processes hold, equal to attention over all of them on one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posenc.arguments import check_choice, check_type, shown
from posenc.backends.merging import merge
from posenc.distributed import heads, ring
from posenc.distributed.cache import ShardedCache
from posenc.distributed.sharding import Sharding
from posenc.encoding.clocks import readings
from posenc.encoding.encoding import Context, Encoding
from posenc.encoding.features import NOTHING, Projected
from posenc.encoding.pieces import gives_weights
from posenc.models.forward_pass import EXCHANGES, ForwardPass, KVCache
from posenc.models.layer_call import LayerCall
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, Visibility, Window, check_window
from posenc.scheme import Scheme
from posenc.schemes.nope import NoPE

Method = Literal["auto", "gather", "ring", "ulysses"]
METHODS = ("auto", "gather", "ring", "ulysses")


def attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    scheme: Scheme | None,
    sharding: Sharding,
    *,
    method: Method = "auto",
    features: Projected = NOTHING,
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    window: Window = None,
    sinks: Float[Tensor, " heads"] | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    context: Context | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`posenc.attention` of this process's queries to the keys of all processes. Every process of the group calls it,
    and every process computes gradients, or none does.

    query, key and value are of this process's tokens, `Sharding.positions`, before any rotation. The output and its
    gradients, and those of the scheme's parameters summed over processes, equal those of `posenc.attention` on all
    tokens. Arguments are those of `posenc.attention` without ``skip_below``, ``key_norms`` and ``enable_gqa``, and:

    - ``method``: ``"gather"`` gathers all keys and values; memory grows with the whole text. ``"ring"`` attends to the
      keys of one process after another while the next ones travel; memory does not grow with the number of processes,
      the backward pass computes scores once more, and keys outside a window or a document are not sent.
      ``"ulysses"`` exchanges tokens for heads, so that each process has all tokens of some heads; it needs at least one
      head of keys per process. ``"auto"``: see `choose`.
    - ``features``: the layer's projections for `Scheme.features` of this process's tokens.
    - ``attn_mask``: (..., queries of this process, keys of all processes), such as ``sharding.shard(mask, -2)``.

    For several layers make one `ForwardPass` under `sharded`, so that a scheme is bound once. Gradients of parameters
    are partial: each process has those of its own queries, and they must be summed over processes, as DDP and FSDP do
    for the mean of losses.
    """
    check_type("sharding", sharding, Sharding)
    with sharded(sharding, method):
        step = ForwardPass(
            NoPE() if scheme is None else scheme,
            sharding.positions,
            is_causal=is_causal,
            dtype=torch.promote_types(query.dtype, torch.float32),
            context=context,
        )
    of_queries, of_keys = step.features(features)
    how: dict[str, Any] = {"sinks": sinks, "dropout_p": dropout_p, "scale": scale, "backend": backend}
    return step.attention(
        query,
        key,
        value,
        window=window,
        attn_mask=attn_mask,
        features=of_queries,
        key_features=of_keys,
        return_lse=return_lse,
        **how,
    )


@contextmanager
def sharded(sharding: Sharding, method: Method = "auto") -> Iterator[None]:
    """A context in which every new `ForwardPass`, also those that posenc's models make, attends to the tokens of all
    processes. Its positions must be ``sharding.positions``."""
    check_type("sharding", sharding, Sharding)
    check_choice("method", method, METHODS)
    exchange = _Exchange(sharding, method)
    EXCHANGES.append(exchange)
    try:
        yield
    finally:
        EXCHANGES.remove(exchange)


def choose(encoding: Encoding, sharding: Sharding, dropout_p: float = 0.0) -> tuple[Method, str]:
    """The method that ``"auto"`` takes, and why."""
    if sharding.world == 1:
        return "gather", "there is one process"
    if any(piece.reads_rows for piece in encoding.pieces) or gives_weights(encoding.pieces):
        return "gather", "a score term needs whole rows of scores"
    if dropout_p:
        return "gather", "with dropout, blocks that are computed twice would be dropped differently"
    return (
        "ring",
        "blocks of keys are attended to one by one, in memory that does not grow with the number of processes",
    )


@dataclass(frozen=True, eq=False)
class _Exchange:
    """What `ForwardPass` asks of a text that is divided among processes."""

    sharding: Sharding
    method: Method

    @property
    def positions(self) -> Positions:
        return self.sharding.positions

    @property
    def counts(self) -> tuple[int, ...]:
        return self.sharding.counts

    def agree(self, wrong: str | None) -> None:
        self.sharding.agree(wrong)

    def begin(self, positions: Positions, cache: KVCache | None) -> tuple[Positions, Positions]:
        self.sharding.check(positions)
        whole = self.sharding.whole
        if cache is None:
            return whole, whole
        if not isinstance(cache, ShardedCache):
            raise ValueError("cache must be a ShardedCache while a text is divided among processes, got a KVCache")
        if (cache.rank, cache.world) != (self.sharding.rank, self.sharding.world):
            raise ValueError(
                f"cache must be of the processes of the sharding, got process {cache.rank} of {cache.world} and "
                f"{self.sharding.rank} of {self.sharding.world}: make it with ShardedCache(of) and Sharding(..., of)"
            )
        whole = cache.begin(whole, self.sharding.indices)
        return whole, whole

    def context(self, scheme: Scheme, context: Context | None, positions: Positions) -> Context | None:
        if not scheme.needs_lengths or (context is not None and context.lengths is not None):
            return context
        return replace(context or Context(), lengths=self.sharding.whole.lengths)

    def clock(self, step: ForwardPass, layer: int, name: str, steps: Tensor) -> tuple[Tensor, Tensor]:
        # A few numbers per token, so that sums are those of the whole text, to the bit.
        new = readings(self.sharding.gather(steps, 2), self.sharding.whole)
        every, cache = new, step.cache
        if isinstance(cache, ShardedCache):
            every = cache.clock(layer, name, new, self.sharding.whole)
        return every[:, :, every.size(2) - new.size(2) :].index_select(
            2, self.sharding.indices[self.sharding.rank]
        ), every

    def attend(self, step: ForwardPass, call: LayerCall) -> Tensor | tuple[Tensor, Tensor]:
        _check(self.sharding, call)
        layer = call.layer
        method, cache = self.method, step.cache
        possible, why = choose(step.pairs(layer, self.sharding.positions), self.sharding, call.dropout_p)
        if cache is not None:
            assert isinstance(cache, ShardedCache)
            key, value, _ = cache.append(layer, call.key, call.value)
            if cache.positions is not None:
                return self._after_others(step, call, cache, key, value)
        if method == "auto":
            method = possible
        elif method == "ring" and possible == "gather" and self.sharding.world > 1:
            raise ValueError(f"method='ring' cannot run this call: {why}; pass method='gather' or 'auto'")
        if method == "gather":
            whole = replace(call, key=self.sharding.gather(call.key, 2), value=self.sharding.gather(call.value, 2))
            found = whole.attend(step.pairs(layer))
            scheme, _ = step.of_layer(layer)
            features = (*call.features.values(), *call.key_features.values())
            reached = (whole.key, whole.value, *features, *scheme.parameters())
            return found if call.query.size(2) else _connected(found, reached)
        if method == "ulysses":
            return heads.attend(self.sharding, step, call)
        out, lse = self._by_ring(step, call)
        if call.sinks is not None:  # one more key of every row, without a value
            sink = call.sinks.to(lse.dtype)[:, None].expand_as(lse)
            out, lse = merge([(out, lse), (torch.zeros_like(out), sink)])
        return (out, lse) if call.return_lse else out

    def _after_others(
        self, step: ForwardPass, call: LayerCall, cache: ShardedCache, key: Tensor, value: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention where the cache holds earlier tokens, by gathering all keys and values."""
        if self.method not in ("auto", "gather") or call.attn_mask is not None:
            raise ValueError(
                "method must be 'auto' or 'gather', and attn_mask None, where tokens come after those of a cache, got "
                f"{self.method!r}{'' if call.attn_mask is None else ' and a mask'}"
            )
        return replace(call, key=cache.of_all(key), value=cache.of_all(value)).attend(step.pairs(call.layer))

    def _by_ring(self, step: ForwardPass, call: LayerCall) -> tuple[Tensor, Tensor]:
        sharding, layer, window = self.sharding, call.layer, call.window
        left, right = (None, None) if isinstance(window, Chunk) else check_window(window)
        chunk = window.size if isinstance(window, Chunk) else None
        needs = sharding.needs(Visibility(step.is_causal, left, right), chunk)
        mine = [needs.keys(sharding.rank, source) for source in range(sharding.world)]
        # Bound here, not in a block, which is computed without gradients at first.
        encodings = {
            source: step.pairs(layer, sharding.keys_of(source, keys))
            for source, keys in enumerate(mine)
            if keys is not None
        }
        mask = call.attn_mask
        # Everything besides query, key and value that may have a gradient is handed to the blocks.
        float_mask = [mask] if mask is not None and mask.is_floating_point() else []
        tensors = [*call.features.values(), *call.key_features.values(), *float_mask]
        of_block = replace(call, sinks=None, return_lse=True)

        def run(source: int, q: Tensor, k: Tensor, v: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
            keys, rest = mine[source], iter(leaves)
            assert keys is not None
            here = sharding.indices[source][keys]
            features = {name: next(rest) for name in call.features}
            key_features = {name: next(rest).index_select(2, here) for name in call.key_features}
            part = next(rest) if float_mask else mask
            part = part if part is None or part.size(-1) == 1 else part.index_select(-1, here)
            block = replace(of_block, query=q, key=k, value=v, attn_mask=part)
            found = replace(block, features=features, key_features=key_features).attend(encodings[source])
            assert isinstance(found, tuple)
            return found

        scheme, _ = step.of_layer(layer)
        around = ring.Ring(needs, run, sharding.rank, sharding.group)
        return ring.attend(around, call.query, call.key, call.value, tensors, [*scheme.parameters()])


def _check(sharding: Sharding, call: LayerCall) -> None:
    """ValueError for shapes that do not match the sharding, before anything is sent."""
    query, mask, sinks = call.query, call.attn_mask, call.sinks
    mine, every = sharding.counts[sharding.rank], len(sharding.whole)
    for name, x in (("query", query), ("key", call.key), ("value", call.value)):
        if not isinstance(x, Tensor) or x.dim() != 4 or x.size(2) != mine:
            raise ValueError(
                f"{name} must be (batch, heads, {mine}, head_dim), with the tokens of this process, got {shown(x)}: "
                "divide it with sharding.shard(x, dim=2)"
            )
    if mask is not None:
        heads = query.size(1)
        if not isinstance(mask, Tensor) or not 2 <= mask.dim() <= 4 or not _broadcasts(mask, (heads, mine, every)):
            raise ValueError(
                f"attn_mask must broadcast to (batch, {heads}, {mine}, {every}), this process's queries and all keys, "
                f"got {shown(mask)}: divide it with sharding.shard(mask, dim=-2)"
            )
    if sinks is not None and (not isinstance(sinks, Tensor) or tuple(sinks.shape) != (query.size(1),)):
        raise ValueError(f"sinks must be ({query.size(1)},), a logit for each head, got {shown(sinks)}")


def _broadcasts(mask: Tensor, shape: tuple[int, ...]) -> bool:
    return all(m in (1, n) for m, n in zip(mask.shape[::-1], shape[::-1], strict=False))


def _connected(found: Tensor | tuple[Tensor, Tensor], reached: Sequence[Tensor]) -> Tensor | tuple[Tensor, Tensor]:
    """The same, with gradients of zero for tensors that a process without queries has nothing of: the others wait for
    its part in their gradients."""
    nothing = sum(x.flatten()[:0].sum() for x in reached if x.requires_grad)
    if isinstance(found, Tensor):
        return found + nothing
    return found[0] + nothing, found[1]
