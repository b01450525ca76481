"""Draws figures of the score door: the effect of a scheme on the score of a query and a key.

The effect is a *bias* that is added to the score, or a *factor* that it is multiplied by. Terms that depend on the
query are shown for a fixed Gaussian query, the same at every position: one for each head, or one in all if the heads
share a table.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from posenc.arguments import check_flag, whole
from posenc.encoding.context import projected_at_random
from posenc.encoding.terms import Bias, ChannelDecay, RelativeDot
from posenc.lowering.distances import Block
from posenc.lowering.forms import dense
from posenc.positions.positions import Positions
from posenc.positions.tiles import Visibility
from posenc.scheme import Scheme
from posenc.schemes.alibi import ALiBi
from posenc.schemes.distance_aware import DistanceAware
from posenc.schemes.entry import Shape
from posenc.schemes.shaw import Shaw
from posenc_lab.kit import style
from posenc_lab.plot import panels
from posenc_lab.plot.panels import Named, Schemes

BIAS, FACTOR = "bias (added to the score)", "factor (times the score)"


# -- the effect of a scheme on a score --------------------------------------------------------------------------------


@torch.no_grad()
def effect(scheme: Scheme, query_positions: Positions, key_positions: Positions, head_dim: int) -> tuple[Tensor, str]:
    """The effect of the score door, (heads, queries, keys) in float64, and its name: `BIAS` or `FACTOR`.

    The keys are zero vectors, so the content of a term with the query vanishes and the position remains. Features are
    projected from a fixed vector, the same at every position. ValueError for a scheme that depends on the whole row of
    scores or on the channels of query and key, or both adds and multiplies: its effect is neither a bias nor a factor.
    """
    encoding = scheme(query_positions, key_positions, doors=("score", "value"))
    score_terms = encoding.score_terms
    kinds = {
        None if score_term.reads_rows or isinstance(score_term, ChannelDecay) else score_term.adds
        for score_term in score_terms
    }
    if kinds not in ({True}, {False}):
        raise ValueError(
            "schemes must add to the score or multiply it, got one that does both, neither, or needs the whole row or "
            "the contents: posenc plot overview draws it"
        )
    tables = [_table_at_zero(score_term) for score_term in score_terms if isinstance(score_term, Bias | RelativeDot)]
    heads = panels.size_of(scheme, "num_heads", max((table.size(0) for table in tables), default=1))
    width = panels.size_of(scheme, "head_dim", head_dim)
    generator = torch.Generator().manual_seed(panels.SEED)
    fixed = torch.randn(1, heads, 1, width, generator=generator, dtype=torch.float64)
    key = torch.zeros(1, heads, len(key_positions), width, dtype=torch.float64)
    if encoding.wanted:
        content = torch.randn(1, 1, head_dim, generator=generator, dtype=torch.float64)
        made = (
            projected_at_random(encoding.wanted, content.expand(-1, len(positions), -1), seed=panels.SEED)
            for positions in (query_positions, key_positions)
        )
        encoding = encoding.with_projected(*made)
    block = Block(
        fixed.expand(-1, -1, len(query_positions), -1),
        key,
        query_positions,
        key_positions,
        width**-0.5,
        query_features=encoding.query_features,
        key_features=encoding.key_features,
    )
    start = 0.0 if kinds == {True} else 1.0
    score = torch.full((1, heads, len(query_positions), len(key_positions)), start, dtype=torch.float64)
    for score_term in score_terms:
        score = dense(score_term, score, block, Visibility(), None)
    return score[0], BIAS if kinds == {True} else FACTOR


def _table_at_zero(score_term: Bias | RelativeDot) -> Tensor:
    """The entry of a term at distance 0, (heads or 1, ...)."""
    distance = score_term.distance
    axes = 1 if distance.reach is None else len(distance.reach)
    r = torch.zeros((1,) if distance.axis is not None else (1, axes), dtype=torch.int64)
    return score_term.at(r)


def _effects(
    drawn: Sequence[Named], query: Positions, key: Positions, head_dim: int, causal: bool | None
) -> tuple[list[NDArray[np.float64]], list[str]]:
    """The effects of several schemes and their names, with NaN for what is not drawn (`panels.hidden`)."""
    found, kinds = [], []
    for each in drawn:
        values, kind = effect(each.scheme, query, key, head_dim)
        found.append(panels.numbers(values.masked_fill(panels.hidden(each.scheme, query, key, causal), -torch.inf)))
        kinds.append(kind)
    return found, kinds


def _shape(
    num_heads: int, head_dim: int, positions: Positions, causal: bool | None, grid: tuple[int, int] | None = None
) -> Shape:
    """The shape that schemes given by name are built for: of a decoder by default."""
    panels.check_causal(causal)
    dim = whole("num_heads", num_heads) * whole("head_dim", head_dim)
    return Shape(dim, num_heads, head_dim, len(positions), causal=causal is not False, grid=grid)


def alibi_forms(num_heads: int = 4) -> dict[str, Scheme]:
    """ALiBi's three forms: one for decoders, two for encoders."""
    return {f"ALiBi, {form}": ALiBi(num_heads, form) for form in ("causal", "bidirectional", "directed")}


