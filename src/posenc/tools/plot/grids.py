"""Draws figures of relative indices: the row of a table for each distance, in one dimension and in two.

The indices are the schemes' own: they are read from scores of tables that hold their own indices.
"""

import numpy as np
import torch
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

import posenc
from posenc.arguments import shown, whole
from posenc.positions.positions import Positions
from posenc.schemes.relative_1d import Relative1D
from posenc.schemes.relative_2d import Relative2D
from posenc.tools.kit import style
from posenc.tools.plot import panels


def relative_index(*, length: int = 4, dark: bool = False) -> Figure:
    """The 2N - 1 distances of N tokens, their indices in the table, and the index of every pair."""
    index = relative_indices(length)
    distances = list(range(1 - length, length))
    with style.context(dark):
        side = max(3.0, 0.62 * length + 0.9)
        figure, (left, right) = panels.panels(1, 2, (side + 5.0, side + 1.1), f"Relative positions of {length} tokens")
        colors = _by_distance(length, dark)
        rows = np.array(distances)[:, None] * np.ones((1, 3))
        words = [[str(i), _signed(d), f"d(i, i{_plus(d)})"] for i, d in enumerate(distances)]
        panels.matrix(left, rows, colors, dark, square=False, gaps=True, words=words, size=10)
        left.set_xticks(range(3), ["index in\nthe table", "distance\n(tokens)", "of query i\nand key"], size=9)
        left.set_yticks([])
        left.xaxis.tick_top()
        left.set_title(f"2N − 1 = {len(distances)} distances", fontsize=10, pad=10)
        words = [[str(i) for i in row] for row in index]
        panels.matrix(right, index - (length - 1), colors, dark, gaps=True, words=words, size=11)
        right.set(xticks=range(length), yticks=range(length), xlabel="key j (position)", ylabel="query i (position)")
        right.set_title("the index of each pair: j − i + N − 1")
    return figure


def relative_to_absolute(*, length: int = 4, dark: bool = False) -> Figure:
    """How the products of N queries and 2N - 1 distances, (N, 2N - 1), become scores of N queries and N keys, (N, N):
    out[i, j] = q[i, j - i + N - 1]. Row i keeps N adjacent products, one step further left than the row above."""
    index = relative_indices(length)
    width = 2 * length - 1
    with style.context(dark):
        size = (2.0 + 0.62 * (width + length), 1.8 + 0.62 * length)
        title = "From relative to absolute: out[i, j] = q[i, j − i + N − 1]"
        figure, (left, right) = panels.panels(1, 2, size, title, widths=[width, length])
        colors = _by_distance(length, dark)
        kept = np.array([[c in index[i] for c in range(width)] for i in range(length)])
        words = np.where(kept, [[_cell(i, c) for c in range(width)] for i in range(length)], "").tolist()
        all_distances = np.tile(np.arange(width) - (length - 1), (length, 1))
        panels.matrix(left, all_distances, colors, dark, gaps=True, words=words, size=10)
        # A translucent layer of the background colour dims products that no pair uses.
        paper = style.theme(dark)
        left.imshow(np.where(kept, np.nan, 1.0), cmap=ListedColormap([paper.background]), alpha=0.8, zorder=1.5)
        for i, c in zip(*np.nonzero(~kept), strict=True):
            left.text(c, i, _cell(i, c), ha="center", va="center", size=10, color=paper.faint, zorder=3)
        for i in range(length):
            panels.frame(left, i, int(index[i].min()), 1, length, paper.ink, 1.6)
        left.set_xticks(range(width), [f"{c}\n{_signed(c - length + 1)}" for c in range(width)])
        left.set(yticks=range(length), ylabel="query i (position)")
        left.set_xlabel("index in the table; below it, the distance (tokens)")
        words = [[_cell(i, c) for c in row] for i, row in enumerate(index)]
        panels.matrix(right, index - (length - 1), colors, dark, gaps=True, words=words, size=10)
        right.set(xticks=range(length), yticks=range(length), xlabel="key j (position)")
        for panel, title in ((left, f"q · table, ({length}, {width})"), (right, f"scores, ({length}, {length})")):
            panel.set_title(title)
    return figure


