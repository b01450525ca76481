"""DA-Transformer: multiplies scores by a learned sigmoid of the distance."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.arguments import shown, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import Distance, Function, ScoreTerms
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law


class DistanceAware(Scheme):
    """Distance-aware attention: each head multiplies scores by a learned function of the distance.

    Formula, with the head's parameters w and v:

        s_ij = ReLU(q_i . k_j / sqrt(d)) f(w |p_i - p_j|; v)
        f(R; v) = (1 + e^v) / (1 + e^(v - R)) = (1 + e^v) sigmoid(R - v)

    f(0) = 1: the score of a token with itself is unchanged. f is monotone in the distance and bounded by 1 + e^v: w > 0
    favors distant keys up to that bound, w < 0 makes scores decay. The factor is blind to direction: order needs a
    causal mask or another scheme.

    Parameters: w and v, one each per head; w from N(0, 0.02^2), v = 0.
    Shapes: score (batch, num_heads, queries, keys). Any real positions, of one axis.
    Source: Wu, Wu & Huang 2021, "DA-Transformer: Distance-aware Transformer", section 3.2. The formula follows
    descriptions of the paper; the authors' code was not available.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = whole("num_heads", num_heads)
        self.w, self.v = (nn.Parameter(torch.empty(self.num_heads)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.w, std=0.02)
        nn.init.zeros_(self.v)

    def factor(self, distance: Float[Tensor, "..."]) -> Float[Tensor, "heads ..."]:
        """f(w |r|; v) of every head, for distances of any shape. Raises ValueError unless they are floating."""
        if not isinstance(distance, Tensor) or not distance.is_floating_point():
            raise ValueError(f"distance must be a floating tensor, got {shown(distance)}")
        w, v = (p.to(distance.dtype).view(-1, *[1] * distance.dim()) for p in (self.w, self.v))
        # (1 + e^v) sigmoid(R - v) = e^(softplus(v) + logsigmoid(R - v)), which does not overflow.
        return torch.exp(nn.functional.softplus(v) + nn.functional.logsigmoid(w * distance.abs() - v))

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        distance = Distance("DistanceAware", num_heads=self.num_heads)
        return (Function(rescaled, self._coefficients, distance, formula="relu times"),)

    def _coefficients(self, r: Tensor) -> tuple[Tensor]:
        return (self.factor(r.to(torch.promote_types(self.w.dtype, torch.float32))),)


def rescaled(score: Tensor, factor: Tensor) -> Tensor:
    """ReLU(s) f."""
    return score.relu() * factor


ENTRY = Entry(
    name="distance_aware",
    scheme=DistanceAware,
    paper="Wu et al. 2021",
    laws=frozenset({Law.RELATIVE, Law.UNIQUE, Law.BOUNDED, Law.MONOTONE, Law.LENGTH_FREE, Law.FRACTIONAL}),
    cost="one factor on every score per layer",
    build=lambda shape: DistanceAware(shape.num_heads),
    learned="2 per head",
    does="multiplies the ReLU of the score by a learned sigmoid of the distance",
    limits="blind to direction; scores decay to 0, not to −∞",
    formula=(
        r"s_{ij} = \mathrm{ReLU} \Bigl( \frac{q_i "
        r"\cdot k_j}{\sqrt{d}} \Bigr) \frac{1 + e^{v_h}}{1 + e^{v_h - w_h |p_i - p_j|}}"
    ),
    example="posenc.attention(q, k, v, posenc.DistanceAware(12))",
    url="https://arxiv.org/abs/2010.06925",
    avoid="**Keys that must get no weight.** Scores fade to 0 with distance, so far keys keep some weight.",
)
