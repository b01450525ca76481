"""`ForwardPass`: positions, cache and encodings of one forward pass, for any model, and what layers ask of it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.arguments import check_flag, check_type
from posenc.backends.api import attention
from posenc.backends.plan import check
from posenc.backends.request import Request
from posenc.encoding.context import NOTHING, Features, Projected, check_wanted, continue_feature, feature_tensor
from posenc.encoding.encoding import Context, Encoding
from posenc.encoding.rotation import Rotation, check_unrotated
from posenc.models.cache import NORMS_FEATURE, KVCache, last_tokens
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, Window, check_window
from posenc.schedule import Schedule
from posenc.scheme import Scheme, is_scheme, needs_raw_keys, wanted_by


@dataclass(frozen=True, eq=False)
class LayerCall:
    """One layer's tensors in a forward pass, and the options of `posenc.attention`."""

    query: Tensor
    key: Tensor
    value: Tensor
    layer: int = 0
    features: Features = field(default_factory=dict)
    key_features: Features = field(default_factory=dict)
    is_causal: bool = False
    window: Window = None
    attn_mask: Tensor | None = None
    sinks: Tensor | None = None
    dropout_p: float = 0.0
    scale: float | None = None
    backend: str = "auto"
    skip_below: float | None = None
    return_lse: bool = False

    def check(self, encoding: Encoding) -> None:
        """Raises the errors of `attend`, and computes nothing. What it finds is kept for `attend`."""
        check(Request.of(**self._arguments(encoding)))

    def attend(self, encoding: Encoding, key_norms: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Attention by an encoding of these queries and keys, with their features."""
        return attention(**self._arguments(encoding), key_norms=key_norms)

    def _arguments(self, encoding: Encoding) -> dict[str, Any]:
        if self.features or self.key_features:
            encoding = encoding.with_features(self.features, self.key_features)
        return {"encoding": encoding, **{name: getattr(self, name) for name in PASSED_ON}}


# The fields that are arguments of attention.
PASSED_ON = [each.name for each in fields(LayerCall) if each.name not in ("layer", "features", "key_features")]


class Exchange(Protocol):
    """How the tokens of a `ForwardPass` attend to those that other processes hold: see `posenc.distributed`."""

    def begin(self, positions: Positions, cache: KVCache | None) -> tuple[Positions, Positions]:
        """The positions of the keys that a pass over these tokens attends to, and of those that its cache will hold."""

    def lengths(self, positions: Positions) -> Tensor:
        """The lengths of the texts that the tokens of a pass are of."""

    def clock(self, step: ForwardPass, layer: int, name: str, steps: Tensor) -> tuple[Tensor, Tensor]:
        """A cumulative feature at the tokens of the pass, and at all keys, from its increments at the former."""

    def attend(self, step: ForwardPass, call: LayerCall) -> Tensor | tuple[Tensor, Tensor]:
        """Attention of this process's queries to the keys of all."""

    def together(self) -> AbstractContextManager[Any]:
        """A context in which an error on one process is an error on all."""


class TextExchange(Exchange, Protocol):
    """The exchange of a context in which every new pass has one process's tokens of a text."""

    @property
    def sharding(self) -> Any:
        """The `posenc.distributed.Sharding` of the text."""


EXCHANGES: list[TextExchange] = []
"""Those of the contexts that are open; the last one is that of new forward passes. It holds for all threads, since
autograd computes checkpointed layers again in threads of its own."""


class ForwardPass:
    """One forward pass of a model: made once from the positions of its tokens, then used by every layer.

    It opens each door once, at the right time, so that the model need not know which doors a scheme has. Call `add` on
    the input (or in every layer) and `attention` in every layer: it rotates the new tokens, appends their keys and
    values to the cache, and attends to all of them. ``scheme`` is a scheme, or a `Schedule`, for which every layer
    passes its number.

    >>> with ForwardPass(scheme, Positions.arange(n, start=len(cache)), cache) as step:
    ...     x = step.add(x)
    ...     for layer, block in enumerate(blocks):
    ...         x = x + block.project(step.attention(*block.query_key_value(x), layer=layer))

    Without a cache the tokens attend to one another, and ``with`` may be omitted. With a cache they also attend to the
    cached tokens, and are added to the cache when the pass ends without an error. ``positions`` are those of the new
    tokens only. Raises ValueError for positions that do not continue those of the cache.
    """

    _token_doors: ClassVar[tuple[str, ...]] = ("add", "rotate")
    """Those that a pass opens where a token lives."""

    def __init__(
        self,
        scheme: Scheme | Schedule,
        positions: Positions,
        cache: KVCache | None = None,
        *,
        is_causal: bool = True,
        dtype: torch.dtype = torch.float32,
        context: Context | None = None,
    ) -> None:
        if not isinstance(scheme, Schedule) and not is_scheme(scheme):
            check_type("scheme", scheme, Scheme, Schedule)
        check_type("positions", positions, Positions)
        check_type("cache", cache, KVCache, None)
        check_flag("is_causal", is_causal)
        self._schedule = scheme
        self.positions, self.cache, self.is_causal = positions, cache, is_causal
        self._dtype, self._context = dtype, context
        of_cache: Exchange | None = None if cache is None else cache._exchange
        self._exchange = EXCHANGES[-1] if EXCHANGES else of_cache
        if self._exchange is None and positions._is_shard:
            raise ValueError(
                "positions must be those of all tokens, got a shard's: use posenc.distributed.sharded, and keep it "
                "open while activation checkpointing recomputes layers"
            )
        if self._exchange is not None:
            self.key_positions, self._pending_positions = self._exchange.begin(positions, cache)
        else:
            self.key_positions = positions if cache is None else cache._extended(positions)
            self._pending_positions = self.key_positions  # those that the cache is to hold
        self._is_open = False
        self._added: set[int] = set()  # numbers of schemes whose vectors were added
        self._called: set[int] = set()  # and of those that have attended
        # By whether gradients are recorded too: reentrant checkpointing runs layers without first, and then again.
        self._tokens: dict[tuple[int, bool], Encoding] = {}
        self._pairs: dict[tuple[Any, ...], tuple[Any, Encoding]] = {}  # with the number of keys

    def __enter__(self) -> ForwardPass:
        self._is_open = True
        if self.cache is not None:
            self.cache._pending = {}  # what a failed pass has left behind
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Commits the new tokens to the cache, unless an error was raised."""
        self._is_open = False
        if kind is None and self.cache is not None:
            self.cache._commit(self._pending_positions, self.positions.order.size(1))

    def of_layer(self, layer: int) -> tuple[Scheme, Window]:
        """The scheme and the window of a layer."""
        return self._schedule[layer] if isinstance(self._schedule, Schedule) else (self._schedule, None)

    def _number(self, layer: int) -> int:
        return self._schedule.number(layer) if isinstance(self._schedule, Schedule) else 0

    def tokens(self, layer: int = 0) -> Encoding:
        """The token doors of the new tokens in a layer. Layers with the same scheme share them."""
        which = self._number(layer), torch.is_grad_enabled()
        if which not in self._tokens:
            scheme, _ = self.of_layer(layer)
            with nullcontext() if self._exchange is None else self._exchange.together():
                self._tokens[which] = scheme(  # __call__, which wrappers intercept
                    self.positions, dtype=self._dtype, context=self._context_of(scheme), doors=self._token_doors
                )
        return self._tokens[which]

    def pairs(
        self,
        layer: int = 0,
        keys: Positions | None = None,
        queries: Positions | None = None,
        heads: tuple[slice, slice] | None = None,
        window: Window = None,
    ) -> Encoding:
        """The pair doors between the new tokens and the keys that the layer's window, or ``window``, needs, or between
        ``queries`` and ``keys`` in some of the heads of queries and keys. They include the rotate door where rotations
        depend on the length of the text or on the pair, since the cache then keeps unrotated keys."""
        part = None if heads is None else tuple((some.start, some.stop) for some in heads)
        n: Any = None
        which: tuple[Any, ...] = self._number(layer), torch.is_grad_enabled(), part
        if keys is not None or queries is not None:
            which = *which, queries, keys  # the objects themselves: two that are equal may differ in what is known
        elif self.cache is not None and self._exchange is None:
            window = self.of_layer(layer)[1] if window is None else window
            if any(rotation.needs_whole_documents for rotation in self.tokens(layer).rotations):
                window, self.cache._is_whole = None, True
            n = self.cache._needed(layer, self.positions, window) + self.positions.order.size(1)
            which = *which, window if isinstance(window, Chunk) else check_window(window)
        if which not in self._pairs or self._pairs[which][0] != n:
            scheme, _ = self.of_layer(layer)
            context = self._context_of(scheme)
            if heads is not None:
                context = (context or Context())._part(*heads)
            doors = ("rotate", "score", "value") if needs_raw_keys(scheme) else ("score", "value")
            queries = self.positions if queries is None else queries
            keys = self.key_positions if keys is None else keys
            keys = keys if n is None else last_tokens(keys, n)
            self._pairs[which] = n, scheme(queries, keys, dtype=self._dtype, context=context, doors=doors)
        return self._pairs[which][1]

    def is_first(self, layer: int) -> bool:
        """Whether the scheme of a layer has not attended in this pass."""
        return self._number(layer) not in self._called

    def _together(self, layer: int) -> AbstractContextManager[Any]:
        """A context in which an error on one process is an error on all, the first time that a scheme is called."""
        return self._exchange.together() if self._exchange is not None and self.is_first(layer) else nullcontext()

    def _forget(self, layer: int) -> None:
        """Drops the encodings of a layer that has a scheme of its own, so that activation checkpointing, which runs the
        layer again, makes them again too."""
        number = self._number(layer)
        self._tokens = {which: encoding for which, encoding in self._tokens.items() if which[0] != number}
        self._pairs = {which: encoding for which, encoding in self._pairs.items() if which[0] != number}

    def _context_of(self, scheme: Scheme) -> Context | None:
        context = self._context
        if self._exchange is None or not scheme.needs_lengths or (context is not None and context.lengths is not None):
            return context
        return replace(context or Context(), lengths=self._exchange.lengths(self.positions))

    def add(self, x: Float[Tensor, "batch tokens dim"], layer: int = 0) -> Float[Tensor, "batch tokens dim"]:
        """The add door: x_i + P[p_i]. Returns x itself if the scheme adds nothing."""
        self._added.add(self._number(layer))
        return self.tokens(layer)._add(x, layer)

    def features(self, projected: Projected, layer: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The features of the new tokens that the layer's scheme needs, as queries and as keys, for `attention`.

        ``projected`` holds the layer's projections of its hidden state, (batch, heads, tokens[, width]) for each name
        in ``scheme.features``. Cumulative features continue from the last cached token of the same document. Raises
        ValueError for a projection that is missing, unexpected, not floating or of the wrong shape.

        >>> features, key_features = step.features({"forgotten": block.gate(x).transpose(1, 2)}, layer)
        >>> out = step.attention(query, key, value, layer, features=features, key_features=key_features)
        """
        scheme, _ = self.of_layer(layer)
        of_queries, of_keys = {}, {}
        wanted, heads = wanted_by(scheme), (self._context or Context())._heads_of
        with self._together(layer):
            check_wanted(wanted, projected)
            for name, feature in wanted.items():
                if not feature.is_clock or self._exchange is not None:
                    of_queries[name] = feature_tensor(feature, name, projected, self.positions, heads(feature))
        for name, feature in wanted.items():
            if not feature.is_clock:
                if feature.rotates:
                    of_keys[name] = of_queries[name]
                continue
            if self._exchange is not None:
                of_queries[name], of_keys[name] = self._exchange.clock(self, layer, name, of_queries[name])
                continue
            cached = None if self.cache is None else self.cache._feature(layer, name)
            of_queries[name] = of_keys[name] = continue_feature(
                feature, name, projected, self.positions, cached, heads(feature)
            )
        return of_queries, of_keys

    def attention(
        self,
        query: Float[Tensor, "batch heads tokens head_dim"],
        key: Float[Tensor, "batch kv_heads tokens head_dim"],
        value: Float[Tensor, "batch kv_heads tokens value_dim"],
        layer: int | None = None,
        *,
        features: Features = NOTHING,
        key_features: Features | None = None,
        window: Window = None,
        attn_mask: Tensor | None = None,
        sinks: Tensor | None = None,
        dropout_p: float = 0.0,
        scale: float | None = None,
        backend: str = "auto",
        skip_below: float | None = None,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention of the new tokens, as a layer projects them, to the cached tokens and to one another.

        ``features`` are named tensors (batch, heads, tokens, ...) of the queries, and ``key_features`` those of the
        keys (by default the same), which are cached with the keys. ``layer`` may be omitted without a cache if all
        layers are the same. ``window`` replaces the layer's own. ``attn_mask`` has a column for each key of
        ``key_positions``, or of the layer's own. For the other arguments see `posenc.attention`.
        """
        if layer is None and isinstance(self._schedule, Schedule) and not self._schedule.is_uniform:
            raise ValueError("layer must be an int where the layers of the schedule differ, got None: pass layer=n")
        layer = layer or 0
        scheme, of_layer = self.of_layer(layer)
        window = of_layer if window is None else window
        token_doors = self.tokens(layer)
        is_kept_rotated = not needs_raw_keys(scheme)
        with self._together(layer):
            if self._number(layer) not in self._added:
                token_doors.check_added()
            if is_kept_rotated and any(rotation.feature for rotation in token_doors.rotations):
                token_doors = token_doors.with_features(features)
            if is_kept_rotated and (self.cache is not None or token_doors.rotations):
                token_doors.check(query, key)
                check_unrotated(token_doors.rotations, query, key)
                query, key, value = (
                    token_doors.rotate_query(query),
                    token_doors.rotate_key(key),
                    token_doors.rotate_value(value),
                )
        if self.cache is not None and not self._is_open:
            raise ValueError(
                "a forward pass with a cache must be entered: use `with ForwardPass(...) as step`, so that an error "
                "leaves the cache unchanged"
            )
        if self.cache is not None and not torch.compiler.is_compiling():
            self.cache._fill(layer, scheme)
        if key_features is None:
            key_features = NOTHING if self._exchange is not None else features
        if self._exchange is not None and is_kept_rotated:  # others need only what score terms read
            features, key_features = (_without(token_doors.rotations, of) for of in (features, key_features))
        call = LayerCall(
            query,
            key,
            value,
            layer,
            features,
            key_features,
            is_causal=self.is_causal,
            window=window,
            attn_mask=attn_mask,
            sinks=sinks,
            dropout_p=dropout_p,
            scale=scale,
            backend=backend,
            skip_below=skip_below,
            return_lse=return_lse,
        )
        out = self._attend(call, is_kept_rotated) if self._exchange is None else self._exchange.attend(self, call)
        self._called.add(self._number(layer))
        lse: list[Tensor] = []
        if not isinstance(out, Tensor):
            out, *lse = out
        out = token_doors.rotate_output(out) if is_kept_rotated and token_doors.rotations else out
        return (out, lse[0]) if lse else out

    def _attend(self, call: LayerCall, is_rotated: bool) -> Tensor | tuple[Tensor, Tensor]:
        """Attention to the cached and the new keys, after these are appended to the cache."""
        encoding = self.pairs(call.layer, window=call.window)
        if self.cache is None:
            return call.attend(encoding)
        of_keys = dict(call.key_features)
        reads_norms = {"cpu": "fades", "cuda": "falls"}.get(call.key.device.type)  # the terms with which kernels do
        if reads_norms and is_rotated and any(getattr(term, reads_norms) for term in encoding.score_terms):
            dtype = torch.promote_types(call.key.dtype, torch.float32)
            of_keys[NORMS_FEATURE] = torch.linalg.vector_norm(call.key, dim=-1, dtype=dtype)
        self.cache._set_window(call.layer, call.window)
        num_keys, num_all = encoding.key_positions.order.size(1), self.key_positions.order.size(1)
        if call.attn_mask is not None and call.attn_mask.dim() and call.attn_mask.size(-1) == num_all:
            call = replace(call, attn_mask=call.attn_mask[..., num_all - num_keys :])
        needed = num_keys - self.positions.order.size(1)
        key, value, of_keys = self.cache.append(call.layer, call.key, call.value, of_keys, needed=needed)
        norms = of_keys.pop(NORMS_FEATURE, None)
        return replace(call, key=key, value=value, key_features=of_keys).attend(encoding, norms)


def _without(rotations: tuple[Rotation, ...], features: Features) -> Features:
    read = {rotation.feature for rotation in rotations}
    return {name: x for name, x in features.items() if name not in read}
