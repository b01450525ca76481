"""Draws the row of a table that each relative distance has, read from scores of a table that holds its own indices."""

import numpy as np
import torch
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

import posenc
from posenc.arguments import whole
from posenc.positions.positions import Positions
from posenc.schemes.relative_1d import Relative1D
from posenc.schemes.relative_2d import Relative2D
from posenc_lab.kit import style
from posenc_lab.plot import panels


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


# -- the numbers ------------------------------------------------------------------------------------------------------


@torch.no_grad()
@panels.fixed_draws()
def relative_indices(length: int) -> NDArray[np.int64]:
    """The index in `Relative1D`'s table of every pair of ``length`` tokens, (queries, keys)."""
    whole("length", length)
    scheme = Relative1D(length, head_dim=1).double()
    scheme.weight.copy_(torch.arange(2 * length - 1)[:, None])
    return _scores(scheme, Positions.arange(length), Positions.arange(length))


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
