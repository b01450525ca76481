"""`Context`: what a scheme may need besides positions; features that layers project, and their sums along the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from posenc.arguments import check_type, shown, whole
from posenc.positions.positions import PADDING, Positions
from posenc.rotation.phases import in_double


def cumulative_sums(
    steps: Float[Tensor, "batch heads keys *width"], positions: Positions, at: Positions | None = None
) -> Float[Tensor, "batch heads tokens *width"]:
    """The cumulative sum at every token: the sum of ``steps`` over its document up to its own order, inclusive. ``at``:
    evaluates it at these tokens of the same documents; None: at those of ``steps``. It is 0 for padding.

    Returns float64 where the device supports it, so that differences are computed before rounding.
    """
    if steps.dim() == 4:
        return _of_numbers(lambda x: cumulative_sums(x, positions, at), steps)
    device, x = steps.device, in_double(steps)
    dtype = x.dtype if x.device == device else torch.float32
    if at is None and positions.layout.run is not None:  # a contiguous text
        return x.cumsum(-1).to(dtype=dtype, device=device)
    at = (positions if at is None else at).expand(x.size(0))
    total, order_key = _along_documents(x, positions)
    key, first = (k.to(order_key.device) for k in _places(at, positions))
    last = torch.searchsorted(order_key, key, right=True) - 1
    of = last.clamp(min=0)
    shows = (last >= 0) & (order_key.gather(-1, of) >= first) & (at.document != PADDING).to(order_key.device)
    values = total.gather(-1, of[:, None].expand(-1, x.size(1), -1))
    return torch.where(shows[:, None], values, torch.zeros_like(values)).to(dtype=dtype, device=device)


def last_sums(
    clock: Float[Tensor, "batch heads held *width"], cached: Positions, at: Positions
) -> Float[Tensor, "batch heads tokens *width"]:
    """The cumulative sum ``clock`` of the cached tokens ``cached`` at the last one of the same document before each
    token of ``at``; 0 if there is none."""
    if clock.dim() == 4:
        return _of_numbers(lambda x: last_sums(x, cached, at), clock)
    before, after = cached.layout.run, at.layout.run
    if before and after and before.document == after.document and after.order >= before.order + len(cached):
        return clock[:, :, -1:].expand(-1, -1, len(at))
    rows = max(cached.rows, at.rows)
    cached, at = cached.expand(rows), at.expand(rows)
    order_key, index = _places(cached, cached)[0].sort(dim=-1, stable=True)
    key, first = _places(at, cached)
    last = torch.searchsorted(order_key, key, right=True) - 1
    has_token = last >= torch.searchsorted(order_key, first, right=False)
    of = index.gather(-1, last.clamp(min=0))[:, None].expand(clock.size(0), clock.size(1), -1)
    values = (has_token & (at.document != PADDING))[:, None]
    return torch.where(values, clock.gather(-1, of), torch.zeros_like(clock[:, :, :1]))


def previous_tokens(positions: Positions) -> Int[Tensor, "rows tokens"]:
    """The index of the token before each one in the order of its document; its own for the first."""
    tokens = positions.order.size(1)  # len() would specialize a graph to one length
    if positions.layout.run is not None or tokens == 0:  # a contiguous text
        return (torch.arange(tokens, device=positions.device) - 1).clamp(min=0)[None]
    index, is_first = by_document(positions)
    before = torch.where(is_first, index, index.roll(1, -1))
    return torch.zeros_like(index).scatter(-1, index, before)


def by_document(positions: Positions) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
    """The indices of tokens sorted by document and then order, and which of them are the first of a document."""
    index = _places(positions, positions)[0].argsort(dim=-1, stable=True)
    document = positions.document.expand(index.shape).gather(-1, index)
    return index, torch.nn.functional.pad(document[:, 1:] != document[:, :-1], (1, 0), value=True)


def following(
    x: Float[Tensor, "batch heads queries keys"], keys: Positions, *, itself: bool
) -> Float[Tensor, "batch heads queries keys"]:
    """For each key, the sum of x over keys of a higher order and, with ``itself``, of its own order."""
    if keys.layout.run is not None:
        x = x if itself else torch.nn.functional.pad(x, (0, 1))
        return x.flip(-1).cumsum(-1).flip(-1)[..., 0 if itself else 1 :]
    order = keys.order.expand(x.size(0), -1)
    order_key, index = order.sort(dim=-1, stable=True)
    sorted_x = x.gather(-1, index[:, None, None].expand_as(x))
    sums = torch.nn.functional.pad(sorted_x.flip(-1).cumsum(-1).flip(-1), (0, 1))
    start = torch.searchsorted(order_key, order.contiguous(), right=not itself)
    return sums.gather(-1, start[:, None, None].expand_as(x))


def _of_numbers(sums: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of numbers (batch, heads, tokens), for vectors (batch, heads, tokens, width): number by number."""
    return sums(x.movedim(3, 2).flatten(1, 2)).unflatten(1, (x.size(1), x.size(3))).movedim(2, 3)


