"""TUPE: adds a separate inner product of projected positions to that of contents."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.arguments import check_flag, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import Positions
from posenc.positions.tiles import table_index
from posenc.scheme import Scheme, uninitialized, uninitialized_table
from posenc.schemes.entry import Entry, Law, lines


class TUPE(Scheme):
    """Untied positional encoding: positions and contents have separate projections and inner products.

    Formula, with the rows P of a learned table, after a layer norm, and U_Q, U_K of every head:

        s_ij = (q_i . k_j + (P[p_i] U_Q) . (P[p_j] U_K)) / sqrt(2 d)

    With ``untie_cls`` the token at position 0 is [CLS], and the second term is theta_1 in its row and theta_2 in the
    rest of its column, two numbers per head.

    The rotate door concatenates P U_Q to the query and P U_K to the key: both become twice as wide, with the softmax
    scale 1/sqrt(2 d), so do not pass ``scale=``. With fewer key heads, each has the mean of P U_K over the query heads
    that share it (Ainslie et al. 2023); the paper does not cover this case.

    TUPE-R, with a bucketed bias, is ``TUPE(...) + T5(num_heads, bidirectional=True)``. With ``untie_cls`` this differs
    from the paper, where the bias is replaced in the row and column of [CLS] too.

    Parameters: P max_positions x dim, U_Q and U_K dim x (H d), with biases as in the authors' code; all from N(0,
    0.02^2), biases 0, the layer norm's weight 1 and bias 0; theta_1 and theta_2 per head from N(0, 0.02^2), where the
    authors' code uses products of two further rows of P. ``dim`` is H d if None.
    Shapes: query (batch, num_heads, queries, head_dim). Coordinates must be int64 and within 0 .. max_positions - 1.
    Errors: PositionError for a position outside the table; ValueError for sizes below 1, another number of heads, or
    fractional coordinates.
    Source: Ke, He & Liu 2021, "Rethinking Positional Encoding in Language Pre-training", equations 7 to 10, and the
    authors' code (transformer_sentence_encoder.py).
    """

    def __init__(
        self, num_heads: int, head_dim: int, max_positions: int, dim: int | None = None, untie_cls: bool = False
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim = whole("num_heads", num_heads), whole("head_dim", head_dim)
        self.max_positions = whole("max_positions", max_positions)
        self.width = self.num_heads * self.head_dim if dim is None else whole("dim", dim)
        check_flag("untie_cls", untie_cls)
        self.untie_cls = untie_cls
        self.embedding = uninitialized_table(self.max_positions, self.width)
        self.norm = nn.LayerNorm(self.width)
        self.query, self.key = (uninitialized(nn.Linear, self.width, self.num_heads * self.head_dim) for _ in range(2))
        if untie_cls:
            self.theta = nn.Parameter(torch.empty(2, self.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.norm.reset_parameters()
        for layer in (self.embedding, self.query, self.key):
            nn.init.normal_(layer.weight, std=0.02)
        for layer in (self.query, self.key):
            nn.init.zeros_(layer.bias)
        if self.untie_cls:
            nn.init.normal_(self.theta, std=0.02)

    @property
    def scale(self) -> float:
        """The softmax scale: 1 / sqrt(2 d)."""
        return 1 / math.sqrt(2 * self.head_dim)

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        index = table_index(positions, "TUPE", self.max_positions)
        rows = self.embedding.weight[index].to(dtype)
        rows = F.layer_norm(rows, (self.width,), self.norm.weight.to(dtype), self.norm.bias.to(dtype), self.norm.eps)
        of_queries, of_keys = (self._projected(rows, layer) for layer in (self.query, self.key))
        if self.untie_cls:  # two more channels: indicators of [CLS] in keys, theta in queries
            first = (index == 0)[:, None, :, None].to(dtype)
            row, column = (self.theta.to(dtype) / self.scale)[:, None, :, None, None].unbind(0)
            of_queries = torch.cat((of_queries * (1 - first), first * row, (1 - first) * column), -1)
            ones = torch.ones_like(first).expand(-1, self.num_heads, -1, -1)
            of_keys = torch.cat((of_keys * (1 - first), ones, first * ones), -1)
        of_queries, of_keys = (context.of_heads(x, 1) for x in (of_queries, of_keys))
        return Rotation(lambda query: _beside(query, of_queries), lambda key: _beside(key, of_keys, True))

    def _projected(self, rows: Tensor, layer: nn.Linear) -> Float[Tensor, "rows heads tokens head_dim"]:
        both = F.linear(rows, layer.weight.to(rows), layer.bias.to(rows))
        return both.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)


def _beside(x: Tensor, part: Tensor, shared: bool = False) -> Tensor:
    """x (batch, heads, tokens, head_dim) with the channels of its positions; ``shared``: their mean over a key's
    query heads."""
    heads, made_for = x.size(1), part.size(1)
    if (made_for % heads if shared else made_for - heads) != 0:
        raise ValueError(f"TUPE was made for {made_for} heads, got {'keys' if shared else 'queries'} of {heads}")
    if heads != made_for:
        part = part.unflatten(1, (heads, -1)).mean(2)
    return torch.cat((x, part.to(x.dtype).expand(x.size(0), -1, -1, -1)), -1)


ENTRY = Entry(
    name="tupe",
    scheme=TUPE,
    paper="Ke et al. 2021",
    laws=frozenset({Law.ABSOLUTE, Law.UNIQUE, Law.BOUNDED, Law.DIRECTED}),
    cost="heads twice as wide in every layer",
    build=lambda shape: TUPE(shape.num_heads, shape.head_dim, shape.max_positions, shape.dim),
    learned="(max_positions + 2 dim) × dim",
    does="adds an inner product of learned positions, separate from contents; `untie_cls` for a class token",
    limits="undefined beyond the table",
    formula=lines(
        r"s_{ij} = \frac{q_i \cdot k_j + (P_{p_i} U_Q) \cdot (P_{p_j} U_K)}{\sqrt{2d}}",
        r"\mathrm{untie\_cls} \mbox{: the second product is } \theta_1 \mbox{ for } p_i = 0, "
        r"\allowbreak \theta_2 \mbox{ for } p_j = 0 < p_i",
    ),
    example="posenc.attention(q, k, v, posenc.TUPE(12, 64, max_positions=512))",
    url="https://arxiv.org/abs/2006.15595",
    avoid="**Narrow attention.** Heads are twice as wide, since positions stand beside contents.",
)
