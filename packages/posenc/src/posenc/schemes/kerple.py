"""KERPLE: subtracts a learned logarithm or power of the distance from the score."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.arguments import check_choice, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import Bias, Distance, ScoreTerms
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law

MIN_PARAMETER, MAX_POWER = 0.01, 2.0


class KERPLE(Scheme):
    """Kernelized relative positions: each head subtracts a learned, increasing function of the distance.

    Formula, with the head's parameters p and a:

        log    s_ij - p ln(1 + a |p_i - p_j|)
        power  s_ij - a |p_i - p_j|^p

    where s_ij = q_i . k_j / sqrt(d); the bias itself is *not* divided. p and a are clamped from below to 0.01; in the
    power form p is also clamped to at most 2, since higher powers are not valid kernels. The authors write the clamped
    number into the parameter in every call; here the parameter is unchanged, and has no gradient while out of bounds.
    The power form with p = 1 is `ALiBi` with learned slopes of at least 0.01. Blind to direction: order needs a causal
    mask.

    Parameters: p and a, one each per head; p from U(0, 2), a from U(0, 1). The authors share them between layers.
    Shapes: score (batch, num_heads, queries, keys). Any real positions, of one axis.
    Source: Chi, Fan, Ramadge & Rudnicky 2022, "KERPLE: Kernelized Relative Positional Embedding for Length
    Extrapolation", equations 6 and 7, and the authors' code (megatron/mpu/layers.py)."""

    def __init__(self, num_heads: int, form: Literal["log", "power"] = "log") -> None:
        super().__init__()
        self.num_heads = whole("num_heads", num_heads)
        check_choice("form", form, ("log", "power"))
        self.form: Literal["log", "power"] = form
        self.p, self.a = (nn.Parameter(torch.empty(self.num_heads)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.p, 0, 2)
        nn.init.uniform_(self.a, 0, 1)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        return (Bias(self._bias, Distance("KERPLE", num_heads=self.num_heads)),)

    def _bias(self, r: Tensor) -> Float[Tensor, "heads ..."]:
        dtype = torch.promote_types(self.p.dtype, torch.float32)
        away = r.abs().to(dtype)
        p, a = (x.to(dtype).clamp(min=MIN_PARAMETER).view(-1, *[1] * r.dim()) for x in (self.p, self.a))
        if self.form == "log":
            return -p * torch.log1p(a * away)
        # The derivative of 0^p by p is 0 ln 0: use the limit 0 instead of NaN.
        power = torch.where(away > 0, away, 1.0) ** p.clamp(max=MAX_POWER)
        return -a * torch.where(away > 0, power, 0.0)


ENTRY = Entry(
    name="kerple",
    scheme=KERPLE,
    paper="Chi et al. 2022",
    laws=frozenset({Law.RELATIVE, Law.UNIQUE, Law.MONOTONE, Law.DECAYING, Law.LENGTH_FREE, Law.FRACTIONAL}),
    cost="one bias on every score per layer",
    build=lambda shape: KERPLE(shape.num_heads),
    learned="2 per head",
    does='a penalty that grows with distance, with learned parameters of each head: `"log"` or `"power"`',
    limits="blind to direction",
    formula=(
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} "
        r"\allowbreak - \begin{cases} p_h \, \ln(1 + a_h |p_i - p_j|) & \mbox{log} \\ "
        r"a_h |p_i - p_j|^{p_h} & \mbox{power} \end{cases}"
    ),
    example="posenc.attention(q, k, v, posenc.KERPLE(12), is_causal=True)",
    url="https://arxiv.org/abs/2205.09921",
    avoid="**Use without training.** How fast each head fades is learned. In `ALiBi` it is fixed.",
)
