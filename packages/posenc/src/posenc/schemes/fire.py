"""FIRE: a bias from a small MLP of the distance, normalized by the query's position."""

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.arguments import number, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import BrokenLine, Function, ScoreTerms, plus
from posenc.positions.positions import Positions
from posenc.scheme import Scheme, uninitialized
from posenc.schemes.entry import Entry, Law

EPSILON = 1e-6


class FIRE(Scheme):
    """Functional interpolation: a learned function of the distance, normalized by the query's position.

    Formula, with psi(x) = ln(|c| x + 1), the threshold T = |m L|, and an MLP f of one input with ``hidden`` units:

        s_ij + f(psi(max(p_i - p_j, 0)) / (psi(max(T, p_i)) + 10^-6))_h
        f(x) = W2 relu(w1 x + b1) + b2

    where s_ij = q_i . k_j / sqrt(d); the bias itself is *not* divided. The normalized distance is within 0 .. 1 for any
    length. Up to position T the bias depends only on the distance; beyond T it depends on both positions, so a shift
    changes it. For causal models: keys after the query have distance 0.

    Parameters: c = 0.1, m = 1, and the MLP with hidden x (2 + H) + H numbers, initialized like `torch.nn.Linear`; L =
    ``length`` is not learned. The paper shares them between layers.
    Shapes: score (batch, num_heads, queries, keys). Any real positions, of one axis; those of queries from 0 on.
    Source: Li et al. 2024, "Functional Interpolation for Relative Positions Improves Long Context Transformers",
    equations 4, 7 and 8. Initial values, the 10^-6 and the treatment of keys after the query follow the code of Zheng
    et al. 2024, "DAPE", which includes FIRE; the authors' own code was not found.
    """

    looks_back = "KERPLE, or T5 with bidirectional=True"

    def __init__(self, num_heads: int, hidden: int = 32, length: float = 512.0) -> None:
        super().__init__()
        self.num_heads, self.hidden = whole("num_heads", num_heads), whole("hidden", hidden)
        self.length = number("length", length, above=0)
        self.c, self.multiple = (nn.Parameter(torch.empty(1)) for _ in range(2))  # FSDP2 takes no scalars
        self.inner = uninitialized(nn.Linear, 1, self.hidden)
        self.outer = uninitialized(nn.Linear, self.hidden, self.num_heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """c = 0.1, m = 1, and the MLP like `torch.nn.Linear`."""
        nn.init.constant_(self.c, 0.1)
        nn.init.ones_(self.multiple)
        self.inner.reset_parameters()
        self.outer.reset_parameters()

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        for positions in (query_positions, key_positions):
            positions.scalar("FIRE")
        broken = BrokenLine(lambda r: self._psi((-r).clamp(min=0).double()), self._share, self._lines)
        return (Function(plus, self._bias, adds=True, broken=broken, scheme="FIRE", num_heads=self.num_heads),)

    def _bias(self, x: Tensor, y: Tensor) -> tuple[Float[Tensor, "heads rows queries keys"]]:
        dtype = torch.promote_types(self.c.dtype, torch.float32)
        if x.dim() == 4:  # coordinates with a dimension for axes
            x, y = x[..., 0], y[..., 0]
        away, here = (x - y).clamp(min=0).to(dtype), x.to(dtype)
        share = self._psi(away) / (self._psi(torch.maximum(here, self._threshold(dtype))) + EPSILON)
        inner, outer = ([p.to(dtype) for p in (layer.weight, layer.bias)] for layer in (self.inner, self.outer))
        return (F.linear(F.linear(share[..., None], *inner).relu(), *outer).movedim(-1, 0),)

    def _psi(self, x: Tensor) -> Tensor:
        return torch.log1p(self.c.to(x.dtype).abs() * x)

    def _threshold(self, dtype: torch.dtype) -> Tensor:
        return (self.multiple.to(dtype) * self.length).abs()

    # -- the same bias as a piecewise linear function of the normalized distance, with a break for each unit of the MLP

    def _share(self, x: Tensor) -> Float64[Tensor, "..."]:
        return 1 / (self._psi(torch.maximum(x.double(), self._threshold(torch.float64))) + EPSILON)

    def _lines(self) -> tuple[Float64[Tensor, "{self.hidden}+1"], Float64[Tensor, "heads {self.hidden}+2 2"]]:
        w1, b1, w2, b2 = (p.double() for layer in (self.inner, self.outer) for p in (layer.weight, layer.bias))
        w1 = w1[:, 0]
        bends = torch.where(w1 == 0, torch.inf, -b1 / w1).clamp(min=0).detach()
        breaks = F.pad(bends.sort().values, (1, 0))
        # For each term from the second on, and each unit, whether the unit is active: it is beyond its bend, or
        # before it if the unit falls. Of a unit without slope, the bend is beyond all. On the first term x = 0.
        is_on = b1 > 0
        falls = torch.where(w1 == 0, is_on, w1 < 0)
        active = torch.cat((is_on[None], (breaks[:, None] >= bends) ^ falls)).to(w1.dtype)
        of_units = torch.stack((w1, b1), -1) * w2[:, :, None]  # (heads, hidden, 2)
        return breaks, active @ of_units + F.pad(b2[:, None, None], (1, 0))


ENTRY = Entry(
    name="fire",
    scheme=FIRE,
    paper="Li et al. 2024",
    laws=frozenset({Law.UNIQUE, Law.BOUNDED, Law.DIRECTED, Law.LENGTH_FREE, Law.FRACTIONAL}),
    cost="an MLP of 32 units for every pair per layer; in the CPU kernel one product per pair and head",
    build=lambda shape: FIRE(shape.num_heads),
    learned="34 per head, and 66",
    does="a learned function of the distance, normalized by the query's position",
    limits="the MLP runs for every pair, except in the CPU kernel",
    formula=(
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} "
        r"\allowbreak + f_h \Bigl( \frac{\psi(\max(p_i - p_j, 0))}{\psi(\max(|m L|, p_i)) + 10^{-6}} \Bigr), \qquad "
        r"\psi(x) = \ln(|c| x + 1), \qquad f(x) = W_2 \, \mathrm{relu}(w_1 x + b_1) + b_2"
    ),
    symbols={"length": "L"},
    example="posenc.attention(q, k, v, posenc.FIRE(12), is_causal=True)",
    url="https://arxiv.org/abs/2310.04418",
    avoid="**Fast attention outside the CPU kernel.** A network runs for every pair. `KERPLE` is a formula.",
)