def offsets_2d(*, grid: tuple[int, int] = (4, 5), pixel: tuple[int, int] = (1, 2), dark: bool = False) -> Figure:
    """The row and column offsets of every pixel from a given one; each axis has its own table.

    Source: Ramachandran et al. 2019, "Stand-Alone Self-Attention in Vision Models", figure 4.
    """
    panels.check_pair("grid", grid, least=1)
    panels.check_pair("pixel", pixel, least=0)
    height, width = grid
    if pixel[0] >= height or pixel[1] >= width:
        raise ValueError(f"pixel must be a row and a column of the {height} x {width} grid, got {shown(pixel)}")
    found = [values.reshape(grid) for values in pixel_offsets(grid, pixel)]
    with style.context(dark):
        title = f"Offsets from the pixel in row {pixel[0]}, column {pixel[1]}"
        figure, axes = panels.panels(1, 3, (1.6 + 1.36 * width, 1.35 + 0.52 * height), title, widths=[1, 1, 1.4])
        reach = max(int(np.abs(values).max()) for values in found) or 1
        colors = panels.diverging(dark), Normalize(-1.25 * reach, 1.25 * reach)
        for panel, values, name in zip(axes, found, ("row offset (rows)", "column offset (columns)"), strict=False):
            words = [[_signed(v) for v in row] for row in values.tolist()]
            panels.matrix(panel, values, colors, dark, gaps=True, words=words, size=10)
            panel.set_title(name)
        both, paper = axes[2], style.theme(dark)
        panels.matrix(both, np.zeros(grid), (ListedColormap([paper.grid]), Normalize()), dark, gaps=True)
        inks = paper.palette[5 if not dark else 1], paper.palette[4 if not dark else 2]
        for row, column in np.ndindex(*grid):
            for values, ink, weight, side in zip(found, inks, ("bold", "normal"), (-0.22, 0.22), strict=True):
                offset = _signed(int(values[row, column]))
                both.text(column + side, row, offset, color=ink, weight=weight, size=9.5, ha="center", va="center")
        both.set_title("both: row offset (bold), column offset")
        for index, panel in enumerate(axes):
            panels.frame(panel, *pixel, 1, 1, paper.ink)
            panel.set(xticks=range(width), yticks=range(height), xlabel="column", ylabel="row" if index == 0 else "")
    return figure


# -- the numbers ------------------------------------------------------------------------------------------------------


@torch.no_grad()
@panels.fixed_draws()
def relative_indices(length: int) -> NDArray[np.int64]:
    """The index in `Relative1D`'s table of every pair of ``length`` tokens, (queries, keys)."""
    whole("length", length)
    scheme = Relative1D(length, head_dim=1).double()
    scheme.weight.copy_(torch.arange(2 * length - 1)[:, None])
    return _scores(scheme, Positions.arange(length), Positions.arange(length))


@torch.no_grad()
@panels.fixed_draws()
def pixel_offsets(grid: tuple[int, int], pixel: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The row and column offsets of every pixel of a grid from a given one, in raster order, as in `Relative2D`."""
    height, width = grid
    patches = Positions.grid(height, width)
    start = pixel[0] * width + pixel[1]
    found = []
    for of_rows in (True, False):
        scheme = Relative2D(grid, head_dim=1).double()
        for table, side, counts in ((scheme.row_table, height, of_rows), (scheme.column_table, width, not of_rows)):
            table.copy_(torch.arange(1 - side, side)[:, None] * counts)
        found.append(_scores(scheme, patches[start : start + 1], patches)[0])
    return found[0], found[1]


def _scores(scheme: Relative1D | Relative2D, query_positions: Positions, key_positions: Positions) -> NDArray[np.int64]:
    """The table entry of every pair, read from the scores of queries of 1 and keys of 0."""
    query = torch.ones(1, 1, len(query_positions), 1, dtype=torch.float64)
    key = torch.zeros(1, 1, len(key_positions), 1, dtype=torch.float64)
    scores = posenc.logits(query, key, scheme, query_positions=query_positions, key_positions=key_positions, scale=1.0)
    return np.asarray(scores[0, 0].round().long().numpy())


def _by_distance(length: int, dark: bool) -> tuple[Colormap, Normalize]:
    reach = 1.25 * max(length - 1, 1)
    return panels.diverging(dark), Normalize(-reach, reach)


def _signed(number: float) -> str:
    return f"{number:+.0f}".replace("-", "−") if number else "0"


def _plus(number: int) -> str:
    return f" {'+' if number > 0 else '−'} {abs(number)}" if number else ""


def _cell(row: int, column: int) -> str:
    return f"$q_{{{row},{column}}}$"
