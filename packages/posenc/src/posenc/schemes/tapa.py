"""TAPA: the products of one half of the channels modulate those of the other by a power of the distance."""

import math

import torch
from torch import Tensor

from posenc.arguments import number, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import Row, ScoreTerms
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law, lines


class TAPA(Scheme):
    """Token-aware phase attention: multiplies the product of the first channels by the cosine of that of the others,
    at a frequency that grows with a power of the distance.

    Formula, with n = ``amplitude_dim`` and d = ``head_dim``, and A and P the first n and the last d - n channels:

        s_ij + a_ij cos(2 pi |p_i - p_j|^alpha f_ij) - q_i . k_j / sqrt(d)
        a_ij = qA_i . kA_j / sqrt(n),   f_ij = qP_i . kP_j / sqrt(d - n)

    It takes the place of the product and keeps what other schemes of a composition add. d is ``head_dim``, so pass no
    other scale to `attention`. Before and after the query are the same, so a decoder knows them by its causal mask.
    Nothing is learned beyond the projections, whose channels get these parts.

    Shapes: query (batch, heads, queries, head_dim); coordinates of one axis, real.
    Source: Wang et al. 2025, "Positional Encoding via Token-Aware Phase Attention" (arXiv 2509.12635), equation 12;
    n = d/2 and alpha = 0.1, the defaults here, are the paper's theta = 0.5 and alpha.
    """

    def __init__(self, head_dim: int, amplitude_dim: int | None = None, alpha: float = 0.1) -> None:
        super().__init__()
        self.head_dim = whole("head_dim", head_dim, least=2)
        amplitude_dim = head_dim // 2 if amplitude_dim is None else amplitude_dim
        self.amplitude_dim = whole("amplitude_dim", amplitude_dim, 1, head_dim - 1)
        self.alpha = number("alpha", alpha, above=0)

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
            raise ValueError(f"TAPA was made for head_dim {self.head_dim}, got queries of head_dim {query.size(-1)}")
        sizes = (self.amplitude_dim, self.head_dim - self.amplitude_dim)
        key = key.repeat_interleave(query.size(1) // key.size(1), 1)
        (q_a, q_p), (k_a, k_p) = (x.to(scores.dtype).split(sizes, -1) for x in (query, key))
        amplitude, phase = q_a @ k_a.mT, q_p @ k_p.mT
        p, r = query_positions.scalar("TAPA")[:, :, None], key_positions.scalar("TAPA")[:, None]
        away = (p - r).abs().to(scores.dtype)[:, None]
        away = torch.where(away > 0, away.where(away > 0, 1.0) ** self.alpha, 0.0)  # no infinite derivative at 0
        turned = sizes[0] ** -0.5 * torch.cos(2 * math.pi * sizes[1] ** -0.5 * away * phase)
        return scores + (amplitude * turned - self.head_dim**-0.5 * (amplitude + phase))


ENTRY = Entry(
    name="tapa",
    scheme=TAPA,
    paper="Wang et al. 2025",
    laws=FORMULA | {Law.RELATIVE, Law.UNIQUE, Law.BOUNDED},
    cost="two products and a cosine of every score",
    build=lambda shape: TAPA(shape.head_dim),
    does="multiplies the product of half of the channels by a cosine, whose frequency is the product of the others",
    limits="the same before and after a token; reads queries and keys, so no fused kernel runs it",
    formula=lines(
        r"s_{ij} = \frac{q^A_i \cdot k^A_j}{\sqrt{n}} \, \cos \Bigl( 2 \pi \, |p_i - p_j|^\alpha \, "
        r"\frac{q^P_i \cdot k^P_j}{\sqrt{d - n}} \Bigr), \qquad A \mbox{: the first } n \mbox{ channels}, "
        r"\allowbreak P \mbox{: the others}",
    ),
    example="posenc.attention(q, k, v, posenc.TAPA(64), is_causal=True)",
    url="https://arxiv.org/abs/2509.12635",
    avoid="**Fast attention.** Two products of every pair are needed, so no fused kernel runs it.",
)
