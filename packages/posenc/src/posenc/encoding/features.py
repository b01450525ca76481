"""Features: per-token inputs of a scheme, besides queries and keys, that a layer projects from its hidden state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from posenc.arguments import check_type, shown, whole
from posenc.encoding.clocks import last_readings, readings
from posenc.positions.positions import Positions

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
    text; both queries and keys have it. Other features are only of queries. With ``rotates`` a rotation reads it, so it
    is a clock with as many heads as keys, and no score term may read it.
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
        if self.rotates and not self.is_clock:
            raise ValueError("is_clock must be True with rotates=True, got False")

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

HeadsOf: TypeAlias = Callable[[Feature], range | None]
"""The range of a feature's heads that a shard has; None: all."""


def missing(name: str, side: str, given: Features) -> ValueError:
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
    key: Projected | None = None,
    key_positions: Positions | None = None,
    heads: HeadsOf = lambda feature: None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The features of queries and keys from a layer's projections; see `Encoding.with_projected`. ``key`` and
    ``key_positions`` default to those of the queries. ``heads``: a feature's heads of this shard."""
    check_wanted(wanted, query)
    if key is not None:
        check_wanted(wanted, key)
    key = query if key is None else key
    key_positions = query_positions if key_positions is None else key_positions
    of_queries, of_keys = {}, {}
    for name, feature in wanted.items():
        if not feature.is_clock:
            of_queries[name] = made(feature, name, query, query_positions, heads(feature))
            continue
        steps = made(feature, name, key, key_positions, heads(feature))
        of_keys[name] = readings(steps, key_positions)
        same = key_positions is query_positions
        of_queries[name] = of_keys[name] if same else readings(steps, key_positions, query_positions)
    return of_queries, of_keys


def continued(
    feature: Feature,
    name: str,
    projected: Projected,
    positions: Positions,
    held: tuple[Tensor, Positions] | None,
    heads: range | None = None,
) -> Tensor:
    """A cumulative feature at new tokens. ``held``: the feature and positions of a cache, which it continues."""
    sums = readings(made(feature, name, projected, positions, heads), positions)
    return sums if held is None else sums + last_readings(*held, positions)


def made(feature: Feature, name: str, projected: Projected, positions: Positions, heads: range | None = None) -> Tensor:
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
    found = {}
    for number, (name, feature) in enumerate(wanted.items()):
        generator = torch.Generator().manual_seed(seed + number)
        weight = torch.randn(x.size(-1), feature.size, generator=generator, dtype=torch.float64) / x.size(-1) ** 0.5
        found[name] = feature.of_heads(x @ weight.to(device=x.device, dtype=x.dtype))
    return found
