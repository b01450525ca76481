"""The rotate door: the maps of queries and keys, and those of bands of distances; and marks on what they have rotated.

A mark belongs to one tensor object with unchanged contents. Views, copies, casts and concatenations have none: a mark
can show a mistake, and its absence shows nothing. In a compiled graph nothing is marked, and in inference mode neither,
where tensors do not tell whether they were changed. Marks are kept beside the tensors, not as their attributes, which
pickle and copies would carry along.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posenc.arguments import check_type, whole
from posenc.encoding.context import Features, missing_feature
from posenc.rotation.phases import OfHeads, TokenMap, kind_of

_MARKS: dict[weakref.ref[Tensor], tuple[int, Any, weakref.ref[Tensor]]] = {}
"""By a weak reference to the tensor: its version, the mark, and a second reference, whose callback removes the entry
together with the tensor. A reference without a callback is one object for each tensor, so that looking it up compares
no contents. With torch's `WeakIdKeyDictionary` a look-up takes 0.4 to 1 µs instead of 0.1 to 0.2."""


def mark(x: Tensor, what: Any) -> Tensor:
    """The tensor itself, with this mark."""
    if not torch.compiler.is_compiling() and not x.is_inference():
        key = weakref.ref(x)
        _MARKS[key] = x._version, what, weakref.ref(x, lambda _: _MARKS.pop(key, None))
    return x


def mark_of(x: Tensor) -> Any:
    """The tensor's mark. None if it has none, or was changed in place since."""
    if torch.compiler.is_compiling() or not weakref.getweakrefcount(x):
        return None
    version, what, _ = _MARKS.get(weakref.ref(x), (None, None, None))
    return what if version is not None and version == x._version else None


@dataclass(frozen=True)
class Band:
    """The maps of queries and keys for pairs at a distance of at least ``reach``: see `Rotation`."""

    reach: int
    query: TokenMap
    key: TokenMap


@dataclass(frozen=True, eq=False)
class Unread:
    """The map of a rotation that reads a feature, before a layer's feature is given: it raises ValueError."""

    feature: str
    side: str

    def __call__(self, x: Tensor) -> Tensor:
        """Raises ValueError."""
        raise missing_feature(self.feature, self.side, {})


@dataclass(frozen=True)
class Rotation:
    """The rotate door: the maps of queries and keys and, where values are rotated too, of values and of the output (the
    inverse of the values' map, at the query's position).

    A map may leave channels or heads unchanged, and may change the width of queries and keys. Then ``scale`` is the
    softmax scale, unless the call passes one. A scheme sets its own ``scale`` and need not set this one.

    ``bands`` rotate distant pairs by other maps: query i and key j use the last band with g(p_i) - g(p_j) >= reach,
    where g(p) = p, or floor(p/chunk) with a ``chunk``, and the rotation's own maps if there is none. p is the token's
    only coordinate. Such keys cannot be cached rotated. Raises ValueError unless reaches are ints that increase from 1
    or more, and ``chunk``, which needs bands, is above 0.

    With ``for_each_other`` the rotated queries and keys depend on the other tokens of the call, and only their product
    does not: a term that reads them separately raises ValueError.

    With ``needs_whole_documents`` a key depends on other keys of its document, which must be in the same call.

    `by_feature` makes a rotation that depends on a ``feature`` of each layer: ``reads`` takes it and returns the map.
    """

    query: TokenMap
    key: TokenMap
    value: TokenMap | None = None
    output: TokenMap | None = None
    scale: float | None = None
    bands: tuple[Band, ...] = ()
    chunk: int | None = None
    for_each_other: bool = False
    needs_whole_documents: bool = False
    feature: str | None = None
    reads: Callable[[Tensor], TokenMap] | None = None

    @classmethod
    def by_feature(cls, feature: str, reads: Callable[[Tensor], TokenMap]) -> Rotation:
        """A rotation of queries and keys by a clock of the layer, which ``reads`` takes, (batch, key heads, tokens[,
        width]), and returns the map. Query heads are rotated like the key head that they share."""
        return cls(Unread(feature, "query"), Unread(feature, "key"), feature=feature, reads=reads)

    def with_features(self, query: Features, key: Features) -> Rotation:
        """The same rotation with the maps for a layer's features."""
        if self.feature is None or self.reads is None or not (self.feature in query and self.feature in key):
            return self
        of_query, of_key = query[self.feature], key[self.feature]
        query_map = self.reads(of_query)
        key_map = query_map if of_key is of_query else self.reads(of_key)
        return replace(self, query=query_map, key=OfHeads(key_map, of_key.size(1)))

    def __post_init__(self) -> None:
        check_type("bands", self.bands, tuple)
        least = 1
        for band in self.bands:
            check_type("bands", band, Band)
            least = whole("reach", band.reach, least) + 1
        if self.chunk is not None:
            whole("chunk", self.chunk)
            if not self.bands:
                raise ValueError(f"chunk must be None without bands, got {self.chunk}")


def check_unrotated(rotations: tuple[Rotation, ...], query: Tensor, key: Tensor) -> None:
    """ValueError for a query or a key that is known to have been rotated as these rotations would do."""
    for name, x in (("query", query), ("key", key)):
        done = mark_of(x) if rotations else None
        if done and any((name, kind_of(getattr(rotation, name))) in done for rotation in rotations):
            raise ValueError(
                f"{name} was rotated already, and attention would rotate it again: pass rotated queries and keys "
                "with scheme.pairs(query_positions, key_positions), or pass both unrotated; if a second rotation "
                f"is meant, pass {name}.clone()"
            )
