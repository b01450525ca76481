"""DA-Transformer: the distance rescales the score by a learned sigmoid."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.arguments import shown, whole
from posenc.encoding import Block, ByDistance, Scheme, Score, ScoreFunction
from posenc.schemes.entry import Entry, Law


class DistanceAware(Scheme):
    """The real distance multiplies the score, by a factor that each head learns.

    Formula, with the head's parameters w and v:

        s_ij = ReLU(q_i . k_j / sqrt(d)) f(w |p_i - p_j|; v)
        f(R; v) = (1 + e^v) / (1 + e^(v - R)) = (1 + e^v) sigmoid(R - v)

    f(0) = 1: a token's score with itself is untouched. f is monotone in the distance and bounded by 1 + e^v: w > 0
    favours the far up to that bound, w < 0 lets them fade. A faded score is 0, not -inf, so the key keeps its share of
    the softmax. The ReLU gives the product a meaning for either sign of the inner product. w = 0 is attention on
    ReLU scores. The factor is blind to direction: order needs a causal mask, or another scheme beside it.

    Parameters: w and v, one each per head; w from N(0, 0.02^2), v = 0.
    Shapes: score (batch, num_heads, queries, keys). Any real positions, of one axis.
    Errors: ValueError for num_heads below 1, or queries with another number of heads.
    Source: Wu, Wu & Huang 2021, "DA-Transformer: Distance-aware Transformer", section 3.2. The formula is taken from
    descriptions of the paper; no code by its authors was found.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = whole("num_heads", num_heads)
        self.w, self.v = (nn.Parameter(torch.empty(self.num_heads)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """w from N(0, 0.02^2), so that heads differ; v = 0."""
        nn.init.normal_(self.w, std=0.02)
        nn.init.zeros_(self.v)

    def factor(self, distance: Float[Tensor, "... one_or_heads"]) -> Float[Tensor, "... heads"]:
        """f(w |r|; v) for distances whose last axis has a place per head, or one alone. ValueError for others."""
        fits = isinstance(distance, Tensor) and distance.is_floating_point() and distance.dim() > 0
        if not fits or distance.size(-1) not in (1, self.num_heads):
            raise ValueError(f"distance must be floating (..., 1 or {self.num_heads}), got {shown(distance)}")
        return self._factor(distance.abs(), self.w.to(distance.dtype), self.v.to(distance.dtype))

    @staticmethod
    def _factor(distance: Tensor, w: Tensor, v: Tensor) -> Tensor:
        # (1 + e^v) sigmoid(R - v) = e^(softplus(v) + logsigmoid(R - v)), which overflows for neither sign of v.
        return torch.exp(nn.functional.softplus(v) + nn.functional.logsigmoid(w * distance - v))

    def score(self) -> Score:
        """ReLU(s_ij) f(w |p_i - p_j|; v)."""
        return Score(self._bind, additive=False, by_distance=self._by_distance)

    def _by_distance(self, block: Block, distances: Tensor) -> ByDistance:
        block.check_heads("DistanceAware", self.num_heads)
        return ByDistance(factor=self.factor(distances[:, None].to(block.dtype)).mT)

    def _bind(self, block: Block) -> ScoreFunction:
        block.check_heads("DistanceAware", self.num_heads)
        x, y = block.query_positions.scalar("DistanceAware"), block.key_positions.scalar("DistanceAware")
        w, v = self.w.to(block.query.dtype), self.v.to(block.query.dtype)

        def rescaled(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (x[b, i] - y[b, j]).abs().to(score.dtype)
            return score.relu() * self._factor(distance, w[h], v[h])

        return rescaled

    def extra_repr(self) -> str:
        return f"{self.num_heads}"


ENTRY = Entry(
    name="distance_aware",
    scheme=DistanceAware,
    paper="Wu et al. 2021",
    laws=frozenset({Law.RELATIVE, Law.UNIQUE, Law.BOUNDED, Law.MONOTONE, Law.LENGTH_FREE, Law.FRACTIONAL}),
    cost="one factor on every score per layer",
    build=lambda shape: DistanceAware(shape.num_heads),
    learned="2 per head",
    does="multiplies the ReLU of the score by a learned sigmoid of the distance",
    limits="blind to direction; fades scores to 0, not to −∞",
)
