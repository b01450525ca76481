"""ALiBi: subtracts a multiple of the distance from the score."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.arguments import check_choice, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import Bias, Distance
from posenc.positions.positions import Positions
from posenc.rotation.phases import constant, widest
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law, lines


def alibi_slopes(heads: int, dtype: torch.dtype, device: torch.device | None = None) -> Float[Tensor, " heads"]:
    """m_h of every head: 2^(-8h/H) for a power of two, else those of the next lower one and every other of twice as
    many. Computed on the device: a list of numbers would be copied to the GPU in every graph."""
    power = 2 ** int(math.log2(heads))
    h = torch.arange(heads, dtype=dtype, device=device)
    return torch.exp2(-torch.where(h < power, 8 * (h + 1) / power, 8 * (2 * (h - power) + 1) / (2 * power)))


class ALiBi(Scheme):
    """Attention with linear biases: head h subtracts m_h times the distance from the score.

    Formula:

        causal         s_ij - m_h (p_i - p_j)
        bidirectional  s_ij - m_h |p_i - p_j|
        directed       s_ij - m_h |p_i - p_j|, and -inf on one side: the first half of the heads attend to no key after
                       their query, the second half to none before it

    where s_ij = q_i . k_j / sqrt(d); the bias itself is *not* divided. If the number of heads H is a power of two, m_h
    = 2^(-8h/H), h = 1 .. H. For any other H: the slopes of the largest power of two below H, then every other slope of
    twice that many heads. Nothing is learned. The bidirectional form is blind to direction. The directed form, for
    encoders, is not; each half of its heads has the slopes of H/2 heads.

    Shapes: score (batch, num_heads, queries, keys). Any real positions; distances are computed before rounding to the
    score's dtype, so integer distances are exact up to 2^24.
    Source: Press, Smith & Lewis 2022, "Train Short, Test Long", section 3 and the authors' code for other head counts;
    the forms for encoders follow the discussion of that code (its issue 5).
    """

    def __init__(self, num_heads: int, form: Literal["causal", "bidirectional", "directed"] = "causal") -> None:
        super().__init__()
        self.num_heads = whole("num_heads", num_heads)
        check_choice("form", form, ("causal", "bidirectional", "directed"))
        if form == "directed" and self.num_heads % 2:
            raise ValueError(f"num_heads must be even for form='directed', got {num_heads}")
        self.form: Literal["causal", "bidirectional", "directed"] = form
        self.looks_back = "form='bidirectional' or form='directed'" if form == "causal" else None

    @property
    def slopes(self) -> tuple[float, ...]:
        """m_h for every head."""
        heads = self.num_heads // 2 if self.form == "directed" else self.num_heads
        return tuple(self._slopes(heads, torch.float64).tolist()) * (self.num_heads // heads)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> tuple[Bias, ...]:
        distance = Distance("ALiBi", tail="linear", num_heads=self.num_heads)
        return (Bias(self._bias, distance, masks=self.form == "directed"),)

    def _bias(self, r: Tensor) -> Tensor:
        heads = self.num_heads // 2 if self.form == "directed" else self.num_heads
        slopes = constant(self._slopes, heads, widest(r.device), device=r.device)
        bias = slopes.view(-1, *[1] * r.dim()) * (r if self.form == "causal" else -r.abs())
        if self.form != "directed":
            return bias
        return torch.cat((bias.masked_fill(r > 0, -torch.inf), bias.masked_fill(r < 0, -torch.inf)))

    _slopes = staticmethod(alibi_slopes)


ENTRY = Entry(
    name="alibi",
    scheme=ALiBi,
    paper="Press et al. 2022",
    laws=FORMULA | {Law.RELATIVE, Law.UNIQUE, Law.DIRECTED, Law.MONOTONE, Law.DECAYING},
    cost="one bias on every score per layer",
    build=lambda shape: ALiBi(shape.num_heads, "causal" if shape.causal else "bidirectional"),
    does='a penalty that grows with distance, of one of three forms; `"directed"`: half of the heads see each side',
    limits="the bidirectional form is blind to direction",
    formula=lines(
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} - m_h \, n_{ij}, \qquad "
        r"n_{ij} = \begin{cases} p_i - p_j & \mbox{causal} \\ |p_i - p_j| & \mbox{bidirectional} \end{cases}",
        r"m_h = \begin{cases} 2^{-8h/N} & h \le N \\ 2^{-4(2(h - N) - 1)/N} & h > N \end{cases} \qquad "
        r"h = 1, \ldots, H, \qquad N = 2^{\lfloor \log_2 H \rfloor}",
        r"\mbox{directed} \mbox{: as bidirectional, and} \allowbreak \mbox{half of the heads see no later key,} "
        r"\allowbreak \mbox{half no earlier one; } H \mbox{ counts a half}",
    ),
    example="posenc.attention(q, k, v, posenc.ALiBi(12), is_causal=True)",
    users="BLOOM, MPT, Falcon-RW",
    url="https://arxiv.org/abs/2108.12409",
    avoid='**Order in an encoder.** `"bidirectional"` is blind to it ([.50](../choose.md#encoders)); use `"directed"`.',
)
