"""Swin: adds a learned bias for every row and column difference within a window."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.arguments import sides, whole
from posenc.encoding.encoding import Context
from posenc.encoding.pieces import Bias, Distance
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law


class Swin(Scheme):
    """Relative position bias of Swin Transformer, version 1: a number per head for every difference of two patches.

    Formula, for patches (a, b) of query and (a', b') of key in a window of h rows and w columns:

        s_ij + B[(a - a' + h - 1) (2w - 1) + (b - b' + w - 1)]

    where s_ij = q_i . k_j / sqrt(d); the bias itself is *not* divided. The difference is query minus key, as in the
    authors' table, so a checkpoint's ``relative_position_bias_table`` is ``weight``. Unlike in `Relative2D`, rows and
    columns are not separate, and the bias does not depend on the query.

    Represent windows, shifted or not, as documents: patches attend only within their own document.

    Parameters: (2h - 1)(2w - 1) x H, from N(0, 0.02^2), as in the authors' code (from memory; transformers initializes
    to zeros). In the paper every layer has its own.
    Shapes: score (batch, num_heads, queries, keys); coordinates (rows, tokens, 2), int64, as `Positions.grid` gives.
    Cost: one number per head and pair, read from the table.
    Errors: PositionError for a difference outside the window; ValueError for sizes below 1, queries with another number
    of heads, and positions that do not have two axes.
    Source: Liu et al. 2021, "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", equation 4; the
    order of the table follows transformers.
    """

    def __init__(self, grid: Sequence[int], num_heads: int) -> None:
        super().__init__()
        self.grid, self.num_heads = sides(grid), whole("num_heads", num_heads)
        height, width = self.grid
        self.weight = nn.Parameter(torch.empty((2 * height - 1) * (2 * width - 1), self.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """B from N(0, 0.02^2)."""
        nn.init.trunc_normal_(self.weight, std=0.02)

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Bias, ...]:
        """B at both differences."""
        distance = Distance("Swin", axis=None, integral=True, reach=self.grid, num_heads=self.num_heads)
        return (Bias(self._bias, distance),)

    def _bias(self, r: Tensor) -> Float[Tensor, "heads ..."]:
        height, width = self.grid
        return self.weight.mT[:, (height - 1 - r[..., 0]) * (2 * width - 1) + (width - 1 - r[..., 1])]

    @torch.no_grad()
    def resized(self, grid: Sequence[int]) -> Swin:
        """A copy for another window, with the table interpolated bicubically, as the authors do when they load a
        checkpoint. For the same window the table is identical. ``requires_grad`` and the training mode are kept."""
        with torch.device("meta"):  # only checks and shapes: no random numbers are drawn
            other = Swin(grid, self.num_heads).train(self.training)
        weight = self.weight.clone()
        if other.grid != self.grid:
            (height, width), (rows, columns) = ([2 * side - 1 for side in g] for g in (self.grid, other.grid))
            planes = weight.mT.reshape(1, -1, height, width).to(torch.promote_types(weight.dtype, torch.float32))
            planes = F.interpolate(planes, size=(rows, columns), mode="bicubic")
            weight = planes.flatten(2)[0].mT.contiguous().to(weight.dtype)
        other.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        return other


ENTRY = Entry(
    name="swin",
    scheme=Swin,
    paper="Liu et al. 2021",
    laws=frozenset({Law.RELATIVE, Law.UNIQUE, Law.BOUNDED, Law.DIRECTED}),
    cost="one bias on every score per layer",
    build=lambda shape: Swin(shape.grid or (min(shape.max_positions, 64),) * 2, shape.num_heads),
    axes="two",
    learned="(2h − 1)(2w − 1) × heads",
    does="a trainable bias for every difference of two patches; `resized(grid)` for another window",
    limits="undefined beyond the window",
    formula=r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} + B_{h, \, y_i - y_j, \, x_i - x_j}",
    example="posenc.attention(q, k, v, posenc.Swin((8, 8), 12), query_positions=posenc.Positions.grid(8, 8))",
    users="Swin Transformer",
    url="https://arxiv.org/abs/2103.14030",
)
