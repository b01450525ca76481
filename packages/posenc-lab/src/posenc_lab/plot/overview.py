"""Draws a panel for each scheme: its effect on a pair of tokens, against what that effect depends on.

An effect that depends on the distance alone is drawn as a line, one that also depends on absolute positions as a map of
queries and keys, and one for images as a map of the patches around a query. The computed values decide which.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

import posenc
from posenc.arguments import check_name, check_type, whole
from posenc.encoding.context import projected_at_random
from posenc.encoding.terms import ScoreTerm, gives_weights
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.catalog import CATALOG, entries_of
from posenc.schemes.entry import Shape
from posenc_lab.kit import style
from posenc_lab.plot import panels
from posenc_lab.plot.pairs import effect
from posenc_lab.plot.panels import Named, Schemes

FAMILIES = {
    "add": "What is added to the input: how alike it makes two positions",
    "rotate": "What rotates queries and keys: the score of two equal tokens",
    "bands": "Near and far pairs rotated differently: the distance that a pair is rotated by",
    "score": "What is done to a score, by where its tokens stand",
    "content": "What is done to scores, by what the tokens are",
}
"""The groups of schemes that are drawn together, and the titles of their figures."""

SIDE = 9  # patches along each side of a grid; the query is in the middle
COLUMNS = 3

ROTATED_LABEL = "rotated by (tokens)"

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """The effect of a scheme on pairs of tokens, (heads, queries, keys), and its name; NaN is not drawn."""

    values: Numbers
    what: str

    @property
    def heads(self) -> Numbers:
        """The first heads; only one if all are equal."""
        alike = np.allclose(self.values, self.values[:1], rtol=1e-9, atol=1e-12, equal_nan=True)
        return self.values[: 1 if alike else panels.MAX_HEADS]

    def along(self, by: NDArray[np.int64]) -> tuple[NDArray[np.int64], Numbers] | None:
        """The distinct values of ``by`` (queries, keys), and the effect in every head at each; None if the effect is
        not a function of ``by``."""
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
    """A panel for each scheme with its effect on pairs of tokens. Without ``schemes``, all schemes of the catalog in a
    ``family``, by default "score".

    The families: ``add``, the inner product of the vectors of two positions; ``rotate``, the score of a query and a key
    that are equal in all channels, which is 1 without positions; ``bands``, the distance that a pair is rotated by;
    ``score``, the bias or factor of a score, for a fixed Gaussian query where it depends on the query; ``content``, the
    change of the scores of Gaussian tokens in a decoder, or their attention weights. A scheme for images is drawn for a
    query in the middle of a grid and every patch. Maps show the first head.

    ``length`` is the number of tokens of a text; a grid has 9 x 9 patches. Schemes for decoders are drawn only for keys
    up to the query. Parameters have their initial values, or random ones if they are initialised to zero.
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
            figure.set_size_inches(size[0], size[1] + 0.35)
            figure.legend(handles=panels.head_lines(most, dark), loc="outside lower left", ncols=most, fontsize=9)
    return figure


def family_of(scheme: Scheme, positions: Positions) -> str:
    """The key of `FAMILIES` for a scheme. A composition that rotates tokens and changes scores is in "rotate"."""
    encoding = scheme(positions)
    if encoding.wanted or any(score_term.reads_rows or _is_cap(score_term) for score_term in encoding.score_terms):
        return "content"
    if encoding.score_terms and not (encoding.rotations and len(scheme.parts) > 1):
        return "score"
    if encoding.rotations:
        return "bands" if any(rotation.bands for rotation in encoding.rotations) else "rotate"
    return "add"


def _is_cap(score_term: ScoreTerm) -> bool:
    """Whether the term is a function of the score alone."""
    return score_term.formula == "cap"


def is_curve(scheme: Scheme) -> bool:
    """Whether the scheme is a function of the score alone."""
    score_terms = (
        scheme(Positions.arange(2)).score_terms if panels.axes_of(scheme) == 1 and scheme.doors == ("score",) else ()
    )
    return bool(score_terms) and all(map(_is_cap, score_terms))


def _chosen(schemes: Schemes | None, family: str, length: int) -> list["_Panel"]:
    if schemes is not None and not isinstance(schemes, Sequence):
        given = panels.named(schemes, _shape(1, length))
        return [_Panel(each, panels.axes_of(each.scheme), length) for each in given]
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


