"""Relative 2D: a learned vector per row distance and per column distance, multiplied with the query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from posenc.arguments import check_choice, sides, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import Distance, RelativeDot, ScoreTerms
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law, lines

Name = Literal["botnet", "sam"]


class Relative2D(Scheme):
    """Learned vectors for the row and the column distance of two patches, multiplied with the query.

    Formula, for patches (a, b) of query and (a', b') of key on a grid of h rows and w columns, in one of two
    conventions:

        "botnet"    s_ij = (q_i . k_j + q_i . (R_h[a' - a + h - 1] + R_w[b' - b + w - 1])) / sqrt(d)
        "sam"       s_ij = q_i . k_j / sqrt(d) + q_i . (R_h[a - a' + h - 1] + R_w[b - b' + w - 1])

    "sam" is that of SAM and ViTDet: query minus key, and the new term is *not* divided, so the checkpoints'
    ``rel_pos_h`` and ``rel_pos_w`` are ``row_table`` and ``column_table``. A ``scale`` passed to `attention` multiplies
    both terms, the new one by ``scale`` sqrt(d).

    Represent windows as documents.

    Parameters: (2h - 1) x d and (2w - 1) x d shared by the heads, or one pair per head with ``num_heads``; N(0, 1/d),
    in "sam" N(0, 0.02^2), as transformers initializes ViTDet.
    Shapes: query (batch, heads, queries, head_dim); coordinates (rows, tokens, 2), int64, as `Positions.grid` gives.
    Errors: PositionError for a distance outside the tables; ValueError for an unknown convention, and for positions
    that do not have two axes.
    Source: Ramachandran et al. 2019, "Stand-Alone Self-Attention in Vision Models"; Bello et al. 2019,
    equation 3; Srinivas et al. 2021, "Bottleneck Transformers", figure 4. "sam": SamVisionAttention and
    VitDetAttention of transformers 5.23.0, after the code of Li et al. 2022, "MViTv2: Improved Multiscale Vision
    Transformers for Classification and Detection", which was not read.
    """

    def __init__(
        self, grid: Sequence[int], head_dim: int, num_heads: int | None = None, convention: Name = "botnet"
    ) -> None:
        super().__init__()
        check_choice("convention", convention, ("botnet", "sam"))
        self.convention = convention
        self.grid = sides(grid)
        self.head_dim = whole("head_dim", head_dim)
        self.num_heads = None if num_heads is None else whole("num_heads", num_heads)
        heads = () if self.num_heads is None else (self.num_heads,)
        self.row_table, self.column_table = (
            nn.Parameter(torch.empty(*heads, 2 * side - 1, self.head_dim)) for side in self.grid
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in self.parameters():
            nn.init.normal_(table, std=0.02 if self.convention == "sam" else self.head_dim**-0.5)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        return tuple(self._axis_term(axis) for axis in range(2))

    def _axis_term(self, axis: int) -> RelativeDot:
        table = (self.row_table, self.column_table)[axis]
        by_head, size = (table if table.dim() == 3 else table[None]), self.grid[axis]
        distance = Distance("Relative2D", axis, 2, integral=True, reach=(size,), num_heads=self.num_heads)
        if self.convention == "botnet":
            return RelativeDot(lambda r: by_head[:, r + size - 1], distance)
        # A RelativeDot is multiplied by the softmax scale 1/sqrt(d).
        wide = torch.promote_types(table.dtype, torch.float32)
        return RelativeDot(lambda r: by_head[:, size - 1 - r].to(wide) * self.head_dim**0.5, distance)

    @torch.no_grad()
    def resized(self, grid: tuple[int, int]) -> Relative2D:
        """A copy for another grid, with tables interpolated linearly, with aligned ends, or in "sam" without, as SAM
        does. For the same grid the tables are identical. ``requires_grad`` and the training mode are kept."""
        with torch.device("meta"):  # only checks and shapes: no random numbers are drawn
            other = Relative2D(grid, self.head_dim, self.num_heads, self.convention).train(self.training)
        for name in ("row_table", "column_table"):
            mine, size = getattr(self, name), getattr(other, name).size(-2)
            if mine.size(-2) == size:
                stretched = mine.clone()
            else:
                lines = mine.reshape(-1, *mine.shape[-2:]).mT.to(torch.promote_types(mine.dtype, torch.float32))
                lines = F.interpolate(lines, size=size, mode="linear", align_corners=self.convention == "botnet")
                stretched = lines.mT.reshape(*mine.shape[:-2], size, self.head_dim).to(mine.dtype)
            setattr(other, name, nn.Parameter(stretched, requires_grad=mine.requires_grad))
        return other


ENTRY = Entry(
    name="relative_2d",
    scheme=Relative2D,
    paper="Ramachandran et al. 2019; Bello et al. 2019",
    laws=frozenset({Law.RELATIVE, Law.UNIQUE, Law.BOUNDED, Law.DIRECTED, Law.SEPARABLE}),
    cost="a (2h + 2w − 2)-wide product per query per layer",
    build=lambda shape: Relative2D(shape.grid or (shape.max_positions,) * 2, shape.head_dim),
    axes="two",
    learned="(2h + 2w − 2) × d",
    does="a trainable vector per row distance and per column distance, on a grid that can be `resized`",
    limits="undefined beyond the tables",
    formula=lines(
        r"\mbox{botnet} \mbox{: } s_{ij} = \bigl( q_i \cdot k_j "
        r"\allowbreak + q_i \cdot (R^{h}_{y_j - y_i + h - 1} + R^{w}_{x_j - x_i + w - 1}) \bigr) / \sqrt{d}",
        r"\mbox{sam} \mbox{: } s_{ij} = q_i \cdot k_j / \sqrt{d} "
        r"\allowbreak + q_i \cdot (R^{h}_{y_i - y_j + h - 1} + R^{w}_{x_i - x_j + w - 1})",
    ),
    example="posenc.attention(q, k, v, posenc.Relative2D((8, 8), 64), query_positions=posenc.Positions.grid(8, 8))",
    users="BoTNet, SAM, ViTDet, GOT-OCR 2",
    url="https://arxiv.org/abs/1906.05909",
    avoid="**Images of several sizes.** Its tables are of one grid; `AxialRoPE` has no table.",
)
