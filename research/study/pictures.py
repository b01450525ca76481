"""The pictures of the study: a panel for each scheme, with the others in grey."""

import io
import math
from collections.abc import Callable, Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from posenc_lab.compare.summary import Estimate, Summary
from posenc_lab.compare.task import BITS
from posenc_lab.kit import style
from study.findings import MEASURE, label
from study.pieces import Pieces, name

WIDTH, PANEL = 8.94, 1.62  # inches: of a picture, and the height of a panel
HEAD, FOOT, MARGIN = 0.62, 0.36, 0.24
Curve = tuple[Sequence[float], Sequence[float]]


def _panels(figure: Figure, columns: int, count: int, words: Sequence[str]) -> Iterator[Axes]:
    """Makes a picture with a heading, a line below it, one at the foot, and axes of so many panels."""
    rows, panel = math.ceil(count / columns), (WIDTH - MARGIN) / columns
    height = HEAD + rows * PANEL + FOOT
    figure.set_size_inches(WIDTH, height)
    title, about, foot = words
    figure.text(0.1 / WIDTH, 1 - 0.08 / height, title, va="top", weight="bold", size=11)
    figure.text(0.1 / WIDTH, 1 - 0.32 / height, about, va="top", size=8.5)
    figure.text(0.1 / WIDTH, 0.12 / height, foot, va="bottom", size=8.5)
    for n in range(count):
        row, column = divmod(n, columns)
        left, bottom = column * panel + 0.32, height - HEAD - (row + 1) * PANEL + 0.22
        axes = figure.add_axes((left / WIDTH, bottom / height, (panel - 0.42) / WIDTH, (PANEL - 0.66) / height))
        axes.grid(visible=False)
        axes.tick_params(labelsize=8, length=2, pad=2)
        yield axes


def _titled(axes: Axes, title: str, words: str) -> None:
    axes.text(0, 1.2, title, transform=axes.transAxes, size=8.5, weight="bold", va="bottom")
    axes.text(0, 1.04, words, transform=axes.transAxes, size=8, va="bottom")


def _others(axes: Axes, curves: Sequence[Curve], dark: bool) -> None:
    for curve in curves:
        axes.plot(*curve, color=style.theme(dark).faint, alpha=0.35, linewidth=0.8, zorder=1)


def losses(summary: Summary, title: str, dark: bool = False) -> Figure:
    """Bits per byte against test length, the lowest loss at the longest length first; a panel names its seeds, and the
    loss at the trained and at the longest length."""
    lengths, trained = summary.lengths(MEASURE), summary.train_length
    curves = {
        scheme: {n: value for n in lengths if (value := summary.bits(MEASURE, scheme, n)) and value.finite}
        for scheme in summary.schemes
        if summary.measured(scheme)
    }
    curves = {scheme: curve for scheme, curve in curves.items() if trained in curve}
    last = {scheme: curve[lengths[-1]].mean if lengths[-1] in curve else math.inf for scheme, curve in curves.items()}
    order = sorted(curves, key=last.__getitem__)
    about = f"{BITS} (log scale) at each test length, lower is better; bands: 95 % intervals; grey: the others"
    foot = f"dotted: the trained length of {trained:,} tokens, which are bytes"
    with style.context(dark):
        figure = Figure()
        means = [value for curve in curves.values() for value in curve.values()]
        low, high = 0.97 * min(value.low for value in means), 1.03 * max(value.high for value in means)
        ticks = [n for n in (1, 2, 3, 4, 5, 6, 8) if low <= n <= high]
        panels = _panels(figure, 5, len(order), (title, about, foot))
        for scheme, axes in zip(order, panels, strict=True):
            _others(axes, [_means(curves[other]) for other in order if other != scheme], dark)
            color, curve = style.theme(dark).palette[3], curves[scheme]
            ends = [value.low for value in curve.values()], [value.high for value in curve.values()]
            axes.axvline(trained, color=style.theme(dark).faint, linewidth=0.9, linestyle=":", zorder=1)
            axes.fill_between(list(curve), *ends, color=color, alpha=0.25, linewidth=0)
            axes.plot(*_means(curve), color=color, linewidth=1.8, marker="o", markersize=3)
            seeds = len(summary.measured(scheme))
            there = f"{curve[lengths[-1]].mean:.2f}" if lengths[-1] in curve else ""
            there = there or summary.no_value(scheme, lengths[-1], MEASURE) or "–"
            words = f"{seeds} seed{'s' if seeds > 1 else ''}: {curve[trained].mean:.2f} → {there}"
            _titled(axes, label(scheme).replace("in windows with", "windows +"), words)
            axes.set(xscale="log", yscale="log", ylim=(low, high), xlim=(lengths[0] / 1.15, lengths[-1] * 1.15))
            axes.set_xticks(lengths, [f"{n:,}" if n in (trained, lengths[-1]) else "" for n in lengths])
            axes.set_yticks(ticks, map(str, ticks))
            axes.minorticks_off()
    return figure