def positions_of(axes: int, length: int, along: int = 0) -> Positions:
    """Positions of a text, of a grid, or, with three coordinates, of tokens along one of the three axes."""
    if axes == 2:
        return Positions.grid(SIDE, SIDE)
    line = panels.places(length)
    if axes == 1:
        return line
    return line.with_coords(torch.eye(3, dtype=torch.int64)[along] * line.coords[..., None])


# -- what is measured -------------------------------------------------------------------------------------------------


@torch.no_grad()
def seen(scheme: Scheme, positions: Positions) -> Seen:
    """The effect of a scheme on every pair of tokens, as its family is drawn."""
    family = family_of(scheme, positions)
    with panels.fixed_draws():
        values, what = _MEASURES[family](scheme, positions)
    # Bands rotate distant pairs differently only for keys before the query.
    causal = True if family in ("content", "bands") else None
    hidden = panels.hidden(scheme, positions, positions, causal)
    return Seen(panels.numbers(values.masked_fill(hidden, -torch.inf)), what)


def _products(scheme: Scheme, positions: Positions) -> tuple[Tensor, str]:
    """P[p] . P[p'] / dim."""
    nothing = torch.zeros(1, len(positions), panels.size_of(scheme, "dim", 32), dtype=torch.float64)
    vectors = scheme(positions, dtype=torch.float64).add(nothing)
    return vectors @ vectors.mT / vectors.size(-1), "inner product ÷ dim"


def _equal(scheme: Scheme, positions: Positions) -> tuple[Tensor, str]:
    """The score of a query and a key that are equal in every channel, which is 1 without positions."""
    size = _size(scheme, positions)
    x = torch.full(size, size[-1] ** -0.25, dtype=torch.float64)
    return posenc.logits(x, x, scheme, query_positions=positions, key_positions=positions)[0], "score"


def _turned_by(scheme: Scheme, positions: Positions) -> tuple[Tensor, str]:
    """The angle of the slowest channel pair, as a multiple of that between neighbours. It stays below a full turn, and
    near pairs are rotated as in RoPE."""
    x = torch.zeros(1, 1, len(positions), panels.size_of(scheme, "head_dim", 32), dtype=torch.float64)
    x[..., -1] = 1
    angle = posenc.logits(x, x, scheme, query_positions=positions, key_positions=positions, scale=1.0)[0]
    angle = angle.clamp(max=1).acos()  # rounding may give more than 1
    return angle / angle[:, 1, 0], ROTATED_LABEL


def _effect(scheme: Scheme, positions: Positions) -> tuple[Tensor, str]:
    values, what = effect(scheme, positions, positions, head_dim=panels.size_of(scheme, "head_dim", 32))
    return values, what.partition(" (")[0]


def _on_contents(scheme: Scheme, positions: Positions) -> tuple[Tensor, str]:
    """The change of the scores of Gaussian tokens in a decoder, or their attention weights."""
    query, key, x = (torch.randn(_size(scheme, positions), dtype=torch.float64) for _ in range(3))
    encoding = scheme(positions, dtype=torch.float64)
    encoding = encoding.with_projected(projected_at_random(encoding.wanted, x[:, 0], seed=panels.SEED))
    scores = posenc.logits(query, key, encoding, is_causal=True)[0]
    if gives_weights(encoding.score_terms):
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
def values_met(scheme: Scheme, length: int) -> Numbers:
    """The mean channel of the attention output if the only key, ``n`` tokens before the query, has a value of ones, for
    n = 0 .. length - 1."""
    x = torch.ones(length, 1, 1, panels.size_of(scheme, "head_dim", 32), dtype=torch.float64)
    query = Positions(torch.full((length, 1), length - 1))
    key = Positions(torch.arange(length - 1, -1, -1)[:, None])
    out = posenc.attention(x, x, x, scheme, query_positions=query, key_positions=key)
    assert isinstance(out, Tensor)
    return panels.numbers(out[:, 0, 0].mean(-1))


@torch.no_grad()
def capped(scheme: Scheme, scores: Tensor) -> Numbers:
    """The scores after a scheme that is a function of the score alone."""
    encoding = scheme(Positions.arange(len(scores)), Positions.arange(1))
    key = torch.ones(1, 1, 1, 1, dtype=scores.dtype)
    return panels.numbers(posenc.logits(scores[None, None, :, None], key, encoding, scale=1.0)[0, 0, :, 0])


