"""CoPE: positions are counts of tokens, gated by the query."""

import torch
from torch import Tensor, nn

from posenc.arguments import check_flag, whole
from posenc.encoding.context import WHOLE, Context, following
from posenc.encoding.terms import Row, ScoreTerms
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law, lines


class CoPE(Scheme):
    """Contextual position encoding: multiplies the query with a vector for the gated count of tokens since the key.

    Formula, with sums over the tokens t that query i attends to and whose order is not below the key's:

        g_it = sigmoid(s_it),   p_ij = min(sum_t g_it, max_positions - 1)
        s_ij + c q_i . ((1 - f) e[floor p_ij] + f e[ceil p_ij]),   f = p_ij - floor p_ij

    s_it = q_i . k_t / sqrt(d) is the score with all earlier terms, and e is max_positions x d, shared by the heads.
    With a causal mask the sum runs from the key to the query, both included; without one, to the end of the text.

    There are two conventions. ``scaled=True``: c = 1/sqrt(d), the term is divided like the score (the authors' code,
    which adds before dividing). ``scaled=False``: c = 1 (the listing in the paper, its ``--cope-nodiv``, and
    x-transformers). d is ``head_dim``, whatever scale is passed to `attention`.

    Parameters: e, initialized to zeros as in the authors' code, so an untrained CoPE has no effect.
    Shapes: query (batch, heads, queries, head_dim).
    Source: Golovneva et al. 2024, "Contextual Position Encoding" (arXiv 2405.18719), section 4 and appendix B, and the
    authors' code (facebookresearch/RAM, projects/cope).
    """

    zero_initialized = True

    def __init__(self, head_dim: int, max_positions: int, *, scaled: bool = True) -> None:
        super().__init__()
        self.head_dim, self.max_positions = whole("head_dim", head_dim), whole("max_positions", max_positions)
        check_flag("scaled", scaled)
        self.scaled = scaled
        self.e = nn.Parameter(torch.empty(self.max_positions, self.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.e)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        return (Row(self._row_scores),)

    def _row_scores(
        self,
        scores: Tensor,
        visible: Tensor | None,
        query: Tensor,
        key: Tensor,
        query_positions: Positions,
        key_positions: Positions,
    ) -> Tensor:
        if query.size(-1) != self.head_dim:
            raise ValueError(f"CoPE was made for head_dim {self.head_dim}, got queries of head_dim {query.size(-1)}")
        g = scores.sigmoid()
        g = g if visible is None else g.masked_fill(~visible, 0.0)
        p = following(g, key_positions, itself=True).clamp(max=self.max_positions - 1)
        met = query.to(scores.dtype) @ self.e.to(scores.dtype).transpose(-2, -1)
        met = met * self.head_dim**-0.5 if self.scaled else met
        whole = p.detach().nan_to_num(0.0)  # NaN is no index, and stays in f
        low, high = whole.floor(), whole.ceil()
        f = p - low
        return scores + (1 - f) * met.gather(-1, low.long()) + f * met.gather(-1, high.long())


ENTRY = Entry(
    name="cope",
    scheme=CoPE,
    paper="Golovneva et al. 2024",
    laws=frozenset({Law.RELATIVE, Law.UNIQUE, Law.DIRECTED, Law.LENGTH_FREE, Law.FRACTIONAL}),
    cost="a cumulative sum of every row of scores",
    build=lambda shape: CoPE(shape.head_dim, shape.max_positions),
    axes="any",
    learned="max_positions × head_dim, initially zeros",
    does="counts tokens, gated by the query, and multiplies the query with a vector of the count",
    limits="needs whole rows of scores; uses only the order of tokens, no coordinates",
    formula=lines(
        r"s_{ij} = u_{ij} \allowbreak + c \, q_i "
        r"\cdot \bigl( (1 - f) \, e_{\lfloor p_{ij} \rfloor} + f \, e_{\lceil p_{ij} \rceil} \bigr), \qquad "
        r"u_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}}, \qquad f = p_{ij} - \lfloor p_{ij} \rfloor",
        r"p_{ij} = \min \Bigl( \sum_{t = j}^{i} \sigma(u_{it}), "
        r"\allowbreak \mathrm{max\_positions} - 1 \Bigr), \qquad "
        r"c = \frac{1}{\sqrt{d}} \mbox{ if } \mathrm{scaled}, \mbox{ else } 1",
    ),
    example="posenc.attention(q, k, v, posenc.CoPE(64, max_positions=64), is_causal=True)",
    url="https://arxiv.org/abs/2405.18719",
    avoid="**Fast attention.** It needs whole rows of scores, so no fused kernel runs it.",
)
