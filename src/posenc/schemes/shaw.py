"""Shaw: learned vectors per clipped distance, in the keys and in the values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.arguments import check_flag, whole
from posenc.encoding import Block, ByDistance, Scheme, Score, ScoreFunction, Value
from posenc.schemes.entry import Entry, Law


class Shaw(Scheme):
    """Relative position representations: a learned vector per distance, clipped to a window of k tokens each way.

    Formula, with c = clip(p_j - p_i, -k, k) + k:

        s_ij = q_i . (k_j + K[c]) / sqrt(d)
        o_i  = sum_j a_ij (v_j + V[c])

    The distance is key minus query: row 0 of a table is "k or more to the left", row k the token itself. Distances past
    the window share a vector, so any length has an encoding. Without a causal mask, left and right have rows of their
    own; under one the right half is never read.

    Parameters: two tables (2k + 1) x d, shared by the heads, or H x (2k + 1) x d with ``num_heads``; drawn uniformly
    with Glorot's bound, as tensor2tensor does. ``keys=False`` or ``values=False`` leaves that half out.
    Shapes: query (batch, heads, queries, head_dim); value of the same head_dim. Coordinates must be int64.
    Cost: q times a table, (queries x (2k + 1)) per head, and the attention mass per bucket; never queries x keys x d.
    Errors: ValueError for another head_dim or number of heads, both halves left out, or fractional coordinates.
    Source: Shaw, Uszkoreit & Vaswani 2018, "Self-Attention with Relative Position Representations", equations 3 and 4.
    """

    def __init__(
        self,
        head_dim: int,
        max_distance: int,
        keys: bool = True,
        values: bool = True,
        num_heads: int | None = None,
    ) -> None:
        super().__init__()
        self.head_dim, self.max_distance = whole("head_dim", head_dim), whole("max_distance", max_distance)
        self.num_heads = None if num_heads is None else whole("num_heads", num_heads)
        check_flag("keys", keys)
        check_flag("values", values)
        if not (keys or values):
            raise ValueError("keys or values must be True, got False for both")
        heads = () if self.num_heads is None else (self.num_heads,)
        shape = (*heads, 2 * self.max_distance + 1, self.head_dim)
        self.key_table = nn.Parameter(torch.empty(shape)) if keys else None
        self.value_table = nn.Parameter(torch.empty(shape)) if values else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Both tables uniform within sqrt(6 / (2k + 1 + d))."""
        bound = (6 / (2 * self.max_distance + 1 + self.head_dim)) ** 0.5
        for table in self.parameters():
            nn.init.uniform_(table, -bound, bound)

    def score(self) -> Score | None:
        """q_i . K[c] / sqrt(d)."""
        if self.key_table is None:
            return None
        return Score(self._bind, by_distance=self._by_distance, constant_past=self.max_distance)

    def value(self) -> Value | None:
        """V[c], by bucket."""
        if self.value_table is None:
            return None
        return Value(self.value_table, self._bucket, by_distance=self._row, constant_past=self.max_distance)

    def _row(self, distances: Tensor) -> Tensor:
        return distances.clamp(-self.max_distance, self.max_distance) + self.max_distance

    def _by_distance(self, block: Block, distances: Tensor) -> ByDistance:
        assert self.key_table is not None
        block.check_heads("Shaw", self.num_heads, self.head_dim)
        vectors = block.scale * self.key_table.to(block.dtype)[..., self._row(distances), :]
        return ByDistance(vectors=vectors if vectors.dim() == 3 else vectors[None])

    def _bucket(self, block: Block) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        x, y = block.table_coordinates("Shaw")
        return lambda b, h, i, j: self._row(y[b, j] - x[b, i])

    def _bind(self, block: Block) -> ScoreFunction:
        assert self.key_table is not None
        block.check_heads("Shaw", self.num_heads, self.head_dim)
        bucket = self._bucket(block)
        met: Float[Tensor, "batch heads queries buckets"] = block.query @ self.key_table.to(block.query.dtype).mT
        met = met * block.scale
        return lambda score, b, h, i, j: score + met[b, h, i, bucket(b, h, i, j)]

    def extra_repr(self) -> str:
        return f"{self.head_dim}, max_distance={self.max_distance}, num_heads={self.num_heads}"


ENTRY = Entry(
    name="shaw",
    scheme=Shaw,
    paper="Shaw et al. 2018",
    laws=frozenset({Law.RELATIVE, Law.BOUNDED, Law.DIRECTED, Law.LENGTH_FREE}),
    cost="a (2k + 1)-wide product per query and a sum per bucket per layer",
    build=lambda shape: Shaw(shape.head_dim, max_distance=16),
    learned="2 (2k + 1) × d",
    does=(
        "a trainable vector per clipped distance, in the keys, in the values, or in both; shared or one set per "
        "head (`num_heads`)"
    ),
    limits="distances past the window are one",
)