def uses(of: Pieces, dark: bool = False) -> Figure:
    """Use of the source against the gap, a line for each seed, with the source far or, dashed, near in the same rows;
    a panel names the steps from which each seed looks back. The scheme that carries furthest is the first."""
    summary, lengths = of.summary, of.config.test_lengths
    gaps = [of.gap(n) for n in lengths]
    order = sorted(of.schemes, key=lambda scheme: sum(-max(of.use("far", scheme, n) or 0, 0) for n in of.longer))
    head = "Who uses far text, and how far"
    about = (
        "use of the source in bits per byte (0: the model does not look back), by its gap in bytes; "
        "a line for each seed; grey: the others"
    )
    foot = (
        f"solid: the source at the beginning of the row; dashed: {gaps[0]} bytes before the copy in the same rows; "
        f"dotted: the trained length, a row of {of.config.train_length}"
    )
    with style.context(dark):
        figure = Figure()
        far = {s: [math.nan if (use := of.use("far", s, n)) is None else use for n in lengths] for s in order}
        every = [use for kind in ("far", "near") for s in order for n in lengths for use in summary.by_seed(kind, s, n)]
        limits = (min([0.0, *every]) - 0.15, max([0.5, *every]) + 0.15)
        for scheme, axes in zip(order, _panels(figure, 4, len(order), (head, about, foot)), strict=True):
            _others(axes, [(gaps, far[other]) for other in order if other != scheme], dark)
            faint, color = style.theme(dark).faint, style.theme(dark).palette[3]
            axes.axhline(0, color=faint, linewidth=0.7, zorder=1)
            axes.axvline(of.gap(of.config.train_length), color=faint, linewidth=0.9, linestyle=":", zorder=1)
            for kind, ink, dashes in (("far", color, "-"), ("near", style.theme(dark).palette[1], (0, (2, 2)))):
                for its in zip(*(summary.by_seed(kind, scheme, n) for n in lengths), strict=True):
                    axes.plot(gaps, its, color=ink, linewidth=1.4, linestyle=dashes, marker="o", markersize=2.5)
            steps = of.starts(scheme)
            _titled(axes, name(scheme), f"begins at step {steps}" if any(of.steps(scheme)) else f"begins: {steps}")
            axes.set(xscale="log", ylim=limits, xlim=(gaps[0] / 1.15, gaps[-1] * 1.15))
            axes.set_xticks(gaps, [f"{gap:,}" for gap in gaps])
            axes.minorticks_off()
            axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    return figure


def png(drawn: Callable[[bool], Figure], dark: bool) -> bytes:
    """A picture with 64 colours, a quarter of the bytes."""
    image = Image.open(io.BytesIO(style.saved(drawn(dark), dark=dark)))
    buffer = io.BytesIO()
    image.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _means(curve: dict[int, Estimate]) -> tuple[list[int], list[float]]:
    return list(curve), [value.mean for value in curve.values()]
