"""Attention over tokens that several processes hold, equal to attention over all of them on one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posenc.arguments import check_choice, check_type, shown
from posenc.distributed import blocks, heads
from posenc.distributed.cache import ShardedCache
from posenc.distributed.sharding import Sharding
from posenc.encoding.encoding import Context, Encoding
from posenc.encoding.features import NOTHING, Projected
from posenc.encoding.pieces import gives_weights
from posenc.models.forward_pass import EXCHANGES, ForwardPass, KVCache
from posenc.models.layer_call import LayerCall
from posenc.positions.positions import Positions
from posenc.positions.tiles import Window
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
    skip_below: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`posenc.attention` of this process's queries to the keys of all processes. Every process of the group calls it,
    and every process computes gradients, or none does.

    query, key and value are of this process's tokens, `Sharding.positions`, before any rotation. The output and its
    gradients, and those of the scheme's parameters summed over processes, equal those of `posenc.attention` on all
    tokens. Arguments are those of `posenc.attention` without ``key_norms`` and ``enable_gqa``, and:

    - ``method``: ``"gather"`` gathers all keys and values; memory grows with the whole text. ``"ring"`` attends to the
      keys of one process after another while the next ones travel; memory does not grow with the number of processes,
      and keys outside a window or a document are not sent, nor those that ``skip_below`` leaves out of a head whose
      bias decays, such as ALiBi's. The backward pass computes scores again, once more with some backends.
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
    how["skip_below"] = skip_below
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

    def begin(self, positions: Positions, cache: KVCache | None) -> tuple[Positions, Positions]:
        self.sharding.check(positions)
        if cache is not None and (not isinstance(cache, ShardedCache) or len(cache)):
            what = "one with tokens" if isinstance(cache, ShardedCache) else "a KVCache"
            raise ValueError(f"cache must be an empty ShardedCache while a text is divided among processes, got {what}")
        return self.sharding.whole, positions

    def context(self, scheme: Scheme, context: Context | None, positions: Positions) -> Context | None:
        if not scheme.needs_lengths or (context is not None and context.lengths is not None):
            return context
        return replace(context or Context(), lengths=self.sharding.whole.lengths)

    def gather(self, x: Tensor, dim: int) -> Tensor:
        return self.sharding.gather(x, dim)

    def attend(self, step: ForwardPass, call: LayerCall) -> Tensor | tuple[Tensor, Tensor]:
        _check(self.sharding, call)
        layer = call.layer
        if step.cache is not None:
            if call.key_features:
                raise ValueError("a ShardedCache does not hold cumulative features (such as FoX's gates)")
            step.cache.append(layer, call.key, call.value)
        method = self.method
        possible, why = choose(step.pairs(layer, self.sharding.positions), self.sharding, call.dropout_p)
        if method == "auto":
            method = possible
        elif method == "ring" and possible == "gather" and self.sharding.world > 1:
            raise ValueError(f"method='ring' cannot run this call: {why}; pass method='gather' or 'auto'")
        if method == "gather":
            whole = replace(call, key=self.gather(call.key, 2), value=self.gather(call.value, 2))
            found = whole.attend(step.pairs(layer))
            scheme, _ = step.of_layer(layer)
            features = (*call.features.values(), *call.key_features.values())
            reached = (whole.key, whole.value, *features, *scheme.parameters())
            return found if call.query.size(2) else _connected(found, reached)
        if method == "ulysses":

            def of_all(call: LayerCall, keys: slice, queries: slice) -> Tensor | tuple[Tensor, Tensor]:
                mine = keys if step.of_layer(layer)[0].heads_of == "key" else queries
                return call.attend(step.pairs(layer, self.sharding.whole, self.sharding.whole, mine))

            return heads.attend(self.sharding, call, of_all)
        within, across = self.sharding.within, self.sharding.across
        if within is None or across is None:
            return blocks.attend(self.sharding, step, call)
        return heads.attend(within, call, partial(blocks.attend, across, step))


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
