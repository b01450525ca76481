"""Draws the pictures of an extension: loss against length and position, and puzzles by depth and length."""

import math
from collections import Counter
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from posenc.tools.extend.settings import PUZZLES, SCALINGS
from posenc.tools.extend.summary import STRETCHES, Summary
from posenc.tools.kit import style
from posenc.tools.kit.statistics import Interval

MOST = 1.5  # bits above the cropped baseline; larger values are drawn as arrows at the edge

Draw = Callable[[Summary, bool], Figure]


def final(summary: Summary, dark: bool) -> Figure:
    """Bits per byte of the same final tokens against context length."""
    lines = {
        s: [(float(n), v) for n in summary.lengths_of("final") if (v := summary.bits(s, n)) is not None]
        for s in summary.scalings
    }
    return _lines(summary, lines, dark, "The same final tokens, more context", "tokens shown", "bits per byte")


def by_position(summary: Summary, dark: bool) -> Figure:
    """Bits per token against position in the longest pieces, averaged over a few intervals."""
    lines = {s: summary.by_position(s) for s in summary.scalings}
    title = f"Where the loss is: means over {STRETCHES} stretches of a text"
    return _lines(summary, lines, dark, title, "position in the text (tokens)", "bits per token", spread=True)


def _lines(
    summary: Summary,
    lines: dict[str, list[tuple[float, Interval]]],
    dark: bool,
    title: str,
    xlabel: str,
    ylabel: str,
    spread: bool = False,
) -> Figure:
    """Draws lines against a logarithmic axis of lengths, with the cropped baseline; with ``spread``, against positions
    in a text."""
    with style.context(dark):
        figure = Figure(figsize=(6.2, 3.9), layout="constrained")
        axes = figure.add_subplot()
        axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
        values = [v.mean for points in lines.values() for _, v in points if math.isfinite(v.mean)]
        if not values:
            axes.text(0.5, 0.5, "not measured yet", transform=axes.transAxes, ha="center")
            return figure
        baseline = None if spread else summary.dashed()
        low = min([*values, *([baseline.mean] if baseline else [])])
        trained = [v.mean for points in lines.values() for x, v in points if x <= summary.trained]
        cap = max([baseline.mean if baseline else low, *(v for v in trained if v <= low + MOST)]) + MOST
        ends = [_ends(v) for points in lines.values() for _, v in points if v.mean <= cap]
        # Intervals over two pieces are much wider than the differences between scalings, so they may be cut off.
        low, high = max(min(low, *(a for a, _ in ends)), low - MOST), min(max(b for _, b in ends), cap)
        margin = 0.06 * (high - low) or 0.1
        axes.set_ylim(low - margin, high + margin)
        if baseline:
            faint = style.theme(dark).faint
            axes.axhline(baseline.mean, color=faint, linewidth=1.1, linestyle=style.BASELINE, label="cropped")
        cut: Counter[float] = Counter()
        for n, (scaling, points) in enumerate(lines.items()):
            _line(axes, scaling, points, high + margin, dark, 2.5 * (n - (len(lines) - 1) / 2), cut)
        if spread:
            _places(axes, summary, style.theme(dark).faint)
        else:
            _axis(axes, summary, [x for points in lines.values() for x, _ in points])
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)
    return figure


def _line(
    axes: Axes,
    scaling: str,
    points: list[tuple[float, Interval]],
    top: float,
    dark: bool,
    aside: float,
    cut: Counter[float],
) -> None:
    """Draws one scaling, moved ``aside`` so that intervals do not overlap. Values above ``top`` are arrows with
    numbers, below those already ``cut`` off at the same place."""
    from matplotlib.transforms import offset_copy

    look = _look(scaling, dark)
    moved = offset_copy(axes.transData, axes.get_figure(root=True), x=aside, units="points")
    inside = [(x, v) for x, v in points if math.isfinite(v.mean) and v.mean <= top]
    axes.vlines(
        [x for x, _ in inside],
        [_ends(v)[0] for _, v in inside],
        [min(_ends(v)[1], top) for _, v in inside],
        color=look.color,
        linewidth=2.4,
        alpha=0.4,
        transform=moved,
    )
    axes.plot(
        [x for x, _ in points],
        [v.mean for _, v in points],
        color=look.color,
        linestyle=look.dashes,
        marker=look.marker,
        markersize=5,
        label=scaling,
        transform=moved,
    )
    for x, v in points:
        if not math.isfinite(v.mean) or v.mean > top:
            words = f"{v.mean:.1f}" if math.isfinite(v.mean) else "NaN"
            place = (aside, -8 - 9 * cut[x])
            axes.annotate(
                f"↑{words}", (x, top), place, textcoords="offset points", color=look.color, size=7.5, ha="center"
            )
            cut[x] += 1


