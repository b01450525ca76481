"""Relative 1D: multiplies the query with a learned vector per signed distance."""

import torch
from torch import nn

from posenc.arguments import whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import Distance, RelativeDot, ScoreTerms
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law


class Relative1D(Scheme):
    """A learned vector for every distance -(N-1) .. N-1, multiplied with the query like the key.

    Formula: s_ij = (q_i . k_j + q_i . R[p_j - p_i + N - 1]) / sqrt(d), R of (2N - 1) x d.

    Parameters: (2N - 1) x d shared by the heads, or H x (2N - 1) x d with ``num_heads``; from N(0, 1/d).
    Shapes: query (batch, heads, queries, head_dim). Coordinates must be int64.
    Errors: PositionError for a distance outside the table; ValueError for sizes below 1, another head_dim or number of
    heads.
    Source: Bello et al. 2019, "Attention Augmented Convolutional Networks", equation 3, in one dimension.
    """

    def __init__(self, max_positions: int, head_dim: int, num_heads: int | None = None) -> None:
        super().__init__()
        self.max_positions, self.head_dim = whole("max_positions", max_positions), whole("head_dim", head_dim)
        self.num_heads = None if num_heads is None else whole("num_heads", num_heads)
        heads = () if self.num_heads is None else (self.num_heads,)
        self.weight = nn.Parameter(torch.empty(*heads, 2 * self.max_positions - 1, self.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.head_dim**-0.5)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        table = self.weight if self.weight.dim() == 3 else self.weight[None]
        distance = Distance("Relative1D", integral=True, reach=(self.max_positions,), num_heads=self.num_heads)
        return (RelativeDot(lambda r: table[:, r + self.max_positions - 1], distance),)


ENTRY = Entry(
    name="relative_1d",
    scheme=Relative1D,
    paper="Bello et al. 2019",
    laws=frozenset({Law.RELATIVE, Law.UNIQUE, Law.BOUNDED, Law.DIRECTED}),
    cost="a (2N − 1)-wide product per query per layer",
    build=lambda shape: Relative1D(shape.max_positions, shape.head_dim),
    learned="(2N − 1) × d",
    does="a trainable vector per signed distance, shared or per head",
    limits="undefined beyond the table",
    formula=(
        r"s_{ij} = \frac{q_i \cdot k_j + q_i \cdot R_{p_j - p_i + N - 1}}{\sqrt{d}}, \qquad "
        r"N = \mathrm{max\_positions}"
    ),
    example="posenc.attention(q, k, v, posenc.Relative1D(1024, 64), is_causal=True)",
    url="https://arxiv.org/abs/1904.09925",
    avoid="**Long texts.** It has a vector for each distance. `Shaw` clips distances, and `T5` shares buckets.",
)
