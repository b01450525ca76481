"""Every scheme in a panel of its own: what it does to two tokens, drawn against what that depends on.

A scheme of distances is a line, one that also looks at where its tokens stand is a map of queries and keys, and one
for images a map of the patches around a query. Which of these it is, is read off its numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

import posenc
from posenc.arguments import check_name, check_type, whole
from posenc.encoding.encoding import Encoding
from posenc.encoding.features import projected_at_random
from posenc.encoding.pieces import Piece, gives_weights
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.catalog import CATALOG, entries_of
from posenc.schemes.entry import Shape
from posenc.tools.kit import style
from posenc.tools.plot import panels
from posenc.tools.plot.pairs import MOST_HEADS, effect
from posenc.tools.plot.panels import Named, Schemes

FAMILIES = {
    "add": "What is added to the input: how alike it makes two positions",
    "rotate": "What turns queries and keys: the score of two equal tokens",
    "bands": "Near and far pairs turned apart: the distance that a pair is turned by",
    "score": "What is done to a score, by where its tokens stand",
    "content": "What is done to scores, by what the tokens are",
}
"""What schemes can be drawn together, and what is drawn of them."""

SIDE = 9  # patches of a grid, to either side; the query is in the middle
COLUMNS = 3

TURNED = "turned by (tokens)"

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """What a scheme does to pairs of tokens, (heads, queries, keys); NaN is left out."""

    values: Numbers
    what: str

    @property
    def heads(self) -> Numbers:
        """The first heads; one, where all are alike."""
        alike = np.allclose(self.values, self.values[:1], rtol=1e-9, atol=1e-12, equal_nan=True)
        return self.values[: 1 if alike else MOST_HEADS]

    def along(self, by: NDArray[np.int64]) -> tuple[NDArray[np.int64], Numbers] | None:
        """The places that ``by`` (queries, keys) tells apart, and the value of every head there; None where pairs of
        one place differ."""
        shown = ~np.isnan(self.values[0])
        values, by = self.heads[:, shown], by[shown]
        slack = 1e-7 * float(np.ptp(values))
        places, lines = np.unique(by), []
        for place in places:
            cells = values[:, by == place]
            if (np.ptp(cells, axis=1) > slack).any():
                return None
            lines.append(cells[:, 0])
        return places, np.stack(lines, axis=1)


def overview(
    schemes: Schemes | None = None, *, family: str | None = None, length: int = 33, dark: bool = False
) -> Figure:
    """A panel for each scheme: what it does to a pair of tokens. Where none are named, all of the catalog in a
    ``family``, by default "score".

    The families: ``add``, the inner product of the vectors of two positions; ``rotate``, the score of a query and a key
    that are equal in all channels, and 1 in plain attention; ``bands``, the distance that a pair is turned by;
    ``score``, the bias or factor of a score, for a fixed Gaussian query where it meets one; ``content``, what Gaussian
    tokens' scores become more by in a decoder, or their weights. Of a scheme for images it is a query in the middle of
    a grid with every patch. Maps show the first head.

    ``length`` is how many tokens stand in a line; a grid has 9 x 9 patches. Schemes for decoders alone are drawn for
    the keys up to a query. Those with parameters are as they begin, or drawn at random where they begin as nothing.
    """
    whole("length", length, least=3)
    if schemes is not None and family is not None:
        raise ValueError(
            f"family says which schemes of the catalog are drawn where none are named, got {family!r} beside "
            "schemes: leave one of them out"
        )
    family = "score" if family is None else family
    check_type("family", family, str)
    check_name("family", family, list(FAMILIES))
    title = FAMILIES[family] if schemes is None else "What the schemes do to two tokens"
    drawn = _chosen(schemes, family, length)
    rows, columns = panels.layout(len(drawn), most=COLUMNS)
    with style.context(dark):
        size = (10.0, 0.4 + 2.35 * rows)
        figure, axes = panels.panels(rows, columns, size, title, used=len(drawn))
        most = 1
        for each, panel in zip(drawn, axes, strict=True):
            most = max(most, each.draw(figure, panel, dark))
            panel.set_title(each.named.title.replace(", ", ": "), size=9.5)
            panel.tick_params(labelsize=8.5)
        if most > 1:
            colors = panels.ordered(MOST_HEADS, dark)
            handles = [
                Line2D([], [], color=colors[h], linestyle=panels.DASHES[h], label=f"head {h + 1}") for h in range(most)
            ]
            figure.set_size_inches(size[0], size[1] + 0.35)
            figure.legend(handles=handles, loc="outside lower left", ncols=most, fontsize=9)
    return figure


def family_of(scheme: Scheme, positions: Positions) -> str:
    """Which of `FAMILIES` a scheme is drawn in. Of a composition that turns tokens and changes scores it is the
    whole score."""
    encoding = scheme(positions)
    if encoding.pieces and _goes_by_content(encoding):
        return "content"
    if encoding.pieces and not (encoding.rotations and len(scheme.parts) > 1):
        return "score"
    if encoding.rotations:
        return "bands" if any(rotation.bands for rotation in encoding.rotations) else "rotate"
    return "add"


def _goes_by_content(encoding: Encoding) -> bool:
    return bool(encoding.wanted) or any(piece.reads_rows or _caps(piece) for piece in encoding.pieces)


def _caps(piece: Piece) -> bool:
    """Whether it looks at the score and at nothing else."""
    return piece.formula == "cap"


def _chosen(schemes: Schemes | None, family: str, length: int) -> list["_Panel"]:
    if schemes is not None and not isinstance(schemes, Sequence):
        return [_Panel(each, axes_of(each.scheme), length) for each in panels.named(schemes, _shape(1, length))]
    names = [entry.name for entry in CATALOG] if schemes is None else [schemes] if isinstance(schemes, str) else schemes
    found = []
    for name in names:
        axes = max(entry.least_axes for entry in entries_of(name))
        made = _Panel(panels.named(name, _shape(axes, length))[0], axes, length)
        if schemes is not None or family_of(made.named.scheme, made.positions) == family:
            found.append(made)
    if not found:
        raise ValueError("schemes must name at least one, got none")
    return found


def _shape(axes: int, length: int) -> Shape:
    grid = (SIDE, SIDE) if axes == 2 else None
    return Shape(4 * 32, 4, 32, SIDE * SIDE if grid else length, grid=grid)


def axes_of(scheme: Scheme) -> int:
    """The fewest coordinates that schemes of the catalog take that are parts of it."""
    return max((e.least_axes for e in CATALOG for part in scheme.parts if type(part) is e.scheme), default=1)


def positions_of(axes: int, length: int, along: int = 0) -> Positions:
    """Tokens in a line, in a grid, or, of three coordinates, in a line along one of them."""
    if axes == 2:
        return Positions.grid(SIDE, SIDE)
    line = panels.places(length)
    if axes == 1:
        return line
    return line.with_coords(torch.eye(3, dtype=torch.int64)[along] * line.coords[..., None])


# -- what is measured -------------------------------------------------------------------------------------------------


@torch.no_grad()
def seen(scheme: Scheme, positions: Positions) -> Seen:
    """What it does to every two of these tokens, as its family is drawn."""
    family = family_of(scheme, positions)
    with panels.fixed_draws():
        values, what = _MEASURES[family](scheme, positions)
    # What turns far pairs otherwise does so looking back alone: to keys after the query it is RoPE, or for decoders.
    causal = True if family in ("content", "bands") else None
    hidden = panels.hidden(scheme, positions, positions, causal)
    return Seen(panels.numbers(values.masked_fill(hidden, -torch.inf)), what)


def _products(scheme: Scheme, positions: Positions) -> tuple[Tensor, str]:
    """P[p] . P[p'] / dim."""
    vectors = scheme(positions).add(torch.zeros(1, len(positions), _width(scheme, "dim"), dtype=torch.float64))
    return vectors @ vectors.mT / vectors.size(-1), "inner product ÷ dim"


def _equal(scheme: Scheme, positions: Positions) -> tuple[Tensor, str]:
    """The score of a query and a key that are equal in every channel, and would score 1 without positions."""
    width = _width(scheme, "head_dim")
    x = torch.full((1, _heads(scheme), len(positions), width), width**-0.25, dtype=torch.float64)
    return posenc.logits(x, x, scheme, query_positions=positions, key_positions=positions)[0], "score"


def _turned_by(scheme: Scheme, positions: Positions) -> tuple[Tensor, str]:
    """The angle of the slowest pair, as a multiple of that between neighbours: near pairs are turned as by RoPE, and
    that pair does not come round."""
    x = torch.zeros(1, 1, len(positions), _width(scheme, "head_dim"), dtype=torch.float64)
    x[..., -1] = 1
    angle = posenc.logits(x, x, scheme, query_positions=positions, key_positions=positions, scale=1.0)[0]
    angle = angle.clamp(max=1).acos()  # rounding may go above 1
    return angle / angle[:, 1, 0], TURNED


def _effect(scheme: Scheme, positions: Positions) -> tuple[Tensor, str]:
    values, what = effect(scheme, positions, positions, head_dim=_width(scheme, "head_dim"))
    return values, what.partition(" (")[0]


def _on_contents(scheme: Scheme, positions: Positions) -> tuple[Tensor, str]:
    """What the scores of Gaussian tokens become more by in a decoder, or the weights that they are given."""
    size = 1, _heads(scheme), len(positions), _width(scheme, "head_dim")
    query, key, x = (torch.randn(size, dtype=torch.float64) for _ in range(3))
    encoding = scheme(positions)
    if encoding.wanted:
        encoding = encoding.with_projected(projected_at_random(encoding.wanted, x[:, 0], seed=panels.SEED))
    scores = posenc.logits(query, key, encoding, is_causal=True)[0]
    if gives_weights(encoding.pieces):
        return scores.exp(), "attention weight"
    return scores - posenc.logits(query, key)[0], "bias"


_MEASURES: dict[str, Callable[[Scheme, Positions], tuple[Tensor, str]]] = {
    "add": _products,
    "rotate": _equal,
    "bands": _turned_by,
    "score": _effect,
    "content": _on_contents,
}


@torch.no_grad()
def _values_met(scheme: Scheme, length: int) -> Numbers:
    """How much of a value arrives, along itself, at a query so many tokens after it: (tokens,), from 0 on."""
    x = torch.ones(length, 1, 1, _width(scheme, "head_dim"), dtype=torch.float64)
    query = Positions(torch.full((length, 1), length - 1))
    key = Positions(torch.arange(length - 1, -1, -1)[:, None])
    out = posenc.attention(x, x, x, scheme, query_positions=query, key_positions=key)
    assert isinstance(out, Tensor)
    return panels.numbers(out[:, 0, 0].mean(-1))


@torch.no_grad()
def _capped(scheme: Scheme, scores: Tensor) -> Numbers:
    """What scores become of a scheme that looks at them alone."""
    encoding = scheme(Positions.arange(len(scores)), Positions.arange(1))
    key = torch.ones(1, 1, 1, 1, dtype=scores.dtype)
    return panels.numbers(posenc.logits(scores[None, None, :, None], key, encoding, scale=1.0)[0, 0, :, 0])


def _width(scheme: Scheme, name: str) -> int:
    """The ``dim`` or ``head_dim`` of a scheme, or that of the others where it has none."""
    return next((width for part in scheme.parts if (width := getattr(part, name, None))), 32)


def _heads(scheme: Scheme) -> int:
    return next((heads for part in scheme.parts if (heads := getattr(part, "num_heads", None))), 4)


# -- panels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Panel:
    """A scheme and its panel."""

    named: Named
    axes: int  # coordinates per token
    length: int

    @property
    def positions(self) -> Positions:
        return positions_of(self.axes, self.length)

    def draw(self, figure: Figure, axes: Axes, dark: bool) -> int:
        """Draws it, and gives how many heads are told apart in lines."""
        scheme, positions = self.named.scheme, self.positions
        pieces = scheme(positions).pieces
        if pieces and all(map(_caps, pieces)):
            self._curve(axes, dark)
            return 1
        if self.axes == 3:
            self._of_axes(axes, dark)
            return 1
        found = seen(scheme, positions)
        if self.axes == 2:
            self._patches(figure, axes, found, dark)
            return 1
        tokens = np.arange(self.length)
        query, key = np.meshgrid(tokens, tokens, indexing="ij")
        lines = ((key - query, "key − query (tokens)"), (key, "key (token)"), (query, "query (token)"))
        for by, label in lines if found.what != TURNED else ():  # beside one another, maps all of them
            if (along := found.along(by)) is not None:
                self._lines(axes, *along, label, found.what, dark)
                return len(along[1])
        self._map(figure, axes, found, dark)
        return 1

    def _lines(self, axes: Axes, places: Any, lines: Numbers, label: str, what: str, dark: bool) -> None:
        colors = panels.ordered(MOST_HEADS, dark)
        for head, values in enumerate(lines):
            axes.plot(places, values, color=colors[head], linestyle=panels.DASHES[head])
        scheme = self.named.scheme
        if any(rotation.value is not None for rotation in scheme(panels.places(self.length)).rotations):
            axes.lines[0].set_label("score")
            met = _values_met(scheme, self.length)
            axes.plot(-np.arange(self.length), met, color=colors[2], linestyle=panels.DASHES[1], label="value")
            _key(axes)
            what = "score, value"
        _finish(axes, label, what, places)
        if np.ptp(lines) <= 1e-9 * np.abs(lines).max():  # or rounding would look like something
            axes.set_ylim(lines.min() - 1, lines.min() + 1)

    def _map(self, figure: Figure, axes: Axes, found: Seen, dark: bool) -> None:
        self._image(figure, axes, found.heads[0], found.what, dark)
        axes.set_xlabel("key (token)" if len(found.heads) == 1 else "key (token), head 1", size=9)
        axes.set_ylabel("query (token)", size=9)

    def _patches(self, figure: Figure, axes: Axes, found: Seen, dark: bool) -> None:
        """The query in the middle of the grid, and every patch."""
        self._image(figure, axes, found.heads[0, SIDE * SIDE // 2].reshape(SIDE, SIDE), found.what, dark)
        panels.frame(axes, SIDE // 2, SIDE // 2, 1, 1, style.theme(dark).ink, linewidth=1.2)
        axes.set_xlabel("column (patch)" if len(found.heads) == 1 else "column (patch), head 1", size=9)
        axes.set_ylabel("row (patch)", size=9)

    def _image(self, figure: Figure, axes: Axes, values: Numbers, what: str, dark: bool) -> None:
        image = panels.matrix(axes, values, panels.scale([values], dark), dark)
        panels.bar(figure, image, axes, what, shrink=0.9).tick_params(labelsize=8.5)

    def _of_axes(self, axes: Axes, dark: bool) -> None:
        """A line for tokens that differ along one of the three axes alone."""
        colors, tokens = panels.ordered(MOST_HEADS, dark), np.arange(self.length)
        for n, name in enumerate(("time", "row", "column")):
            found = seen(self.named.scheme, positions_of(3, self.length, along=n))
            along = found.along(tokens - tokens[:, None])
            assert along is not None  # they turn by distances
            distance, (values, *_) = along
            axes.plot(distance, values, color=colors[n], linestyle=panels.DASHES[n], label=name)
        _key(axes)
        _finish(axes, "key − query (along the axis)", found.what, distance)

    def _curve(self, axes: Axes, dark: bool) -> None:
        scores = torch.linspace(-200, 200, 201, dtype=torch.float64)
        axes.plot(scores, scores, color=style.theme(dark).faint, linewidth=0.8, linestyle=style.BASELINE)
        values = _capped(self.named.scheme, scores)
        axes.plot(scores, values, color=panels.ordered(1, dark)[0])
        _finish(axes, "score before", "score after", scores)
        axes.set_ylim(1.3 * values.min(), 1.3 * values.max())


def _finish(axes: Axes, xlabel: str, ylabel: str, places: Any) -> None:
    axes.set_xlabel(xlabel, size=9)
    axes.set_ylabel(ylabel, size=9)
    axes.set_xlim(float(min(places)), float(max(places)))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))


def _key(axes: Axes) -> None:
    """Which line is which, above the lines."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.2 * (high - low))
    axes.legend(fontsize=8, loc="upper center", ncols=3, handlelength=1.7, columnspacing=1.0, borderaxespad=0.1)
