"""`KVCache`: the keys and values of the tokens that a model has read."""

import re
from typing import Any

import torch
from torch import Tensor

from posenc.arguments import shown, whole
from posenc.encoding.context import NOTHING, Features
from posenc.encoding.rotation import mark, mark_of
from posenc.positions.layout import join, overlap, skipped
from posenc.positions.positions import Positions
from posenc.scheme import Scheme, bare_parts

NORMS_FEATURE = "posenc's norms of keys"  # kept with a layer's features
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # in what Python writes of a function


class KVCache:
    """The rotated keys, values and features of every layer, with their positions. For inference only.

    Buffers double when full, so that appending a token does not copy the cache every time.
    """

    _exchange: Any = None
    """How passes with this cache reach tokens that other processes hold: an `Exchange`, such as that of
    `posenc.distributed.ShardedCache`."""

    def __init__(self) -> None:
        self.positions: Positions | None = None
        self._layers: list[dict[str, Tensor]] = []
        self._lengths: list[int] = []  # how many tokens each layer has
        self._layer_schemes: dict[int, Scheme | str] = {}  # the scheme of each layer's tokens, or its repr
        self._marks: dict[int, Any] = {}  # the marks of the keys of each layer, if all have the same

    def __repr__(self) -> str:
        return f"KVCache({len(self)} tokens, {len(self._layers)} layers)"

    def __len__(self) -> int:
        return 0 if self.positions is None else len(self.positions)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickle: without the schemes, which are the model's."""
        return vars(self) | {
            "_layer_schemes": {layer: scheme_text(scheme) for layer, scheme in self._layer_schemes.items()}
        }

    def _fill(self, layer: int, scheme: Scheme) -> None:
        """Notes the scheme of a layer's tokens. ValueError for another scheme than that of the tokens it holds."""
        before = None if self.positions is None else self._layer_schemes.get(layer)
        if before is not None and before is not scheme and scheme_text(before) != scheme_text(scheme):
            raise ValueError(
                f"the cache holds tokens of layer {layer} that were encoded by {scheme_text(before)}, got "
                f"{scheme_text(scheme)}: use one scheme from the first token to the last, or begin with another "
                "KVCache()"
            )
        self._layer_schemes[layer] = scheme

    def _extended(self, positions: Positions) -> Positions:
        """The positions of the cached tokens and of new ones. Raises ValueError if these do not come after them, or if
        tokens between them are missing."""
        before = self.positions
        if before is None:
            return positions
        if overlap(join([before.layout, positions.layout], max(before.rows, positions.rows))) is not None:
            raise ValueError(
                "positions begin at or before the last token of the cache: continue it with "
                "cache.positions.following(n) or, if it holds one text, "
                "Positions.arange(n, start=len(cache.positions)); give another text another document"
            )
        skip = skipped(before.layout, positions.layout)
        if skip is not None:
            raise ValueError(
                f"positions must go on from the cache at order {skip[0]}, got {skip[1]}: continue it with "
                "cache.positions.following(n) or, where coordinates are to jump, "
                "cache.positions.following(n).with_coords(coords)"
            )
        return Positions.cat([before, positions], documents="same")

    def crop(self, tokens: int) -> None:
        """Keeps the first ``tokens`` tokens of every row and drops the others, such as a draft that was rejected."""
        whole("tokens", tokens, 0, 0 if self.positions is None else len(self.positions))
        if self.positions is not None:
            self.positions = self.positions[:tokens] if tokens else None
        self._rewind()

    def _commit(self, positions: Positions) -> None:
        """The cache holds tokens at these positions."""
        self.positions = positions

    def _rewind(self) -> None:
        """Drops the tokens past `positions`, which a failed pass has left behind."""
        self._lengths = [min(num_cached, len(self)) for num_cached in self._lengths]

    def _feature(self, layer: int, name: str) -> Tensor | None:
        cached = self._layers[layer].get(f"feature {name}") if layer < len(self._layers) else None
        return None if cached is None else cached[:, :, : len(self)]

    def append(
        self, layer: int, key: Tensor, value: Tensor, features: Features = NOTHING
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Appends a layer's new keys and values, (batch, kv_heads, tokens, head_dim), and features of its keys, (batch,
        heads, tokens, ...). Returns all keys, values and features.

        Raises ValueError for a layer that was skipped or comes twice, and for tensors unlike the cached ones.
        """
        whole("layer", layer, 0, len(self._layers))
        for name, new in (("key", key), ("value", value)):
            if not isinstance(new, Tensor) or new.dim() != 4:
                raise ValueError(f"{name} must be a tensor (batch, kv_heads, tokens, head_dim), got {shown(new)}")
        if value.shape[:3] != key.shape[:3]:
            of_key, of_value = tuple(key.shape[:3]), tuple(value.shape[:3])
            raise ValueError(f"value must have (batch, kv_heads, tokens) = {of_key} like key, got {of_value}")
        if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            raise ValueError("a KVCache is for inference: call the model under torch.no_grad()")
        start = len(self)
        stop = start + key.size(2)
        if layer == len(self._layers):
            self._layers.append({})
            self._lengths.append(0)
        cached, num_cached = self._layers[layer], self._lengths[layer]
        if num_cached > start:
            raise ValueError(
                f"layer {layer} has these {num_cached - start} tokens already: pass a different layer= in every layer"
            )
        if num_cached < start:
            raise ValueError(
                f"layer {layer} holds {num_cached} of the cache's {start} tokens: "
                "every layer must be called in every pass"
            )
        tensors = {"key": key, "value": value, **{f"feature {name}": x for name, x in features.items()}}
        # Norms are useless unless every token has them.
        if start and (f"feature {NORMS_FEATURE}" in cached) != (NORMS_FEATURE in features):
            features = {name: x for name, x in features.items() if name != NORMS_FEATURE}
            for tensors_by_name in (cached, tensors):
                tensors_by_name.pop(f"feature {NORMS_FEATURE}", None)
        if start and tensors.keys() != cached.keys():
            raise ValueError(f"the cache holds {', '.join(cached)} of this layer, got {', '.join(tensors)}")
        for name, new in tensors.items():
            cached[name] = append_tokens(cached.get(name), new, start, stop)
        self._lengths[layer] = stop
        views = {name: x[:, :, :stop] for name, x in cached.items()}
        marks = self._marks[layer] = mark_of(key) if not start or mark_of(key) == self._marks[layer] else None
        if marks is not None:
            mark(views["key"], marks)
        return views["key"], views["value"], {name: views[f"feature {name}"] for name in features}


def scheme_text(scheme: Scheme | str) -> str:
    """A scheme as its constructors are called, wherever it is wrapped, and wherever in memory functions and objects
    among its arguments are."""
    return scheme if isinstance(scheme, str) else ADDRESS.sub("", " + ".join(map(repr, bare_parts(scheme))))


def append_tokens(num_cached: Tensor | None, new: Tensor, start: int, stop: int) -> Tensor:
    """The buffer, enlarged if necessary, with the new tokens written to it."""
    if num_cached is not None and start:
        if (num_cached.shape[:2], num_cached.shape[3:]) != (new.shape[:2], new.shape[3:]):
            fixed = (*num_cached.shape[:2], "tokens", *num_cached.shape[3:])
            raise ValueError(f"the cache holds keys or values of shape {fixed}, got {tuple(new.shape)}")
        if (num_cached.dtype, num_cached.device) != (new.dtype, new.device):
            raise ValueError(
                f"the cache holds {num_cached.dtype} on {num_cached.device}, got {new.dtype} on {new.device}"
            )
    if num_cached is None or start == 0 or num_cached.size(2) < stop:
        larger = new.new_empty(*new.shape[:2], max(stop, 2 * start), *new.shape[3:])
        if num_cached is not None and start:
            larger[:, :, :start] = num_cached[:, :, :start]
        num_cached = larger
    num_cached[:, :, start:stop] = new
    return num_cached