def _size(scheme: Scheme, positions: Positions) -> tuple[int, int, int, int]:
    """The shape of queries for a scheme, (1, heads, tokens, head_dim)."""
    return 1, panels.size_of(scheme, "num_heads", 4), len(positions), panels.size_of(scheme, "head_dim", 32)


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
        """Draws the panel. Returns the number of heads that are drawn as separate lines."""
        scheme, positions = self.named.scheme, self.positions
        if is_curve(scheme):
            self._curve(axes, dark)
            return 1
        if self.axes == 3:
            self._of_axes(axes, dark)
            return 1
        found = seen(scheme, positions)
        if self.axes == 1 and found.what != ROTATED_LABEL:  # bands are all drawn as maps, so that they can be compared
            tokens = np.arange(self.length)
            query, key = np.meshgrid(tokens, tokens, indexing="ij")
            for by, label in ((key - query, "key − query (tokens)"), (key, "key (token)"), (query, "query (token)")):
                if (along := found.along(by)) is not None:
                    self._lines(axes, *along, label, found.what, dark)
                    return len(along[1])
        self._map(figure, axes, found, dark)
        return 1

    def _lines(self, axes: Axes, places: Any, lines: Numbers, label: str, what: str, dark: bool) -> None:
        colors = panels.ordered(panels.MAX_HEADS, dark)
        for head, values in enumerate(lines):
            axes.plot(places, values, color=colors[head], linestyle=panels.DASHES[head])
        scheme = self.named.scheme
        if any(rotation.value is not None for rotation in scheme(panels.places(self.length)).rotations):
            axes.lines[0].set_label("score")
            met = values_met(scheme, self.length)
            axes.plot(-np.arange(self.length), met, color=colors[2], linestyle=panels.DASHES[1], label="value")
            _key(axes)
            what = "score, value"
        _finish(axes, label, what, places)
        if np.ptp(lines) <= 1e-9 * np.abs(lines).max():  # or the axis would show rounding errors
            axes.set_ylim(lines.min() - 1, lines.min() + 1)

    def _map(self, figure: Figure, axes: Axes, found: Seen, dark: bool) -> None:
        """Draws all queries and keys or, for a grid, the query in the middle and every patch."""
        values, row, column = found.heads[0], "query (token)", "key (token)"
        if self.axes == 2:
            values, row, column = values[SIDE * SIDE // 2].reshape(SIDE, SIDE), "row (patch)", "column (patch)"
            panels.frame(axes, SIDE // 2, SIDE // 2, 1, 1, style.theme(dark).ink, linewidth=1.2)
        image = panels.matrix(axes, values, panels.scale([values], dark), dark)
        panels.bar(figure, image, axes, found.what, shrink=0.9).tick_params(labelsize=8.5)
        axes.set_xlabel(column if len(found.heads) == 1 else f"{column}, head 1", size=9)
        axes.set_ylabel(row, size=9)

    def _of_axes(self, axes: Axes, dark: bool) -> None:
        """Draws a line for each of the three axes, of tokens that differ along that axis alone."""
        colors, tokens = panels.ordered(panels.MAX_HEADS, dark), np.arange(self.length)
        for n, name in enumerate(("time", "row", "column")):
            found = seen(self.named.scheme, positions_of(3, self.length, along=n))
            along = found.along(tokens - tokens[:, None])
            if along is None:  # it does not depend on the distance alone: the query in the middle
                along = tokens - self.length // 2, found.heads[:, self.length // 2]
            distance, (values, *_) = along
            axes.plot(distance, values, color=colors[n], linestyle=panels.DASHES[n], label=name)
        _key(axes)
        _finish(axes, "key − query (along the axis)", found.what, distance)

    def _curve(self, axes: Axes, dark: bool) -> None:
        scores = torch.linspace(-200, 200, 201, dtype=torch.float64)
        axes.plot(scores, scores, color=style.theme(dark).faint, linewidth=0.8, linestyle=style.BASELINE)
        values = capped(self.named.scheme, scores)
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
    """Draws the legend above the lines."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.2 * (high - low))
    axes.legend(fontsize=8, loc="upper center", ncols=3, handlelength=1.7, columnspacing=1.0, borderaxespad=0.1)