# -- bias matrices and bias by distance -------------------------------------------------------------------------------


def bias(
    schemes: Schemes | None = None,
    *,
    num_heads: int = 4,
    head_dim: int = 64,
    length: int = 24,
    grid: tuple[int, int] | None = None,
    causal: bool | None = None,
    dark: bool = False,
) -> Figure:
    """Matrices of the bias or factor: a row for each scheme, a column for each of the first four heads. By default
    ALiBi's three forms.

    ``grid`` places the tokens in rows and columns, for schemes of images. Schemes given by name are built for a
    decoder, or, with ``causal=False``, for an encoder. Keys after a query are hidden for schemes for decoders, for all
    schemes with ``causal=True``, and for none with ``causal=False``.

    Raises ValueError for a scheme that opens no score door.
    """
    positions = panels.places(length, grid)
    shape = _shape(num_heads, head_dim, positions, causal, grid)
    drawn = panels.named(alibi_forms(num_heads) if schemes is None else schemes, shape, doors=("score",))
    matrices, kinds = _effects(drawn, positions, positions, head_dim, causal)
    columns = min(panels.MAX_HEADS, max(map(len, matrices)))
    token = "position" if grid is None else "patch"
    with style.context(dark):
        side = {1: 3.4, 2: 2.7, 3: 2.1}.get(columns, 1.85)
        size = (1.9 + side * columns, 0.9 + (side + 0.15) * len(drawn))
        figure, axes = panels.panels(len(drawn), columns, size, "What the scheme does to the score of query and key")
        for row, (each, heads, kind) in enumerate(zip(drawn, matrices, kinds, strict=True)):
            line = axes[row * columns : (row + 1) * columns]
            colors = panels.scale(heads[:columns], dark, centre=1.0 if kind == FACTOR else None)
            for index, (panel, shown) in enumerate(zip(line, heads, strict=False)):  # the first four heads
                image = panels.matrix(panel, shown, colors, dark)
                panel.set_title(_head(each.scheme, index, len(heads)), fontsize=9, weight="normal")
                panel.tick_params(labelsize=9, labelleft=index == 0)
                if row == len(drawn) - 1:
                    panel.set_xlabel(f"key ({token})", size=10)
            line[0].set_ylabel("\n".join([*_titled(each, len(heads)).split(", "), f"query ({token})"]), size=10)
            for spare in line[len(heads) :]:
                spare.set_axis_off()
            panels.bar(figure, image, line, kind.replace(" (", "\n("), aspect=14)
        if any(np.isnan(heads[:columns]).any() for heads in matrices):
            figure.supxlabel("grey: never seen", x=0.012, ha="left", size=9)
    return figure


def _titled(each: Named, heads: int) -> str:
    """The title, with the form of ALiBi, and the number of heads that are drawn if not all are."""
    forms = [part.form for part in each.scheme.parts if isinstance(part, ALiBi) and part.form not in each.title]
    more = [f"{panels.MAX_HEADS} of {heads} heads"] if heads > panels.MAX_HEADS else []
    return ", ".join([each.title, *forms, *more])


def _head(scheme: Scheme, index: int, heads: int) -> str:
    if heads == 1:
        return "one query, the same in every row"
    alibi = next((part for part in scheme.parts if isinstance(part, ALiBi)), None)
    words = f"head {index + 1} of {heads}"
    return words if alibi is None else f"{words}, slope {_number(alibi.slopes[index])}"


