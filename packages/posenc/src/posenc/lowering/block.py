"""`Block`: queries and keys with their positions, to which terms are bound."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.arguments import one_or
from posenc.encoding.features import NOTHING, Features, missing
from posenc.positions.positions import Positions


@dataclass(frozen=True, eq=False)
class Block:
    """Queries and keys with their positions: those of a call, or the part that a backend is computing.

    ``query`` (B, H, m, d) and ``key`` (B, H or fewer, n, d) are already rotated. ``scale`` is the softmax scale.
    ``heads`` is the range of the scheme's heads; None: all.
    """

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch kv_heads keys head_dim"]
    query_positions: Positions
    key_positions: Positions
    scale: float
    heads: range | None = None
    query_features: Features = field(default_factory=lambda: NOTHING)
    key_features: Features = field(default_factory=lambda: NOTHING)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of scores: float32, or float64 for float64 inputs."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def part(self, queries: slice, keys: slice) -> Block:
        """A block of some of the queries and keys."""
        return replace(
            self,
            query=self.query[:, :, queries],
            key=self.key[:, :, keys],
            query_positions=self.query_positions[queries],
            key_positions=self.key_positions[keys],
            query_features={name: x[:, :, queries] for name, x in self.query_features.items()},
            key_features={name: x[:, :, keys] for name, x in self.key_features.items()},
        )

    def feature(self, name: str, side: str) -> Tensor:
        """A layer's feature of the queries or the keys, (batch, query heads, tokens, ...), in the scores' dtype.

        Raises ValueError if it is missing.
        """
        features, x = (self.query_features, self.query) if side == "query" else (self.key_features, self.key)
        if name not in features:
            raise missing(name, side, features)
        feature = features[name]
        heads = self.query.size(1)
        batch = x.size(0)
        if feature.size(0) != batch or not one_or(feature.size(1), heads) or feature.size(2) != x.size(2):
            raise ValueError(
                f"feature {name!r} of the {side} must be ({batch}, 1 or {heads}, {x.size(2)}, ...), "
                f"got {tuple(feature.shape)}"
            )
        return feature.to(torch.promote_types(feature.dtype, self.dtype))

    def of_heads(self, table: Tensor, scheme: str) -> Tensor:
        """The slice of (heads or 1, ...) for the queries' heads. Raises ValueError for another number of heads."""
        heads = self.query.size(1)
        mine = range(table.size(0)) if self.heads is None else self.heads
        if table.size(0) == 1 and (self.heads is None or len(mine) == heads):
            return table
        if len(mine) != heads or mine.stop > table.size(0):
            raise self.wrong_heads(scheme, table.size(0))
        return table[mine.start : mine.stop]

    def wrong_heads(self, scheme: str, made_for: int) -> ValueError:
        """The error for queries with another number of heads than the scheme was made for."""
        which = "" if self.heads is None else f", of which context.heads selects {len(self.heads)}"
        return ValueError(
            f"{scheme} was made for {made_for} heads{which}, got queries of {self.query.size(1)}; where they are a "
            "shard of all heads, bind the scheme with context=Context(heads=range(first, last))"
        )
