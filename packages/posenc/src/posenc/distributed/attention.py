"""Attention over tokens that several processes hold, equal to attention over all of them on one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from posenc.arguments import check_choice, check_type, shown
from posenc.backends.bands import merge, sink_of
from posenc.backends.request import POSITIONS_REQUIRED_BY
from posenc.compat import uncompiled
from posenc.distributed.cache import ShardedCache
from posenc.distributed.counts import METHODS, MessageSizes, Method, Work, count, groups, refusals
from posenc.distributed.ring import Part, Ring, attend_in_ring, parts
from posenc.distributed.sharding import Needs, Sharding, Shards, check_local, mask_of, transposed
from posenc.encoding.context import NOTHING, Projected, cumulative_sums
from posenc.encoding.encoding import Context, Encoding
from posenc.encoding.staleness import read_by, with_tensors
from posenc.encoding.terms import skipped_by_default
from posenc.models.cache import KVCache
from posenc.models.forward_pass import EXCHANGES, ForwardPass, LayerCall
from posenc.positions.positions import Positions
from posenc.positions.tiles import Window
from posenc.scheme import Scheme
from posenc.schemes.nope import NoPE


def leaves_of(scheme: nn.Module, encoding: Encoding) -> list[Tensor]:
    """The parameters of a scheme, and what else its terms were computed from, such as the weights of another network
    that gave it a table: found in attributes of the scheme, and in the fields and closures of its terms.

    Leaves alone, since a gradient of a tensor *and* of what it was made from would be counted twice.
    """
    found: list[Tensor] = list(scheme.parameters())
    if not torch.is_grad_enabled():
        return found
    attributes = [value for module in scheme.modules() for name, value in vars(module).items() if name[0] != "_"]
    read = read_by((*attributes, *encoding.rotations, *encoding.score_terms, *encoding.values))
    found += [x for x in read if x.is_leaf and x.requires_grad]
    waiting: list[Any] = [x.grad_fn for x in read]
    seen = {None}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            found += [node.variable] if hasattr(node, "variable") else []
            waiting += [following for following, _ in node.next_functions]
    return list({id(x): x for x in found}.values())


# -- a ring -----------------------------------------------------------------------------------------------------------


def attend_in_blocks(
    sharding: Shards,
    step: ForwardPass,
    call: LayerCall,
    mine: tuple[slice, slice] | None = None,
    *,
    ready: AbstractContextManager[Any],
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of this process's queries to the keys of all. ``own_heads`` are the scheme's heads of queries and of
    keys in the call; None: all. In ``ready`` blocks are checked."""
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
                heads = _offset_slice(part.queries, of_queries), _offset_slice(part.keys, of_keys)
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


def _offset_slice(heads: slice, by: int) -> slice:
    return slice(heads.start + by, heads.stop + by)


def _of_heads(x: Tensor, heads: slice) -> Tensor:
    return x if x.size(1) == 1 else x[:, heads]


# -- Ulysses (Jacobs et al. 2023): tokens are exchanged for heads -----------------------------------------------------


Result: TypeAlias = Tensor | tuple[Tensor, Tensor]