def _ends(value: Interval) -> tuple[float, float]:
    """The ends of the interval; the mean if there is only one piece."""
    return (value.low, value.high) if math.isfinite(value.high) else (value.mean, value.mean)


def _look(scaling: str, dark: bool) -> style.Look:
    """The look of a scaling, by its place in `SCALINGS`."""
    number = SCALINGS.index(scaling.partition(",")[0])
    palette = style.theme(dark).palette
    return style.Look(palette[number % len(palette)], "osD^vph"[number % 7], style.SOLID)


def _axis(axes: Axes, summary: Summary, xs: list[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(xs))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" + "\ntrained" * bool(x == summary.trained)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlim(min(xs) / 1.2, max(xs) * 1.2)
    if min(xs) / 1.2 <= summary.trained <= max(xs) * 1.2:
        axes.axvline(summary.trained, color=axes.spines["bottom"].get_edgecolor(), linewidth=1, linestyle=":", zorder=1)


def _places(axes: Axes, summary: Summary, faint: str) -> None:
    """Sets up a linear axis of the positions in the longest text, shaded beyond the trained length."""
    longest = summary.lengths[-1]
    axes.set_xlim(0, longest)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.locator_params(axis="x", nbins=6)
    axes.tick_params(axis="x", labelsize=8)
    if summary.trained < longest:
        axes.axvspan(summary.trained, longest, color=faint, alpha=0.12, linewidth=0, zorder=0)
        axes.axvline(summary.trained, color=faint, linewidth=1, linestyle=":", zorder=1)
        label = f"trained: {summary.trained:,}"
        axes.annotate(
            label,
            (summary.trained, 0),
            (-3, 4),
            textcoords="offset points",
            xycoords=("data", "axes fraction"),
            ha="right",
            size=8,
            color=faint,
        )


def puzzle(kind: str) -> Draw:
    """A function that draws the solved puzzles of a kind by depth and length, in a panel for each scaling."""

    def draw(summary: Summary, dark: bool) -> Figure:
        scalings, depths, lengths = summary.scalings, summary.depths(kind), summary.lengths_of(kind)
        with style.context(dark):
            wide = max(1.6, 0.62 * len(lengths) + 0.5)
            columns = min(len(scalings), 3) or 1
            rows = -(-len(scalings) // columns) or 1
            height = 0.95 + 0.34 * max(len(depths), 1)
            figure = Figure(figsize=(max(columns * wide + 0.9, 5.2), rows * height + 0.5), layout="constrained")
            figure.suptitle(f"{kind}: {PUZZLES[kind]}, found", x=0.01, ha="left", weight="bold", size=11)
            paper = style.theme(dark)
            for n, scaling in enumerate(scalings):
                axes = figure.add_subplot(rows, columns, n + 1)
                _grid(axes, summary, kind, scaling, depths, paper)
                axes.set_title(scaling, size=9.5)
                if n % columns == 0:
                    axes.set_ylabel("depth, %", size=9)
        return figure

    return draw


def _grid(axes: Axes, summary: Summary, kind: str, scaling: str, depths: tuple[int, ...], paper: style.Theme) -> None:
    lengths = summary.lengths_of(kind)
    axes.grid(False)
    axes.set_xlim(-0.5, len(lengths) - 0.5)
    axes.set_ylim(len(depths) - 0.5, -0.5)
    color = paper.palette[3]
    for i, depth in enumerate(depths):
        for j, length in enumerate(lengths):
            found = summary.found(kind, scaling, length, depth)
            share = found[0] / found[1] if found else 0.0
            axes.fill_between([j - 0.5, j + 0.5], i - 0.5, i + 0.5, color=color, alpha=0.75 * share, linewidth=0)
            words = f"{found[0]}/{found[1]}" if found else "–"
            axes.text(j, i, words, ha="center", va="center", size=8.5)
    axes.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths], size=7.5, rotation=30)
    axes.set_yticks(range(len(depths)), [str(d) for d in depths], size=8.5)
    past = sum(n <= summary.trained for n in lengths)
    axes.axvline(past - 0.5, color=paper.faint, linewidth=1, linestyle=":")


def figures(summary: Summary) -> dict[str, Draw]:
    """The figures that have data."""
    some: dict[str, Draw] = {}
    if any(r["kind"] == "final" for r in summary.records):
        some |= {"final": final, "by_position": by_position}
    return some | {kind: puzzle(kind) for kind in summary.kinds()}