def _places(positions: Positions, among: Positions) -> tuple[Int[Tensor, "rows tokens"], Int[Tensor, "rows tokens"]]:
    """A sort key for each token, by document and then order, and the lowest one of its document. Orders are clamped to
    one beyond those of ``among``."""
    low, high = among.order.amin(), among.order.amax()
    span = high - low + 3
    order = positions.order.clamp(low - 1, high + 1) - low + 1
    first = positions.document * span
    return (first + order).contiguous(), first.contiguous()


def _along_documents(x: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
    """The cumulative sums of x by document and order, which restart in each document, and their sort keys. Documents
    do not affect one another, not even by rounding."""
    keys = positions.expand(x.size(0))
    order_key, index = _places(keys, keys)[0].to(x.device).sort(dim=-1, stable=True)
    document = keys.document.to(x.device).gather(-1, index)[:, None]
    total = x.gather(-1, index[:, None].expand_as(x))
    step = 1
    while step < x.size(-1):  # sums of 1, 2, 4, ... tokens
        same = document[..., step:] == document[..., :-step]
        before = torch.where(same, total[..., :-step], torch.zeros_like(total[..., :-step]))
        total = torch.cat((total[..., :step], total[..., step:] + before), -1)
        step *= 2
    return total, order_key


Features: TypeAlias = Mapping[str, Tensor]
"""Named per-token tensors (batch, heads, tokens[, width])."""

Projected: TypeAlias = Mapping[str, Tensor]
"""A layer's projection of its hidden state for each feature, (batch, heads, tokens[, width])."""

NOTHING: Features = MappingProxyType({})


def log_gate(projected: Tensor, positions: Positions) -> Tensor:
    """ln sigmoid, in float32 or wider."""
    return logsigmoid(projected.to(torch.promote_types(projected.dtype, torch.float32)))


def as_projected(x: Tensor, positions: Positions) -> Tensor:
    """The projection itself."""
    return x


@dataclass(frozen=True)
class Feature:
    """A feature that a layer projects from its hidden state for a scheme: a number or a vector per token and head.

    The layer projects its hidden state to ``num_heads`` numbers or, with ``width``, as many vectors of that width; with
    ``bias`` the projection has a bias. ``map`` takes the projection (batch, heads, tokens[, width]) and the positions,
    and returns the feature. With ``is_clock`` it returns increments, and the feature is their cumulative sum over the
    text. With ``rotates`` a rotation reads it, so it has as many heads as keys, and no score term may read it. A clock
    and a feature that rotates are of queries and keys, others of queries alone.
    """

    num_heads: int
    width: int | None = None
    map: Callable[[Tensor, Positions], Tensor] = as_projected
    is_clock: bool = False
    bias: bool = False
    rotates: bool = False

    def __post_init__(self) -> None:
        whole("num_heads", self.num_heads)
        if self.width is not None:
            whole("width", self.width)

    @property
    def size(self) -> int:
        """The output size of the layer's projection."""
        return self.num_heads * (1 if self.width is None else self.width)

    def of_heads(self, projected: Float[Tensor, "batch tokens size"]) -> Tensor:
        """The layer's projection as (batch, heads, tokens[, width])."""
        x = projected.unflatten(-1, (-1, self.width or 1)).transpose(1, 2)  # of a shard, some of the heads
        return x.squeeze(-1) if self.width is None else x

    def check(self, name: str, projected: Tensor, tokens: int, heads: range | None = None) -> None:
        """ValueError unless it is floating and (batch, heads, tokens[, width]); ``heads``: those of this shard."""
        shape = (
            self.num_heads if heads is None else len(heads),
            tokens,
            *(() if self.width is None else (self.width,)),
        )
        if not isinstance(projected, Tensor) or projected.dim() != 1 + len(shape) or projected.shape[1:] != shape:
            wanted = ", ".join(map(str, shape))
            raise ValueError(f"the projection for feature {name!r} must be (batch, {wanted}), got {shown(projected)}")
        if not projected.is_floating_point():
            raise ValueError(f"the projection for feature {name!r} must be floating, got {shown(projected)}")


NO_FEATURES: Mapping[str, Feature] = MappingProxyType({})


def missing_feature(name: str, side: str, given: Features) -> ValueError:
    """The error for a call without a feature that the scheme needs."""
    return ValueError(
        f"the scheme needs the feature {name!r} of every {side}: use encoding.with_projected({{{name!r}: ...}}) with "
        "the layer's projection, ForwardPass.features with a cache, or encoding.with_features with a computed feature, "
        f"got {', '.join(given) or 'none'}"
    )


def check_wanted(wanted: Mapping[str, Feature], projected: Projected) -> None:
    """ValueError for a projection that is not for a feature of the scheme."""
    check_type("projected", projected, Mapping)
    for name in projected:
        if name not in wanted:
            raise ValueError(
                f"projected must be for the scheme's features, {', '.join(wanted) or 'which are none'}, "
                f"got one for {shown(name)}"
            )


def features_of(
    wanted: Mapping[str, Feature],
    query: Projected,
    query_positions: Positions,
    key: Projected | None,
    key_positions: Positions,
    heads: Callable[[Feature], range | None],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The features of queries and keys from a layer's projections; see `Encoding.with_projected`. ``heads``: a
    feature's heads of this shard; None: all."""
    key = query if key is None else key
    check_wanted(wanted, query)
    check_wanted(wanted, key)
    of_queries, of_keys = {}, {}
    for name, feature in wanted.items():
        if not feature.is_clock:
            of_queries[name] = feature_tensor(feature, name, query, query_positions, heads(feature))
            if feature.rotates:
                of_keys[name] = (
                    of_queries[name]
                    if key is query and key_positions is query_positions
                    else feature_tensor(feature, name, key, key_positions, heads(feature))
                )
            continue
        steps = feature_tensor(feature, name, key, key_positions, heads(feature))
        of_keys[name] = cumulative_sums(steps, key_positions)
        same = key_positions is query_positions
        of_queries[name] = of_keys[name] if same else cumulative_sums(steps, key_positions, query_positions)
    return of_queries, of_keys


def continue_feature(
    feature: Feature,
    name: str,
    projected: Projected,
    positions: Positions,
    cached: tuple[Tensor, Positions] | None,
    heads: range | None = None,
) -> Tensor:
    """A cumulative feature at new tokens. ``cached``: the feature and positions of a cache, which it continues."""
    sums = cumulative_sums(feature_tensor(feature, name, projected, positions, heads), positions)
    return sums if cached is None else sums + last_sums(*cached, positions)


def feature_tensor(
    feature: Feature, name: str, projected: Projected, positions: Positions, heads: range | None = None
) -> Tensor:
    """The feature of these tokens or, of a cumulative one, its increments."""
    check_type("projected", projected, Mapping)
    if name not in projected:
        raise ValueError(
            f"the scheme needs the feature {name!r}: project the hidden state for it, got {list(projected)}"
        )
    feature.check(name, projected[name], positions.order.size(1), heads)
    return feature.map(projected[name], positions)


def wanted_by_both(wanted: Mapping[str, Feature], more: Mapping[str, Feature]) -> dict[str, Feature]:
    """The union of both. ValueError where one name has two different features."""
    both = dict(wanted)
    for name, feature in more.items():
        if both.setdefault(name, feature) != feature:
            raise ValueError(f"two schemes need different features named {name!r}: {both[name]}, {feature}")
    return both


def features_of_both(features: Features, more: Features) -> Features:
    """The union of both. ValueError where one name has two different tensors."""
    for name in features.keys() & more.keys():
        if features[name] is not more[name]:
            raise ValueError(f"both encodings have a feature {name!r}: add the encodings before setting features")
    return {**features, **more} if features or more else NOTHING


def projected_at_random(
    wanted: Mapping[str, Feature], x: Float[Tensor, "batch tokens dim"], seed: int = 0
) -> dict[str, Tensor]:
    """Projections by fixed random weights for each feature, for schemes without a model. They depend only on x."""
    values = {}
    for number, (name, feature) in enumerate(wanted.items()):
        generator = torch.Generator().manual_seed(seed + number)
        weight = torch.randn(x.size(-1), feature.size, generator=generator, dtype=torch.float64) / x.size(-1) ** 0.5
        values[name] = feature.of_heads(x @ weight.to(device=x.device, dtype=x.dtype))
    return values


@dataclass(frozen=True, eq=False)
class Context:
    """What a scheme may need besides positions when it is bound.

    - ``heads``: the range of the scheme's heads that this shard of the queries has. None: all heads.
    - ``kv_heads``: the heads of keys that it has, for schemes whose ``heads_of`` is "key". None: the same as ``heads``.
    - ``lengths`` (rows,) or (1,): the length of each row's text, for scalings that depend on it. None: the lengths of
      the positions, row by row.
    """

    heads: range | None = None
    lengths: Tensor | None = None
    kv_heads: range | None = None

    def __post_init__(self) -> None:
        for name, heads in (("heads", self.heads), ("kv_heads", self.kv_heads)):
            check_type(name, heads, range, None)
            if heads is not None and (heads.step != 1 or len(heads) == 0):
                raise ValueError(f"{name} must be a non-empty range of step 1, got {heads}")
        if self.lengths is not None and (not isinstance(self.lengths, Tensor) or self.lengths.dim() != 1):
            raise ValueError(f"lengths must be a tensor (rows,) or None, got {shown(self.lengths)}")

    def of_heads(self, parameter: Tensor, axis: int) -> Tensor:
        """The slice of a parameter for this shard's heads along ``axis``. Raises ValueError for heads out of range."""
        if self.heads is None:
            return parameter
        if self.heads.stop > parameter.size(axis):
            raise ValueError(f"heads must be within the {parameter.size(axis)} of the scheme, got {self.heads}")
        return parameter.narrow(axis, self.heads.start, len(self.heads))

    def _check_heads(self, scheme: str, num_heads: object) -> None:
        """ValueError for heads beyond those that a scheme was made for, if it was made for a number of heads."""
        if self.heads is not None and isinstance(num_heads, int) and self.heads.stop > num_heads:
            raise ValueError(
                f"heads must be within the {num_heads} of {scheme}, got {self.heads}: make the scheme for all heads of "
                "the model, of which a shard has some"
            )

    def _of_keys(self) -> Context:
        return self if self.kv_heads is None else replace(self, heads=self.kv_heads)

    def _heads_of(self, feature: Feature) -> range | None:
        """The feature's heads that this shard has."""
        return (self._of_keys() if feature.rotates else self).heads

    def _part(self, heads: slice, kv_heads: slice) -> Context:
        first = 0 if self.heads is None else self.heads.start
        of_keys = first if self.kv_heads is None else self.kv_heads.start
        return replace(
            self,
            heads=range(first + heads.start, first + heads.stop),
            kv_heads=range(of_keys + kv_heads.start, of_keys + kv_heads.stop),
        )


WHOLE = Context()
"""All heads, and the lengths of the positions: the default of a scheme's doors."""
