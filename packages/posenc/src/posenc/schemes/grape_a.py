"""GRAPE-A: ALiBi whose slopes are gated by queries, keys or both."""

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.arguments import check_choice, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import Row, ScoreTerms
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.alibi import alibi_slopes
from posenc.schemes.entry import Entry, Law, lines


class GRAPEA(Scheme):
    """Additive group representational position encoding, gated: lowers the score by the distance to the key, at a rate
    that depends on the contents of query and key.

    Formula, with m_h the slopes of `ALiBi`, w_h a learned number, and u_h and v_h learned vectors of length 1:

        s_ij - max(p_i - p_j, 0) omega_h g_ijh,   omega_h = m_h softplus(w_h)
        gates="key"    g_ijh = softplus(u_h . k_j / sqrt(d))
        gates="query"  g_ijh = softplus(v_h . q_i / sqrt(d))
        gates="both"   their sum

    The vectors are divided by their length in every call, and d is ``head_dim``. q and k are those that attention
    gets: after the model's norm and, in a composition, after rotation. Keys may have fewer heads. Keys after the query
    have no distance, so attention without a causal mask raises ValueError.

    Parameters: w (heads), with softplus(w) = 1; u and v (heads x head_dim), from N(0, 1/d).
    Shapes: query (batch, num_heads, queries, head_dim); coordinates of one axis, real.
    Source: Zhang et al. 2025, "Group Representational Position Encoding" (arXiv 2512.07805), and the authors'
    code (model-architectures/GRAPE, llama-mha-grape-a-keygated.py, -querygated.py and -querykeygated.py), which divides
    the products of the gates by sqrt(d). Without gates it is `ALiBi`; with a sum of gates along the text, `FoX`.
    """

    looks_back = "ALiBi with form='bidirectional'"

    def __init__(self, num_heads: int, head_dim: int, gates: Literal["key", "query", "both"] = "key") -> None:
        super().__init__()
        self.num_heads, self.head_dim = whole("num_heads", num_heads), whole("head_dim", head_dim)
        check_choice("gates", gates, ("key", "query", "both"))
        self.gates: Literal["key", "query", "both"] = gates
        self.w = nn.Parameter(torch.empty(self.num_heads))
        self.u, self.v = (
            nn.Parameter(torch.empty(self.num_heads, self.head_dim)) if gates in (side, "both") else None
            for side in ("key", "query")
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.w, math.log(math.expm1(1.0)))
        for vectors in (self.u, self.v):
            if vectors is not None:
                nn.init.normal_(vectors, std=self.head_dim**-0.5)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        return (Row(partial(self._row_scores, context)),)

    def _row_scores(
        self,
        context: Context,
        scores: Tensor,
        visible: Tensor | None,
        query: Tensor,
        key: Tensor,
        query_positions: Positions,
        key_positions: Positions,
    ) -> Tensor:
        omega = alibi_slopes(self.num_heads, scores.dtype, scores.device) * F.softplus(self.w.to(scores.dtype))
        omega = context.of_heads(omega, 0)
        if query.size(1) != omega.size(0) or query.size(-1) != self.head_dim:
            raise ValueError(
                f"GRAPEA was made for {omega.size(0)} heads of head_dim {self.head_dim}, got queries of "
                f"{query.size(1)} heads and head_dim {query.size(-1)}"
            )
        rate: Tensor | float = 0.0
        for vectors, x, axis in ((self.u, key, -2), (self.v, query, -1)):
            if vectors is not None:
                direction = context.of_heads(F.normalize(vectors.to(scores.dtype), dim=-1, eps=1e-6), 0)
                x = x.to(scores.dtype).repeat_interleave(query.size(1) // x.size(1), 1)
                rate = rate + F.softplus((x @ direction[:, :, None]).squeeze(-1) * self.head_dim**-0.5).unsqueeze(axis)
        p, r = query_positions.scalar("GRAPEA")[:, :, None], key_positions.scalar("GRAPEA")[:, None]
        away = (p - r).clamp(min=0).to(scores.dtype)[:, None]
        return scores - away * omega[:, None, None] * rate


ENTRY = Entry(
    name="grape_a",
    scheme=GRAPEA,
    paper="Zhang et al. 2025",
    laws=frozenset(
        {Law.RELATIVE, Law.UNIQUE, Law.DIRECTED, Law.MONOTONE, Law.DECAYING, Law.LENGTH_FREE, Law.FRACTIONAL}
    ),
    cost="a gate per token and head, and one number on every score",
    build=lambda shape: GRAPEA(shape.num_heads, shape.head_dim),
    learned="a number and one or two vectors per head",
    does="ALiBi whose slopes are gated by the contents of keys, queries or both",
    limits="for decoders; reads queries and keys, so no fused kernel runs it",
    formula=lines(
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} - \max(p_i - p_j, 0) \, \omega_h \, g_{ij}, \qquad "
        r"g_{ij} = \begin{cases} \mathrm{softplus}(u_h \cdot k_j / \sqrt{d}) & \mbox{key} \\ "
        r"\mathrm{softplus}(v_h \cdot q_i / \sqrt{d}) & \mbox{query} \\ \mbox{their sum} & \mbox{both} \end{cases}",
        r"\omega_h = m_h \, \mathrm{softplus}(w_h), \qquad |u_h| = |v_h| = 1, \qquad "
        r"m_h \mbox{ the slopes of ALiBi}",
    ),
    example="posenc.attention(q, k, v, posenc.GRAPEA(12, 64), is_causal=True)",
    url="https://arxiv.org/abs/2512.07805",
    avoid="**Fast attention.** Slopes read queries and keys, so no fused kernel runs it. `ALiBi` has fixed slopes.",
)
