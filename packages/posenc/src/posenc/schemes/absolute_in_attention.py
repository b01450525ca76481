"""Absolute in attention: multiplies the query with a learned vector per key position in every layer."""

import torch
from torch import nn

from posenc.arguments import whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import AddedVector, ScoreTerms
from posenc.positions.positions import Positions
from posenc.positions.tiles import table_index
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law


class AbsoluteInAttention(Scheme):
    """A learned vector per key position, multiplied with the query like the key.

    Formula: s_ij = (q_i . k_j + q_i . R[p_j]) / sqrt(d), R of max_positions x d, shared by the heads.

    Parameters: max_positions x d, drawn from N(0, 1/d). Shapes: query (batch, heads, queries, head_dim).
    Coordinates must be int64.
    Errors: PositionError for a key outside the table; ValueError for sizes below 1, another head_dim or fractional
    coordinates.
    Source: the absolute variant of Srinivas et al. 2021, "Bottleneck Transformers for Visual Recognition".
    """

    def __init__(self, max_positions: int, head_dim: int) -> None:
        super().__init__()
        self.max_positions, self.head_dim = whole("max_positions", max_positions), whole("head_dim", head_dim)
        self.weight = nn.Parameter(torch.empty(self.max_positions, self.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.head_dim**-0.5)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        rows = table_index(key_positions, "AbsoluteInAttention", self.max_positions)
        return (AddedVector("AbsoluteInAttention", key=self.weight[rows][:, None]),)


ENTRY = Entry(
    name="absolute_in_attention",
    scheme=AbsoluteInAttention,
    paper="Srinivas et al. 2021",
    laws=frozenset({Law.ABSOLUTE, Law.UNIQUE, Law.BOUNDED, Law.DIRECTED}),
    cost="one vector on every key per layer",
    build=lambda shape: AbsoluteInAttention(shape.max_positions, shape.head_dim),
    learned="max_positions × d",
    does="a trainable vector per key position, multiplied with the query in every layer",
    limits="undefined beyond the table",
    formula=r"s_{ij} = \frac{q_i \cdot k_j + q_i \cdot R_{p_j}}{\sqrt{d}}",
    example="posenc.attention(q, k, v, posenc.AbsoluteInAttention(1024, 64), is_causal=True)",
    url="https://arxiv.org/abs/2101.11605",
    avoid="**Cheap positions.** It adds a vector to each key in every layer, `Learned` one to the input.",
)
