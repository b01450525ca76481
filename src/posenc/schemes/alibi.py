"""ALiBi: a penalty on the score that grows linearly with distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posenc.encoding import Block, Scheme, Score, ScoreFunction


class ALiBi(Scheme):
    """Attention with linear biases: head h subtracts m_h times the distance from the score.

    Formula:

        causal         s_ij - m_h (p_i - p_j)
        bidirectional  s_ij - m_h |p_i - p_j|

    where s_ij = q_i . k_j / sqrt(d); the bias itself is *not* divided. For a power of two of heads, m_h = 2^(-8h/H),
    h = 1 .. H. For any other H: the slopes of the largest power of two below, then every other slope of twice that many
    heads. The bidirectional form is blind to direction. Nothing is learned.

    The causal form rewards a key whose coordinate lies after the query's. Under a causal mask no query sees one, as
    long as coordinates grow with the order.

    Shapes: score (batch, num_heads, queries, keys). Any real positions; distances are taken before they are rounded to
    the score's dtype, so those between integers are exact up to 2^24.
    Errors: ValueError for num_heads below 1, or queries with another number of heads.
    Source: Press, Smith & Lewis 2022, "Train Short, Test Long", section 3 and the authors' code for other head counts.
    """

    def __init__(self, num_heads: int, bidirectional: bool = False) -> None:
        super().__init__()
        if num_heads < 1:
            raise ValueError(f"num_heads must be positive, got {num_heads}")
        self.num_heads, self.bidirectional = num_heads, bidirectional

    @property
    def slopes(self) -> tuple[float, ...]:
        """m_h for every head."""
        power = 2 ** int(math.log2(self.num_heads))
        exponents = [8 * (h + 1) / power for h in range(power)]
        exponents += [8 * (h + 1) / (2 * power) for h in range(0, 2 * power, 2)][: self.num_heads - power]
        return tuple(2.0**-e for e in exponents)

    def score(self) -> Score:
        """The bias, a function of positions alone."""
        return Score(self._bind, additive=True, content_free=True)

    def _bind(self, block: Block) -> ScoreFunction:
        if block.query.size(1) != self.num_heads:
            raise ValueError(f"ALiBi has slopes for {self.num_heads} heads, got queries of {block.query.size(1)}")
        slopes = torch.tensor(self.slopes, dtype=torch.float64, device=block.query.device)
        x, y = block.query_positions.scalar("ALiBi"), block.key_positions.scalar("ALiBi")

        def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = x[b, i] - y[b, j]
            if self.bidirectional:
                distance = distance.abs()
            return score - slopes.to(score.dtype)[h] * distance.to(score.dtype)

        return biased

    def extra_repr(self) -> str:
        return f"{self.num_heads}, bidirectional={self.bidirectional}"
