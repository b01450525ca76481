"""FIRE: a small network makes the bias, of the distance as a share of the query's position."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.arguments import number, whole
from posenc.encoding import Context
from posenc.pieces import Function
from posenc.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law

EPSILON = 1e-6


class FIRE(Scheme):
    """Functional interpolation: longer texts are laid over shorter ones before a learned function sees the distance.

    Formula, with psi(x) = ln(|c| x + 1), the threshold T = |m L|, and a network f of one number with ``hidden`` units:

        s_ij + f(psi(max(p_i - p_j, 0)) / (psi(max(T, p_i)) + 10^-6))_h
        f(x) = W2 relu(w1 x + b1) + b2

    where s_ij = q_i . k_j / sqrt(d); the bias itself is *not* divided. The share lies within 0 .. 1, however long the
    text is. Up to position T the bias goes by the distance alone; from there on it goes by both positions, so a shift
    changes it. Made for causal models: a key after the query counts as at no distance.

    Parameters: c = 0.1, m = 1, and the network of hidden x (2 + H) + H numbers, drawn as `torch.nn.Linear` is; L =
    ``length`` is not learned. The paper shares them between layers.
    Shapes: score (batch, num_heads, queries, keys). Any real positions, of one axis; those of queries from 0 on.
    Cost: the network for every pair, hidden x H products: no kernel of ours runs it, so it is a mask or blocks.
    Errors: ValueError for sizes below 1, a length not above 0, other heads, or positions of several axes.
    Source: Li et al. 2024, "Functional Interpolation for Relative Positions Improves Long Context Transformers",
    equations 4, 7 and 8. The code that was read, for initial values, the 10^-6 and keys after the query, is that of
    Zheng et al. 2024, "DAPE", which holds FIRE; no other code of the authors' was found.
    """

    def __init__(self, num_heads: int, hidden: int = 32, length: float = 512.0) -> None:
        super().__init__()
        self.num_heads, self.hidden = whole("num_heads", num_heads), whole("hidden", hidden)
        self.length = number("length", length, above=0)
        self.c, self.multiple = (nn.Parameter(torch.empty(())) for _ in range(2))
        self.inner, self.outer = nn.Linear(1, self.hidden), nn.Linear(self.hidden, self.num_heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """c = 0.1, m = 1, and the network as `torch.nn.Linear` draws it."""
        nn.init.constant_(self.c, 0.1)
        nn.init.ones_(self.multiple)
        self.inner.reset_parameters()
        self.outer.reset_parameters()

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Function, ...]:
        """The bias, a function of both positions."""
        for positions in (query_positions, key_positions):
            positions.scalar("FIRE")
        return (Function(plus, self._bias, adds=True, scheme="FIRE"),)

    def _bias(self, x: Tensor, y: Tensor) -> tuple[Float[Tensor, "heads rows queries keys"]]:
        dtype = torch.promote_types(self.c.dtype, torch.float32)
        if x.dim() == 4:  # coordinates with an axis of their own
            x, y = x[..., 0], y[..., 0]
        away, here = (x - y).clamp(min=0).to(dtype), x.to(dtype)
        c, threshold = self.c.to(dtype).abs(), (self.multiple.to(dtype) * self.length).abs()
        share = torch.log1p(c * away) / (torch.log1p(c * torch.maximum(here, threshold)) + EPSILON)
        inner, outer = ([p.to(dtype) for p in layer.parameters()] for layer in (self.inner, self.outer))
        return (F.linear(F.linear(share[..., None], *inner).relu(), *outer).movedim(-1, 0),)


def plus(score: Tensor, bias: Tensor) -> Tensor:
    """s + b."""
    return score + bias


ENTRY = Entry(
    name="fire",
    scheme=FIRE,
    paper="Li et al. 2024",
    laws=frozenset({Law.UNIQUE, Law.BOUNDED, Law.DIRECTED, Law.LENGTH_FREE, Law.FRACTIONAL}),
    cost="a network of 32 units for every pair per layer",
    build=lambda shape: FIRE(shape.num_heads),
    learned="34 per head, and 66",
    does="a learned function of the distance as a share of the query's position",
    limits="the network runs for every pair, in no kernel of ours",
)