def _number(value: float) -> str:
    """A slope as a fraction 1/n if it is one."""
    whole = round(1 / value)
    return f"1/{whole}" if whole * value == 1 else f"{value:.3g}"


def bias_by_distance(
    schemes: Schemes | None = None,
    *,
    num_heads: int = 4,
    head_dim: int = 64,
    length: int = 32,
    common: bool = False,
    causal: bool | None = None,
    dark: bool = False,
) -> Figure:
    """The bias or factor against distance, up to ``length`` positions on both sides: a panel for each scheme, with a
    line for each of the first four heads.

    ``common`` draws all biases on one scale. The default shows ALiBi's three forms, the term q . K of Shaw (window 8)
    and of relative 1D, Transformer-XL's (q + v) . W R, and DA-Transformer's factor for weights -0.3, -0.1, 0.1 and 0.3.
    ``causal`` is as in `bias`.

    Raises ValueError for a scheme that opens no score door.
    """
    whole("length", length)
    check_flag("common", common)
    keys = Positions.arange(2 * length + 1)
    query = keys[length : length + 1]
    shape = _shape(num_heads, head_dim, keys, causal)
    drawn = _examples(num_heads, head_dim, shape) if schemes is None else panels.named(schemes, shape, doors=("score",))
    found, kinds = _effects(drawn, query, keys, head_dim, causal)
    curves = [values[:, 0] for values in found]
    distance = np.arange(-length, length + 1)
    rows, columns = panels.layout(len(drawn))
    biases = [curve for curve, kind in zip(curves, kinds, strict=True) if kind == BIAS]
    with style.context(dark):
        size = (1.3 + 2.75 * columns, 1.5 + 2.15 * rows)
        title = "What the scheme does to the score, by distance"
        figure, axes = panels.panels(rows, columns, size, title, share=True, used=len(drawn) + 1)
        colors = panels.ordered(panels.MAX_HEADS, dark)
        for index, (panel, each, heads, kind) in enumerate(zip(axes, drawn, curves, kinds, strict=False)):
            for head, values in enumerate(heads[: panels.MAX_HEADS]):
                panel.plot(distance, values, color=colors[head], linestyle=panels.DASHES[head])
            panel.set(title=_titled(each, len(heads)), xlim=(-length, length))
            panel.axvline(0, color=style.theme(dark).faint, linewidth=0.8, zorder=1)
            panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            panel.tick_params(labelsize=9, labelbottom=True)
            panel.set_ylabel(kind.split(" (")[0], size=10)
            if common and kind == BIAS:
                every = np.concatenate([curve.ravel() for curve in biases])
                low, high = float(np.nanmin(every)), float(np.nanmax(every))
                room = 0.05 * (high - low) or 1.0
                panel.set_ylim(low - room, high + room)
            if index + columns >= len(drawn):
                panel.set_xlabel("key − query (positions)", size=10)
        alibi = [p for p in axes if p.get_title(loc="left").startswith("ALiBi")]
        for panel in alibi[1:]:
            panel.sharey(alibi[0])
        handles = panels.head_lines(max(map(len, curves)), dark)
        words: dict[str, Any] = {"title": f"{BIAS}\n{FACTOR}", "alignment": "left", "fontsize": 9, "title_fontsize": 9}
        if len(axes) > len(drawn):
            axes[-1].set_axis_off()
            axes[-1].legend(handles=handles, loc="center left", **words)
        else:
            figure.legend(handles=handles, loc="outside lower left", ncols=4, **words)
    return figure


def _examples(num_heads: int, head_dim: int, shape: Shape) -> list[Named]:
    drawn = panels.named(alibi_forms(num_heads), shape)
    with panels.fixed_draws(), torch.no_grad():
        drawn.append(Named("Shaw, k = 8", Shaw(head_dim, max_distance=8), fresh=True))
        aware = DistanceAware(num_heads)
        aware.w.copy_(torch.linspace(-0.3, 0.3, num_heads))
    drawn += panels.named(("relative_1d", "transformer_xl"), shape)
    return [*drawn, Named("DA-Transformer, w = −0.3 … 0.3", aware, fresh=False)]
