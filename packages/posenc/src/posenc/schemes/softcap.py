"""Softcap: a smooth bound on every score."""

import torch
from torch import Tensor

from posenc.arguments import number
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import Distance, Function, ScoreTerms
from posenc.positions.positions import Positions
from posenc.rotation.phases import widest
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law


class Softcap(Scheme):
    """Soft-caps scores to the range (-cap, cap). Small scores are nearly unchanged.

    Formula: cap tanh(s_ij / cap), of the score with all earlier terms of a composition: ``ALiBi(12) + Softcap(50.0)``
    caps the biased score, ``Softcap(50.0) + ALiBi(12)`` adds the bias afterwards.

    It does not encode positions.
    Any number of coordinates per token.
    Source: Gemma 2 (2024), section 2, with cap 50 in attention; the form is that of Bello et al. 2016 (arXiv
    1611.09940), section 4. As in transformers (models/gemma2), it comes after the scale and before the mask.
    """

    reads_positions = False

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = number("cap", cap, above=0)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        """cap tanh(s_ij / cap). The cap is a coefficient that does not depend on distance."""
        axis, caps = (None, lambda r: self._caps(r[..., 0])) if query_positions.coords.dim() == 3 else (0, self._caps)
        distance = Distance("Softcap", axis=axis, tail="constant")
        return (Function(capped, caps, distance, formula="cap"),)

    def _caps(self, r: Tensor) -> tuple[Tensor]:
        return (torch.full((1, *r.shape), self.cap, dtype=widest(r.device), device=r.device),)


def capped(score: Tensor, cap: Tensor) -> Tensor:
    """cap tanh(s / cap)."""
    return cap * torch.tanh(score / cap)


ENTRY = Entry(
    name="softcap",
    scheme=Softcap,
    paper="Gemma Team 2024",
    laws=FORMULA | {Law.RELATIVE, Law.BOUNDED, Law.ORDER_FREE},
    cost="a tanh of every score per layer",
    build=lambda shape: Softcap(50.0),
    axes="any",
    does="bounds every score smoothly, after all earlier terms",
    limits="does not encode positions; a function of the score, which few fused kernels support",
    formula=r"s_{ij} = \mathrm{cap} \cdot \tanh \frac{q_i \cdot k_j}{\mathrm{cap} \sqrt{d}}",
    example="posenc.attention(q, k, v, posenc.RoPE(64) + posenc.Softcap(50.0), is_causal=True)",
    users="Gemma 2",
    url="https://arxiv.org/abs/2408.00118",
    avoid="**By itself.** It bounds scores and encodes no positions. Compose it with `RoPE`, as Gemma 2 does.",
)
