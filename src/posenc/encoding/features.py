"""What a scheme needs of a layer beside queries and keys: features, made of its hidden state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.arguments import check_type, shown, whole
from posenc.encoding.clocks import last_readings, readings
from posenc.positions.positions import Positions

Features: TypeAlias = Mapping[str, Tensor]
"""Named per-token tensors (batch, heads, tokens[, width]) that a layer makes from its hidden state."""

Projected: TypeAlias = Mapping[str, Tensor]
"""What a layer projects of its hidden state for each feature, (batch, heads, tokens[, width])."""

NOTHING: Features = MappingProxyType({})


def as_projected(x: Tensor, positions: Positions) -> Tensor:
    """The feature is what the layer projects."""
    return x


@dataclass(frozen=True)
class Feature:
    """What a layer makes of its hidden state for a scheme, head by head: a number for each token, or a vector.

    A layer projects its hidden state to ``num_heads`` numbers or, with a ``width``, to as many vectors of it; with
    ``bias``, the projection has one. ``map`` makes of that, (batch, heads, tokens[, width]), and the tokens' positions
    what is wanted. With ``is_clock`` this is the step of a clock at each token, and the feature is its reading: the sum
    of all steps of the text up to the token. Keys have readings as queries have; other features are of queries alone.
    """

    num_heads: int
    width: int | None = None
    map: Callable[[Tensor, Positions], Tensor] = as_projected
    is_clock: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        whole("num_heads", self.num_heads)
        if self.width is not None:
            whole("width", self.width)
            if self.is_clock:
                raise ValueError(f"a clock shows a number and takes no width, got width={self.width}")

    @property
    def size(self) -> int:
        """How many numbers a layer projects a token to."""
        return self.num_heads * (1 if self.width is None else self.width)

    def of_heads(self, projected: Float[Tensor, "batch tokens size"]) -> Tensor:
        """What a layer projects as (batch, heads, tokens[, width])."""
        x = projected.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return x.squeeze(-1) if self.width is None else x

    def check(self, name: str, projected: Tensor, tokens: int, heads: range | None = None) -> None:
        """ValueError where it is not (batch, heads, tokens[, width]) and floating; ``heads``: those that are here."""
        if heads is not None and heads.stop > self.num_heads:
            raise ValueError(f"heads must be within the {self.num_heads} of the scheme, got {heads}")
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


def check_wanted(wanted: Mapping[str, Feature], projected: Projected) -> None:
    """ValueError for a projection that is for no feature of the scheme's."""
    check_type("projected", projected, Mapping)
    for name in projected:
        if name not in wanted:
            raise ValueError(
                f"projected must be for the features that the scheme wants, {', '.join(wanted) or 'which are none'}, "
                f"got one for {shown(name)}"
            )


def features_of(
    wanted: Mapping[str, Feature],
    query: Projected,
    query_positions: Positions,
    key: Projected | None = None,
    key_positions: Positions | None = None,
    heads: range | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The features of queries and of keys, of what a layer projects of all these tokens; see `Encoding.with_projected`.
    Left out, the keys are the queries' tokens. ``heads``: those that are here, where they are a shard."""
    check_wanted(wanted, query)
    if key is not None:
        check_wanted(wanted, key)
    key = query if key is None else key
    key_positions = query_positions if key_positions is None else key_positions
    of_queries, of_keys = {}, {}
    for name, feature in wanted.items():
        if not feature.is_clock:
            of_queries[name] = made(feature, name, query, query_positions, heads)
            continue
        steps = made(feature, name, key, key_positions, heads)
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
    """A clock's readings at new tokens. ``held``: what it showed at those of a cache, which it goes on from."""
    shown_there = readings(made(feature, name, projected, positions, heads), positions)
    return shown_there if held is None else shown_there + last_readings(*held, positions)


def made(feature: Feature, name: str, projected: Projected, positions: Positions, heads: range | None = None) -> Tensor:
    """The feature of these tokens, or the steps of a clock."""
    check_type("projected", projected, Mapping)
    if name not in projected:
        raise ValueError(
            f"the scheme needs the feature {name!r}: project the hidden state for it, got {list(projected)}"
        )
    feature.check(name, projected[name], positions.order.size(1), heads)
    return feature.map(projected[name], positions)


def wanted_by_both(wanted: Mapping[str, Feature], more: Mapping[str, Feature]) -> dict[str, Feature]:
    """The features that either wants. ValueError where both want different things by one name."""
    both = dict(wanted)
    for name, feature in more.items():
        if both.setdefault(name, feature) != feature:
            raise ValueError(f"two parts want different features by the name {name!r}: {both[name]}, {feature}")
    return both


def features_of_both(features: Features, more: Features) -> Features:
    """The features that either has. ValueError where both have tensors of their own by one name."""
    for name in features.keys() & more.keys():
        if features[name] is not more[name]:
            raise ValueError(
                f"both encodings have a feature {name!r} of their own: add them first, and give the sum its features"
            )
    return {**features, **more} if features or more else NOTHING


def projected_at_random(
    wanted: Mapping[str, Feature], x: Float[Tensor, "batch tokens dim"], seed: int = 0
) -> dict[str, Tensor]:
    """What a layer of fixed random weights projects for each feature: for schemes looked at without a model. The same
    content is given the same, wherever it stands."""
    found = {}
    for number, (name, feature) in enumerate(wanted.items()):
        generator = torch.Generator().manual_seed(seed + number)
        weight = torch.randn(x.size(-1), feature.size, generator=generator, dtype=torch.float64) / x.size(-1) ** 0.5
        found[name] = feature.of_heads(x @ weight.to(device=x.device, dtype=x.dtype))
    return found
