"""Sandwich: the inner product of two sinusoids as a bias, which decays about logarithmically with distance."""

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.arguments import number, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import Bias, Distance, ScoreTerms
from posenc.positions.positions import Positions
from posenc.rotation.phases import exact, frequencies, phases
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law


class Sandwich(Scheme):
    """Adds the inner product of the sinusoids of query and key, minus its maximum, with a different factor per head.

    Formula, for heads h = 1 .. H and an even width D of the sinusoids, which is not that of the heads:

        s_ij + (sum_{k = 1 .. D/2} cos((p_i - p_j) base^(-2k/D)) - D/2) / (8h/H)

    where s_ij = q_i . k_j / sqrt(d); the bias itself is *not* divided. It is 0 at distance 0 and at least -D / (8h/H).
    It decays about logarithmically, with ripples, up to the longest wavelength. Nothing is learned. Blind to direction:
    order needs a causal mask.

    Shapes: score (batch, num_heads, queries, keys). Any real positions, of one axis; phases are exact to float32 up to
    position 2^20.
    Source: Chi, Fan, Rudnicky & Ramadge 2023, "Dissecting Transformer Length Extrapolation via the Lens of Receptive
    Field Analysis", section 5, after NVIDIA's port in NeMo, which has the formula above; the authors' code was not
    found."""

    def __init__(self, num_heads: int, dim: int = 128, base: float = 10_000.0) -> None:
        super().__init__()
        self.num_heads, self.dim = whole("num_heads", num_heads), whole("dim", dim)
        if self.dim % 2:
            raise ValueError(f"dim must be positive and even (channels come in pairs), got {dim}")
        self.base = number("base", base, above=1)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        return (Bias(self._bias, Distance("Sandwich", num_heads=self.num_heads)),)

    def _bias(self, r: Tensor) -> Float[Tensor, "heads ..."]:
        theta = frequencies(self.dim, self.base, r.device) * self.base ** (-2 / self.dim)  # k starts at 1
        below = phases(r, theta).cos().sum(-1) - self.dim / 2
        ratio = 8 * torch.arange(1, self.num_heads + 1, device=below.device).to(below.dtype) / self.num_heads
        bias = torch.tensordot(1 / ratio, below, 0)
        return bias if exact(r.device) == r.device else bias.float().to(r.device)


ENTRY = Entry(
    name="sandwich",
    scheme=Sandwich,
    paper="Chi et al. 2023",
    laws=FORMULA | {Law.RELATIVE, Law.UNIQUE, Law.BOUNDED},
    cost="one bias on every score per layer",
    build=lambda shape: Sandwich(shape.num_heads),
    does="the inner product of two sinusoids as a bias, with a different factor per head",
    limits="blind to direction",
    formula=(
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} \allowbreak + \frac{H}{8h} "
        r"\Bigl( \sum_{k = 1}^{\mathrm{dim}/2} \cos \frac{p_i - p_j}{\mathrm{base}^{2k/\mathrm{dim}}} "
        r"- \frac{\mathrm{dim}}{2} \Bigr), \qquad "
        r"h = 1, \ldots, H"
    ),
    example="posenc.attention(q, k, v, posenc.Sandwich(12), is_causal=True)",
    users="NeMo",
    url="https://arxiv.org/abs/2212.10356",
    avoid="**Heads that should learn how far they look.** Nothing is learned here; in `KERPLE` and `T5` it is.",
)