class Heads:
    """Which heads each process of a sharding has: whole groups of query heads that share a head of keys. They may be
    uneven, and there are at least as many heads of keys as processes."""

    def __init__(self, sharding: Shards, num_heads: int, kv_heads: int) -> None:
        self.sharding = sharding
        self.of_keys = [len(part) for part in torch.arange(kv_heads).tensor_split(sharding.world)]
        self.of_queries = [count * (num_heads // kv_heads) for count in self.of_keys]
        self.back = torch.cat(sharding.indices).argsort()

    def own_heads(self, sizes: list[int]) -> slice:
        """This process's heads."""
        start = sum(sizes[: self.sharding.rank])
        return slice(start, start + sizes[self.sharding.rank])

    def call_of_heads(self, x: Tensor, sizes: list[int]) -> Tensor:
        """(batch, heads, this process's tokens, ...) -> (batch, this process's heads, all tokens, ...)."""
        if x.size(1) == 1 and sum(sizes) > 1:  # the same for all heads
            return self.sharding.gather(x, 2)
        moved = transposed(x, 1, sizes, 2, self.sharding.counts, self.sharding.group)
        return moved.index_select(2, self.back.to(x.device))

    def to_tokens(self, x: Tensor, sizes: list[int]) -> Tensor:
        """The inverse of `call_of_heads`."""
        x = x.index_select(2, torch.cat(self.sharding.indices).to(x.device))
        return transposed(x, 2, self.sharding.counts, 1, sizes, self.sharding.group)


def attend_in_heads(
    sharding: Shards, call: LayerCall, inner: Callable[[LayerCall, tuple[slice, slice]], Result]
) -> Result:
    """Attention of this process's queries, from ``inner``: attention of all tokens of the sharding in some
    of the heads, given those of queries and of keys."""
    query, mask, sinks = call.query, call.attn_mask, call.sinks
    heads = Heads(sharding, query.size(1), call.key.size(1))
    of_queries, of_keys = heads.of_queries, heads.of_keys
    own = heads.own_heads(of_queries)
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)  # checked before
        # A row for each query: whether there is one row for all could not be told from a process with one query.
        mask = heads.call_of_heads(mask.expand(-1, -1, query.size(2), -1), of_queries)
    if sinks is not None:
        sinks = heads.call_of_heads(sinks, of_queries) if sinks.dim() == 3 else sinks[own]
    taken = replace(
        call,
        query=heads.call_of_heads(query, of_queries),
        key=heads.call_of_heads(call.key, of_keys),
        value=heads.call_of_heads(call.value, of_keys),
        features={name: heads.call_of_heads(x, of_queries) for name, x in call.features.items()},
        key_features={name: _of_heads(x, own) for name, x in call.key_features.items()},
        attn_mask=mask,
        sinks=sinks,
    )
    found = inner(taken, (own, heads.own_heads(of_keys)))
    return with_tensors(found, lambda x: heads.to_tokens(x, of_queries))


BOUND = (
    "encoding must be bound to positions inside posenc.distributed.sharded, since this process's tokens do not begin "
    "at 0, and attention would be among them alone: call posenc.distributed.attention, or pass scheme(positions) for "
    "tokens that are not divided"
)


def attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    scheme: Scheme | None,
    sharding: Sharding,
    *,
    method: Method = "ring",
    features: Projected = NOTHING,
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    window: Window = None,
    sinks: Float[Tensor, " heads"] | Float[Tensor, "batch heads queries"] | None = None,
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

    - ``method``: ``"ring"`` attends to the keys of one process after another while the next ones travel; memory does
      not grow with the number of processes, and keys outside a window or a document are not sent, nor those that
      ``skip_below`` leaves out of a head whose bias decays, such as ALiBi's. The backward pass computes scores again,
      once more with some backends. It refuses dropout, and schemes that need whole rows of scores. ``"gather"`` gathers
      all keys and values, and runs every call; memory grows with the whole text. ``"ulysses"`` exchanges tokens for
      heads, so that each process has all tokens of some heads; it needs at least one head of keys per process.
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
    return step.attention(
        query,
        key,
        value,
        window=window,
        attn_mask=attn_mask,
        features=of_queries,
        key_features=of_keys,
        sinks=sinks,
        dropout_p=dropout_p,
        scale=scale,
        backend=backend,
        skip_below=skip_below,
        return_lse=return_lse,
    )


@contextmanager
def sharded(sharding: Sharding, method: Method = "ring") -> Iterator[None]:
    """A context in which every new `ForwardPass`, also those that posenc's models make, attends to the tokens of all
    processes. Its positions must be ``sharding.positions``."""
    check_type("sharding", sharding, Sharding)
    check_choice("method", method, METHODS)
    exchange = _Exchange(sharding, method)
    EXCHANGES.append(exchange)
    POSITIONS_REQUIRED_BY.append(BOUND)
    try:
        yield
    finally:
        EXCHANGES.remove(exchange)
        POSITIONS_REQUIRED_BY.remove(BOUND)


@dataclass(frozen=True)
class Explanation:
    """The counted `Work` of each method that can run a call, and why others cannot run it."""

    works: Mapping[str, Work]
    refusals: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{name}: {each}" for name, each in self.works.items()]
        lines += [f"not {name}: {reason}" for name, reason in self.refusals.items()]
        return "\n".join(lines)


def explain(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    scheme: Scheme | None,
    sharding: Sharding,
    *,
    is_causal: bool = False,
    window: Window = None,
    dropout_p: float = 0.0,
    context: Context | None = None,
) -> Explanation:
    """What each method computes, sends and holds for `attention` with these arguments, and why others cannot run it.
    Nothing is sent, and tensors may be on the "meta" device. A backward pass is included unless gradients are disabled.

    Counts follow from positions: a ring computes and sends less in heads whose bias decays, by the norms of their
    queries and keys. With n processes they take n^2 sorts of a process's tokens.

    >>> q, k = (torch.empty(1, heads, len(sharding.positions), 128, device="meta") for heads in (32, 8))
    >>> print(posenc.distributed.explain(q, k, k, posenc.ALiBi(32), sharding, is_causal=True))
    """
    check_type("sharding", sharding, Sharding)
    with sharded(sharding):
        step = ForwardPass(
            NoPE() if scheme is None else scheme, sharding.positions, is_causal=is_causal, context=context
        )
    call = LayerCall(query, key, value, is_causal=is_causal, window=window, dropout_p=dropout_p)
    _check(sharding, call)
    batch, num_heads, _, head_dim = query.shape
    of_keys = key.size(1), head_dim, value.size(-1), key.element_size()
    rows = max(shard.rows for shard in sharding.shards)
    sizes = MessageSizes(batch, num_heads, *of_keys, rows, trains=torch.is_grad_enabled())
    refused = refusals(step.pairs(call.layer, sharding.positions), sharding, key.size(1), dropout_p)
    works = {}
    for method, attributes in groups(sharding, refused).items():
        needs = Needs([sharding.whole[index] for index in attributes], *mask_of(is_causal, window))
        works[method] = count(needs, sharding.counts, sizes, method)
    return Explanation(works, refused)


@dataclass(frozen=True, eq=False)
class _Exchange:
    """What `ForwardPass` asks of a text that is divided among processes. `torch.compile` breaks its graph wherever
    processes speak to one another."""

    sharding: Sharding
    method: Method

    def together(self) -> AbstractContextManager[Any]:
        # A compiled graph cannot break within a context.
        return nullcontext() if torch.compiler.is_compiling() else self.sharding.together()

    @uncompiled
    def begin(self, positions: Positions, cache: KVCache | None) -> tuple[Positions, Positions]:
        tokens = len(self.sharding.positions)
        with self.sharding.together():
            if isinstance(cache, ShardedCache) and cache.positions is not None and len(positions) != tokens:
                raise ValueError(
                    f"positions must be those of this process's {tokens} tokens, sharding.positions, got "
                    f"{len(positions)}: run generated tokens, which all processes are given, outside of sharded"
                )
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
        whole = cache._begin(whole, self.sharding.indices)
        return whole, whole

    def lengths(self, positions: Positions) -> Tensor:
        return self.sharding.whole.lengths

    @uncompiled
    def clock(self, step: ForwardPass, layer: int, name: str, steps: Tensor) -> tuple[Tensor, Tensor]:
        # A few numbers per token, so that sums are those of the whole text, to the bit.
        new = cumulative_sums(self.sharding.gather(steps, 2), self.sharding.whole)
        every, cache = new, step.cache
        if isinstance(cache, ShardedCache):
            every = cache._clock(layer, name, new, self.sharding.whole)
        return every[:, :, every.size(2) - new.size(2) :].index_select(
            2, self.sharding.indices[self.sharding.rank]
        ), every

    @uncompiled
    def attend(self, step: ForwardPass, call: LayerCall) -> Tensor | tuple[Tensor, Tensor]:
        layer, cache, method = call.layer, step.cache, str(self.method)
        is_first = step.is_first(layer)

        def ready() -> AbstractContextManager[Any]:
            return self.sharding.together() if is_first else nullcontext([])

        with ready() as same:
            _check(self.sharding, call)
            pairs = step.pairs(layer, self.sharding.positions)
            refused = refusals(pairs, self.sharding, call.key.size(1), call.dropout_p)
            if method in refused:
                able = " or ".join(repr(other) for other in METHODS if other not in refused)
                raise ValueError(f"method={method!r} cannot run this call: {refused[method]}; pass method={able}")
            within, across = self.sharding.within, self.sharding.across
            if is_first:
                same += method, *_known(step.of_layer(layer)[0], call)
            if is_first and (method == "ulysses" or within is not None):
                self._try_all_heads(step, call)
        if cache is not None:
            assert isinstance(cache, ShardedCache)
            key, value, _ = cache.append(layer, call.key, call.value)
            if cache.positions is not None:
                return self._after_others(step, call, cache, key, value)
        if method == "gather":
            whole = replace(call, key=self.sharding.gather(call.key, 2), value=self.sharding.gather(call.value, 2))
            with ready():
                if is_first:
                    whole.check(step.pairs(layer))
            found = whole.attend(step.pairs(layer))
            scheme, _ = step.of_layer(layer)
            features = (*call.features.values(), *call.key_features.values())
            if call.query.size(2):
                return found
            # Gradients of zero for tensors that a process without queries has nothing of: the others wait for its part.
            reached = (whole.key, whole.value, *features, *scheme.parameters())
            nothing = sum(x.flatten()[:0].sum() for x in reached if x.requires_grad)
            return with_tensors(found, lambda x: x + nothing)
        if method == "ulysses":

            def of_all(call: LayerCall, mine: tuple[slice, slice]) -> Tensor | tuple[Tensor, Tensor]:
                return call.attend(step.pairs(layer, self.sharding.whole, self.sharding.whole, mine))

            return attend_in_heads(self.sharding, call, of_all)
        if within is None or across is None:
            return attend_in_blocks(self.sharding, step, call, ready=ready())
        return attend_in_heads(within, call, partial(attend_in_blocks, across, step, ready=ready()))

    def _after_others(
        self, step: ForwardPass, call: LayerCall, cache: ShardedCache, key: Tensor, value: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention where the cache holds earlier tokens, by gathering all keys and values."""
        if self.method != "gather" or call.attn_mask is not None:
            raise ValueError(
                "method must be 'gather', and attn_mask None, where tokens come after those of a cache, got "
                f"{self.method!r}{'' if call.attn_mask is None else ' and a mask'}"
            )
        return replace(call, key=cache._of_all(key), value=cache._of_all(value)).attend(step.pairs(call.layer))

    @torch.no_grad()
    def _try_all_heads(self, step: ForwardPass, call: LayerCall) -> None:
        """Raises the errors of a scheme that was made for other heads or widths, on every process: one that has some of
        the heads would not notice. One query and key are enough."""
        if not len(self.sharding.whole):
            return

        position = self.sharding.whole[:1]

        def first(x: Tensor) -> Tensor:
            return x.new_zeros(position.rows, x.size(1), 1, *x.shape[3:])

        one = replace(call, query=first(call.query), key=first(call.key), value=first(call.value))
        features, of_keys = ({name: first(x) for name, x in of.items()} for of in (call.features, call.key_features))
        one = replace(one, features=features, key_features=of_keys, attn_mask=None, sinks=None, backend="reference")
        one.check(step.pairs(call.layer, position, position))


def _check(sharding: Sharding, call: LayerCall) -> None:
    """ValueError for shapes that do not match the sharding, before anything is sent."""
    query, mask, sinks = call.query, call.attn_mask, call.sinks
    mine, every = sharding.counts[sharding.rank], len(sharding.whole)
    for name, x in (("query", query), ("key", call.key), ("value", call.value)):
        check_local(name, x)
        if not isinstance(x, Tensor) or x.dim() != 4 or x.size(2) != mine:
            raise ValueError(
                f"{name} must be (batch, heads, {mine}, head_dim), with the tokens of this process, got {shown(x)}: "
                "divide it with sharding.shard(x, dim=2)"
            )
    if mask is not None:
        heads = query.size(1)
        fits = isinstance(mask, Tensor) and 2 <= mask.dim() <= 4
        if not fits or any(m not in (1, n) for m, n in zip(mask.shape[::-1], (every, mine, heads), strict=False)):
            raise ValueError(
                f"attn_mask must broadcast to (batch, {heads}, {mine}, {every}), this process's queries and all keys, "
                f"got {shown(mask)}: divide it with sharding.shard(mask, dim=-2)"
            )
    wanted = (query.shape[1:2], query.shape[:3])
    if sinks is not None and (not isinstance(sinks, Tensor) or sinks.shape not in wanted):
        of_heads, of_queries = map(tuple, wanted)
        raise ValueError(
            f"sinks must be {of_heads}, a logit for each head, or {of_queries}, one for each head and query of this "
            f"process, got {shown(sinks)}"
        )


def _known(scheme: Scheme, call: LayerCall) -> list[object]:
    """What processes send depends on this, which they must have in common: by it each knows what others do."""
    tensors = {"query": call.query, "key": call.key, "value": call.value, **call.features, **call.key_features}
    found: list[object] = [[type(module).__name__ for module in scheme.modules()], torch.is_grad_enabled()]
    for name, x in tensors.items():
        found.append((name, x.size(0), x.size(1), *x.shape[3:], x.dtype, x.requires_grad))
    found += [call.is_causal, call.window, call.dropout_p, call.scale, call.skip_below, call.backend, call.return_lse]
    found += [x if x is None else (x.dtype, x.dim()) for x in (call.attn_mask, call.sinks)]
    return found
