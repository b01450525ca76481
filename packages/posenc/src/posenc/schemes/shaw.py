"""Shaw: adds learned vectors per clipped distance to keys and values."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from posenc.arguments import check_flag, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import Distance, RelativeDot, ScoreTerms, Value
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law


class Shaw(Scheme):
    """Relative position representations: a learned vector per distance, clipped to k tokens on each side.

    Formula, with c = clip(p_j - p_i, -k, k) + k:

        s_ij = q_i . (k_j + K[c]) / sqrt(d)
        o_i  = sum_j a_ij (v_j + V[c])

    The distance is key minus query: row 0 of a table is "k or more to the left", row k the token itself. Larger
    distances share a vector, so any length has an encoding. Left and right have different rows; with a causal mask the
    right half is not used.

    Parameters: two tables (2k + 1) x d, shared by the heads, or H x (2k + 1) x d with ``num_heads``; initialized
    uniformly with Glorot's bound, as in tensor2tensor. ``keys=False`` or ``values=False`` omits that table.
    Shapes: query (batch, heads, queries, head_dim); value of the same head_dim. Coordinates must be int64.
    Cost: q times a table, (queries x (2k + 1)) per head, and the attention weight per distance; never queries x keys x
    d.
    Source: Shaw, Uszkoreit & Vaswani 2018, "Self-Attention with Relative Position Representations", equations 3 and 4.
    """

    def __init__(
        self, head_dim: int, max_distance: int, keys: bool = True, values: bool = True, num_heads: int | None = None
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
        bound = (6 / (2 * self.max_distance + 1 + self.head_dim)) ** 0.5
        for table in self.parameters():
            nn.init.uniform_(table, -bound, bound)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        if self.key_table is None:
            return ()
        return (RelativeDot(self._rows(self.key_table), self._distance),)

    def value(
        self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE
    ) -> tuple[Value, ...]:
        return () if self.value_table is None else (Value(self._rows(self.value_table), self._distance),)

    @property
    def doors(self) -> tuple[str, ...]:
        tables = (("score", self.key_table), ("value", self.value_table))
        return tuple(door for door, table in tables if table is not None)

    @property
    def _distance(self) -> Distance:
        return Distance("Shaw", integral=True, tail="constant", past=self.max_distance, num_heads=self.num_heads)

    def _rows(self, table: Tensor) -> Callable[[Tensor], Tensor]:
        k = self.max_distance
        return lambda r: (table if table.dim() == 3 else table[None])[:, r.clamp(-k, k) + k]


ENTRY = Entry(
    name="shaw",
    scheme=Shaw,
    paper="Shaw et al. 2018",
    laws=frozenset({Law.RELATIVE, Law.BOUNDED, Law.DIRECTED, Law.LENGTH_FREE}),
    cost="a (2k + 1)-wide product per query and a sum per distance per layer",
    build=lambda shape: Shaw(shape.head_dim, max_distance=16),
    learned="2 (2k + 1) × d",
    does="a trainable vector per clipped distance, in keys, values or both; shared, or per head with `num_heads`",
    limits="all distances beyond the window are the same",
    formula=(
        r"s_{ij} = \frac{q_i \cdot (k_j + K_c)}{\sqrt{d}}, \qquad o_i = \sum_j a_{ij} (v_j + V_c), \qquad "
        r"c = \min(\max(p_j - p_i, -m), m) + m"
    ),
    symbols={"max_distance": "m", "keys": "K", "values": "V"},
    example="posenc.attention(q, k, v, posenc.Shaw(64, max_distance=16), is_causal=True)",
    users="tensor2tensor",
    url="https://arxiv.org/abs/1803.02155",
    avoid="**Differences between far distances.** All beyond `max_distance` have one vector. `RoPE` tells them apart.",
)
