"""Relative 2D: a learned vector per row distance and per column distance, multiplied with the query."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.arguments import shown, whole
from posenc.encoding import Block, Scheme, Score, ScoreFunction
from posenc.schemes.entry import Entry, Law


class Relative2D(Scheme):
    """Learned vectors for the row and the column distance of two patches of a grid; the query is multiplied with both.

    Formula, for patches (a, b) of query and (a', b') of key on a grid of h rows and w columns:

        s_ij = (q_i . k_j + q_i . (R_h[a' - a + h - 1] + R_w[b' - b + w - 1])) / sqrt(d)

    Row tables go with rows and column tables with columns, so rectangles work, and so does any subset of the patches.

    Parameters: (2h - 1) x d and (2w - 1) x d shared by the heads, or one pair per head with ``num_heads``; N(0, 1/d).
    Shapes: query (batch, heads, queries, head_dim); coordinates (rows, tokens, 2), int64, as `Positions.grid` gives.
    Errors: PositionError for a distance outside the tables; ValueError for positions that have not two axes.
    Source: Ramachandran et al. 2019, "Stand-Alone Self-Attention in Vision Models"; Bello et al. 2019,
    equation 3; Srinivas et al. 2021, "Bottleneck Transformers", figure 4.
    """

    def __init__(self, grid: Sequence[int], head_dim: int, num_heads: int | None = None) -> None:
        super().__init__()
        self.grid = _sides(grid)
        self.head_dim = whole("head_dim", head_dim)
        self.num_heads = None if num_heads is None else whole("num_heads", num_heads)
        heads = () if self.num_heads is None else (self.num_heads,)
        self.row_table, self.column_table = (
            nn.Parameter(torch.empty(*heads, 2 * side - 1, self.head_dim)) for side in self.grid
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Both tables from N(0, 1/d)."""
        for table in self.parameters():
            nn.init.normal_(table, std=self.head_dim**-0.5)

    def score(self) -> Score:
        """q_i . (R_h + R_w) / sqrt(d)."""
        return Score(self._bind, fold=self._fold)

    def _fold(self, block: Block) -> tuple[Tensor, Tensor]:
        """Channels for the rows and the columns of the grid: a key says by a 1 where it lies, and a query holds there
        what it gives to a key that does."""
        block.check_heads("Relative2D", self.num_heads, self.head_dim)
        x, y = block.table_coordinates("Relative2D", self.grid, axes=2)
        bounds = block.key_positions._bounds
        queries, keys = [block.query], [block.key]
        for axis, (size, table) in enumerate(zip(self.grid, (self.row_table, self.column_table), strict=True)):
            # One channel a place where the places are known to be few. Else places are counted round: of 2 size - 1 in
            # a row no two lie at the same distance from a query.
            period = 2 * size - 1
            lowest, places = 0, period
            if bounds is not None and bounds[1] - bounds[0] < period:
                lowest, places = bounds[0], bounds[1] - bounds[0] + 1
            place = torch.arange(places, device=x.device) + lowest
            met = block.query @ table.to(block.query.dtype).mT
            distance = (place - x[:, None, :, axis, None] + size - 1).remainder(period)
            queries.append(met.gather(-1, distance.expand(*met.shape[:3], places)))
            here = (y[:, None, :, axis, None] - lowest).remainder(period) == place - lowest
            keys.append(here.to(block.key.dtype).expand(*block.key.shape[:3], places))
        return torch.cat(queries, -1), torch.cat(keys, -1)

    def _bind(self, block: Block) -> ScoreFunction:
        block.check_heads("Relative2D", self.num_heads, self.head_dim)
        x, y = block.table_coordinates("Relative2D", self.grid, axes=2)
        query = block.scale * block.query
        rows, columns = (query @ table.to(query.dtype).mT for table in (self.row_table, self.column_table))
        height, width = self.grid

        def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            # Only pairs that nothing may see can lie outside the tables: reach was checked.
            row = (y[b, j, 0] - x[b, i, 0] + height - 1).clamp(0, 2 * height - 2)
            column = (y[b, j, 1] - x[b, i, 1] + width - 1).clamp(0, 2 * width - 2)
            return score + rows[b, h, i, row] + columns[b, h, i, column]

        return biased

    @torch.no_grad()
    def resized(self, grid: tuple[int, int]) -> Relative2D:
        """A copy for another grid. The distance of neighbours is kept as a share of the grid: tables are interpolated
        linearly between their ends, which stay the ends. The same grid gives the same tables, bit for bit; whether they
        are trained, and the mode, stay as they are."""
        with torch.device("meta"):  # checks and shapes alone: nothing is drawn
            other = Relative2D(grid, self.head_dim, self.num_heads).train(self.training)
        for name in ("row_table", "column_table"):
            mine, size = getattr(self, name), getattr(other, name).size(-2)
            if mine.size(-2) == size:
                stretched = mine.clone()
            else:
                lines = mine.reshape(-1, *mine.shape[-2:]).mT.to(torch.promote_types(mine.dtype, torch.float32))
                lines = F.interpolate(lines, size=size, mode="linear", align_corners=True)
                stretched = lines.mT.reshape(*mine.shape[:-2], size, self.head_dim).to(mine.dtype)
            setattr(other, name, nn.Parameter(stretched, requires_grad=mine.requires_grad))
        return other

    def extra_repr(self) -> str:
        return f"{self.grid}, {self.head_dim}, num_heads={self.num_heads}"


def _sides(grid: Sequence[int]) -> tuple[int, int]:
    """Height and width; ValueError for anything else."""
    if not isinstance(grid, Sequence) or len(grid) != 2:
        raise ValueError(f"grid must be (height, width), got {shown(grid)}")
    return whole("grid[0]", grid[0]), whole("grid[1]", grid[1])


ENTRY = Entry(
    name="relative_2d",
    scheme=Relative2D,
    paper="Ramachandran et al. 2019; Bello et al. 2019",
    laws=frozenset({Law.RELATIVE, Law.UNIQUE, Law.BOUNDED, Law.DIRECTED, Law.SEPARABLE}),
    cost="a (2h + 2w − 2)-wide product per query per layer",
    build=lambda shape: Relative2D(shape.grid or (shape.max_positions,) * 2, shape.head_dim),
    axes="two",
    learned="(2h + 2w − 2) × d",
    does="a trainable vector per row distance and per column distance; `resized(grid)` for another grid",
    limits="undefined past the tables",
)
