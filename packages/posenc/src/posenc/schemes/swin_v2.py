"""Swin v2: cosine attention with a bias from a small MLP of log-spaced differences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.arguments import sides, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.encoding.terms import Bias, Distance, ScoreTerms
from posenc.positions.positions import Positions
from posenc.scheme import Scheme, uninitialized
from posenc.schemes.entry import Entry, Law, lines

MAX_LOG_SCALE = math.log(100)


class SwinV2(Scheme):
    """The attention of Swin Transformer, version 2: cosine similarity with a learned scale, and a continuous bias.

    Formula, for patches (a, b) of query and (a', b') of key, trained in a window of h rows and w columns:

        s_ij = cos(q_i, k_j) exp(min(tau, ln 100)) + 16 sigmoid(W2 relu(W1 x + b1))_h
        x    = (space((a - a') / (h - 1)), space((b - b') / (w - 1))),    space(u) = sign(u) log2(|8 u| + 1) / log2 8

    There is no 1/sqrt(d): the rotate door normalizes queries and keys and multiplies queries by the head's scale, and
    the softmax scale is 1. Do not pass ``scale=``. The MLP gives a bias for any window: ``resized(grid)`` keeps the
    weights, and ``trained`` is the window (h, w) that differences are relative to. Differences are query minus key. At
    initialization b1 = 0, so the MLP is linear along each ray of x and the bias is monotone on each side; after
    training it need not be.

    Represent windows, shifted or not, as documents: patches attend only within their own document.

    Parameters: tau = ln 10 per head; W1 hidden x 2, b1 and W2 H x hidden, from N(0, 0.02^2), and b1 = 0.
    Shapes: query (batch, num_heads, queries, head_dim); coordinates (rows, tokens, 2), int64, as `Positions.grid`
    gives. Half-precision q and k are normalized in float32 and rounded once.
    Cost: the MLP for each of (2h - 1)(2w - 1) differences, once for all layers that share it; a pass over q and k.
    Errors: PositionError for a difference outside the window; ValueError for sizes below 1, another number of heads,
    and positions that do not have two axes.
    Source: Liu et al. 2022, "Swin Transformer V2: Scaling Up Capacity and Resolution", section 3.3 and 3.4; the factors
    16 and 8, tau and b1 = 0 follow transformers.
    """

    def __init__(
        self, grid: Sequence[int], num_heads: int, trained: Sequence[int] | None = None, hidden: int = 512
    ) -> None:
        super().__init__()
        self.grid, self.num_heads, self.hidden = sides(grid), whole("num_heads", num_heads), whole("hidden", hidden)
        self.trained = self.grid if trained is None else sides(trained, "trained")
        self.tau = nn.Parameter(torch.empty(self.num_heads))
        self.inner = uninitialized(nn.Linear, 2, self.hidden)
        self.outer = uninitialized(nn.Linear, self.hidden, self.num_heads, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.tau, math.log(10))
        nn.init.zeros_(self.inner.bias)
        for layer in (self.inner, self.outer):
            nn.init.trunc_normal_(layer.weight, std=0.02)

    @property
    def scale(self) -> float:
        """The softmax scale: 1, since queries are already multiplied by the head's scale."""
        return 1.0

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        tau = context.of_heads(self.tau, 0)
        scale = tau.to(dtype).clamp(max=MAX_LOG_SCALE).exp()[:, None, None]

        def scaled(query: Tensor) -> Tensor:
            if query.size(1) != scale.size(0):
                raise ValueError(f"SwinV2 was made for {scale.size(0)} heads, got queries of {query.size(1)}")
            return (_unit(query) * scale).to(query.dtype)

        return Rotation(scaled, lambda key: _unit(key).to(key.dtype))

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        """The bias, from a table of all differences that is computed once."""
        height, width = self.grid
        table = self._table(query_positions.device)
        distance = Distance("SwinV2", axis=None, integral=True, reach=self.grid, num_heads=self.num_heads)
        return (Bias(lambda r: table[:, height - 1 - r[..., 0], width - 1 - r[..., 1]], distance),)

    def _table(self, device: torch.device) -> Float[Tensor, "heads rows columns"]:
        dtype = torch.promote_types(self.tau.dtype, torch.float32)
        lines = []
        for side, whole_side in zip(self.grid, self.trained, strict=True):
            # A window of one row has no differences: avoid dividing by 0.
            u = torch.arange(1 - side, side, device=device).to(dtype) * (8 / max(whole_side - 1, 1))
            lines.append(u.sign() * (u.abs() + 1).log2() / 3)
        x = torch.stack(torch.meshgrid(*lines, indexing="ij"), -1)
        hidden = F.linear(x, self.inner.weight.to(dtype), self.inner.bias.to(dtype)).relu()
        return 16 * F.linear(hidden, self.outer.weight.to(dtype)).sigmoid().movedim(-1, 0)

    def resized(self, grid: Sequence[int]) -> SwinV2:
        """A copy for another window with the same weights. Differences stay relative to the training window."""
        with torch.device("meta"):  # only checks and shapes: no random numbers are drawn
            other = SwinV2(grid, self.num_heads, self.trained, self.hidden).train(self.training)
        other.load_state_dict({name: p.detach().clone() for name, p in self.named_parameters()}, assign=True)
        for mine, copied in zip(self.parameters(), other.parameters(), strict=True):
            copied.requires_grad_(mine.requires_grad)
        return other


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


ENTRY = Entry(
    name="swin_v2",
    scheme=SwinV2,
    paper="Liu et al. 2022",
    laws=frozenset({Law.RELATIVE, Law.UNIQUE, Law.BOUNDED, Law.DIRECTED, Law.MONOTONE}),  # at initialization
    cost="a pass over q and k and one bias on every score per layer",
    build=lambda shape: SwinV2(shape.grid or (min(shape.max_positions, 16),) * 2, shape.num_heads),
    axes="two",
    learned="1536 + 513 per head",
    does="cosine attention with a bias from an MLP of log-spaced differences; `resized(grid)` for another window",
    limits="undefined beyond the window it is built for",
    formula=lines(
        r"s_{ij} = \cos(q_i, k_j) \, e^{\min(\tau_h, \ln 100)} "
        r"\allowbreak + 16 \, \sigma(W_2 \, \mathrm{relu}(W_1 u + b_1))_h",
        r"u = "
        r"\Bigl( g \Bigl( \frac{y_i - y_j}{h - 1} \Bigr), \, g \Bigl( \frac{x_i - x_j}{w - 1} \Bigr) \Bigr), \qquad "
        r"g(t) = \mathrm{sign}(t) \, \log_2(8 |t| + 1) / 3",
    ),
    example="posenc.attention(q, k, v, posenc.SwinV2((8, 8), 12), query_positions=posenc.Positions.grid(8, 8))",
    users="Swin Transformer V2",
    url="https://arxiv.org/abs/2111.09883",
    avoid="**Weights that were trained with scaled products.** It takes the cosine of query and key instead.",
)
