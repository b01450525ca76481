"""ALiBi: a penalty on the score that grows linearly with distance."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from posenc.arguments import check_choice, whole
from posenc.encoding import Block, ByDistance, Scheme, Score, ScoreFunction
from posenc.schemes.entry import FORMULA, Entry, Law


class ALiBi(Scheme):
    """Attention with linear biases: head h subtracts m_h times the distance from the score.

    Formula:

        causal         s_ij - m_h (p_i - p_j)
        bidirectional  s_ij - m_h |p_i - p_j|
        directed       s_ij - m_h |p_i - p_j|, and -inf on one side: the first half of the heads see no key after
                       their query, the second half none before it

    where s_ij = q_i . k_j / sqrt(d); the bias itself is *not* divided. For a power of two of heads, m_h = 2^(-8h/H),
    h = 1 .. H. For any other H: the slopes of the largest power of two below, then every other slope of twice that many
    heads. Nothing is learned. The bidirectional form is blind to direction; the directed one, for encoders, is not: it
    gives each half of the heads the slopes of H/2 heads.

    The directed form hides keys by a score of -inf, so a term that makes something else of it (the ReLU of
    `DistanceAware`) must come before it in a composition.

    The causal form rewards a key whose coordinate lies after the query's. Under a causal mask no query sees one, as
    long as coordinates grow with the order.

    Shapes: score (batch, num_heads, queries, keys). Any real positions; distances are taken before they are rounded to
    the score's dtype, so those between integers are exact up to 2^24.
    Errors: ValueError for num_heads below 1 (odd, if directed), an unknown form, or queries of other heads.
    Source: Press, Smith & Lewis 2022, "Train Short, Test Long", section 3 and the authors' code for other head counts;
    the forms for encoders follow the discussion of that code (its issue 5).
    """

    def __init__(self, num_heads: int, form: Literal["causal", "bidirectional", "directed"] = "causal") -> None:
        super().__init__()
        self.num_heads = whole("num_heads", num_heads)
        check_choice("form", form, ("causal", "bidirectional", "directed"))
        if form == "directed" and self.num_heads % 2:
            raise ValueError(f"num_heads must be even where half of them look each way, got {num_heads}")
        self.form: Literal["causal", "bidirectional", "directed"] = form

    @property
    def slopes(self) -> tuple[float, ...]:
        """m_h for every head."""
        heads = self.num_heads // 2 if self.form == "directed" else self.num_heads
        power = 2 ** int(math.log2(heads))
        exponents = [8 * (h + 1) / power for h in range(power)]
        exponents += [8 * (h + 1) / (2 * power) for h in range(0, 2 * power, 2)][: heads - power]
        return tuple(2.0**-e for e in exponents) * (self.num_heads // heads)

    def score(self) -> Score:
        """The bias, a function of positions alone."""
        if self.form == "directed":
            return Score(self._bind, content_free=True)
        return Score(self._bind, content_free=True, by_distance=self._by_distance, linear_past=0)

    def _by_distance(self, block: Block, distances: Tensor) -> ByDistance:
        block.check_heads("ALiBi", self.num_heads)
        slopes = torch.tensor(self.slopes, dtype=block.dtype, device=distances.device)[:, None]
        away = -distances if self.form == "causal" else distances.abs()
        return ByDistance(bias=-slopes * away.to(block.dtype))

    def _bind(self, block: Block) -> ScoreFunction:
        block.check_heads("ALiBi", self.num_heads)
        slopes = torch.tensor(self.slopes, dtype=torch.float64, device=block.query.device)
        x, y = block.query_positions.scalar("ALiBi"), block.key_positions.scalar("ALiBi")

        def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = x[b, i] - y[b, j]
            away = distance if self.form == "causal" else distance.abs()
            biased = score - slopes.to(score.dtype)[h] * away.to(score.dtype)
            if self.form == "directed":
                looks_back = h < self.num_heads // 2
                hidden = (looks_back & (distance < 0)) | (~looks_back & (distance > 0))
                biased = torch.where(hidden, -torch.inf, biased)
            return biased

        return biased

    def extra_repr(self) -> str:
        return f"{self.num_heads}, form={self.form!r}"


ENTRY = Entry(
    name="alibi",
    scheme=ALiBi,
    paper="Press et al. 2022",
    laws=FORMULA | {Law.RELATIVE, Law.UNIQUE, Law.DIRECTED, Law.MONOTONE, Law.DECAYING},
    cost="one bias on every score per layer",
    build=lambda shape: ALiBi(shape.num_heads, "causal" if shape.causal else "bidirectional"),
    does=(
        'a penalty that grows with distance: `"causal"`, `"bidirectional"`, or `"directed"` (half of the heads look'
        " each way)"
    ),
    limits="the bidirectional form is blind to direction",
)
