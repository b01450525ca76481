"""Draws the pictures of an extension: loss against length and position, and puzzles by depth and length."""

import math
from collections.abc import Callable, Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posenc_lab.compare.drawing import Line, draw
from posenc_lab.compare.summary import Estimate
from posenc_lab.extend.settings import CROPPED, PUZZLES
from posenc_lab.extend.summary import STRETCHES, Summary
from posenc_lab.kit import style
from posenc_lab.kit.statistics import Interval

MOST = 1.5  # bits above the cropped baseline; larger values are drawn as arrows at the edge

Draw = Callable[[Summary, bool], Figure]


def final(summary: Summary, dark: bool) -> Figure:
    """Bits per byte of the same final tokens against context length, and those of the cropped text."""
    lengths = summary.lengths_of("final")
    lines = [_line(s, ((n, v) for n in lengths if (v := summary.bits(s, n)))) for s in summary.scalings]
    ends = dict.fromkeys((lengths[0], lengths[-1])) if lengths else ()
    baselines = [_line(CROPPED, ((n, cropped) for n in ends))] if (cropped := summary.dashed()) else []
    title, xlabel = "The same final tokens, more context", "tokens shown"
    words = f"dashed: the unscaled model on the last {summary.trained:,}" if baselines else ""
    limits = _limits(summary, [*lines, *baselines])
    return draw(summary, lines, limits, dark, title, xlabel, "bits per byte", baselines=baselines, words=words)


def by_position(summary: Summary, dark: bool) -> Figure:
    """Bits per token against position in the longest pieces, averaged over a few intervals."""
    lines = [_line(s, summary.by_position(s)) for s in summary.scalings]
    title = f"Where the loss is: means over {STRETCHES} stretches of a text"
    return draw(summary, lines, _limits(summary, lines), dark, title, "position in the text (tokens)", "bits per token")


def _line(scaling: str, points: Iterable[tuple[float, Interval]]) -> Line:
    """A scaling's line. Of a single piece an interval has no ends."""

    def estimate(mean: float, low: float, high: float) -> Estimate:
        return Estimate(mean, *((low, high) if math.isfinite(high) else (mean, mean)), windows=0, seeds=1)

    return Line(scaling, tuple((float(x), estimate(*value)) for x, value in points))


def _limits(summary: Summary, lines: Iterable[Line]) -> tuple[float, float]:
    """Around the best, up to `MOST` above the worst of those near it within the trained length."""
    points = [(x, value.mean) for line in lines for x, value in line.finite()]
    if not points:
        return 0.0, 1.0
    low = min(mean for _, mean in points)
    cap = max(mean for x, mean in points if mean == low or (x <= summary.trained and mean <= low + MOST)) + MOST
    return low, min(max(mean for _, mean in points), cap)


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
