"""The picture of a text: a panel for each scheme, with the others in grey."""

import io
import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from posenc_lab.compare.summary import Estimate, Summary
from posenc_lab.compare.task import BITS
from posenc_lab.kit import style
from study.findings import MEASURE, label

COLUMNS = 5
PANEL = (1.74, 1.62)  # inches
HEAD, FOOT, MARGIN = 0.62, 0.36, 0.24


def panels(summary: Summary, title: str, dark: bool = False) -> Figure:
    """Bits per byte against test length, the lowest loss at the longest length first; a panel names its seeds, and the
    loss at the trained and at the longest length."""
    lengths = summary.lengths(MEASURE)
    curves = {
        scheme: {n: value for n in lengths if (value := summary.bits(MEASURE, scheme, n)) and value.finite}
        for scheme in summary.schemes
        if summary.measured(scheme)
    }
    curves = {scheme: curve for scheme, curve in curves.items() if summary.train_length in curve}
    last = {scheme: curve[lengths[-1]].mean if lengths[-1] in curve else math.inf for scheme, curve in curves.items()}
    order = sorted(curves, key=last.__getitem__)
    rows = math.ceil(len(order) / COLUMNS)
    width, height = COLUMNS * PANEL[0] + MARGIN, HEAD + rows * PANEL[1] + FOOT
    with style.context(dark):
        figure = Figure(figsize=(width, height))
        figure.text(0.1 / width, 1 - 0.08 / height, title, va="top", weight="bold", size=11)
        about = f"{BITS} (log scale) at each test length, lower is better; bands: 95 % intervals; grey: the others"
        figure.text(0.1 / width, 1 - 0.32 / height, about, va="top", size=8.5)
        if not order:
            return figure
        means = [value for curve in curves.values() for value in curve.values()]
        limits = (0.97 * min(value.low for value in means), 1.03 * max(value.high for value in means))
        for n, scheme in enumerate(order):
            row, column = divmod(n, COLUMNS)
            left, bottom = column * PANEL[0] + 0.32, height - HEAD - (row + 1) * PANEL[1] + 0.22
            axes = figure.add_axes(
                (left / width, bottom / height, (PANEL[0] - 0.42) / width, (PANEL[1] - 0.66) / height)
            )
            for other in order:
                if other != scheme:
                    axes.plot(
                        *_means(curves[other]), color=style.theme(dark).faint, alpha=0.35, linewidth=0.8, zorder=1
                    )
            _panel(axes, summary, scheme, curves[scheme], dark)
            axes.set(xscale="log", yscale="log", ylim=limits, xlim=(lengths[0] / 1.15, lengths[-1] * 1.15))
            axes.set_xticks(lengths, [f"{n:,}" if n in (summary.train_length, lengths[-1]) else "" for n in lengths])
            ticks = [n for n in (1, 2, 3, 4, 5, 6, 8) if limits[0] <= n <= limits[1]]
            axes.set_yticks(ticks, map(str, ticks))
            axes.minorticks_off()
            axes.grid(visible=False)
            axes.tick_params(labelsize=8, length=2, pad=2)
        words = f"dotted: the trained length of {summary.train_length:,} tokens, which are bytes"
        figure.text(0.1 / width, 0.12 / height, words, va="bottom", size=8.5)
    return figure


def png(summary: Summary, title: str, dark: bool) -> bytes:
    """The picture with 64 colours, a quarter of the bytes."""
    drawn = Image.open(io.BytesIO(style.saved(panels(summary, title, dark), dark=dark)))
    buffer = io.BytesIO()
    drawn.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _panel(axes: Axes, summary: Summary, scheme: str, curve: dict[int, Estimate], dark: bool) -> None:
    color, trained = style.theme(dark).palette[3], summary.train_length
    ends = [value.low for value in curve.values()], [value.high for value in curve.values()]
    axes.axvline(trained, color=style.theme(dark).faint, linewidth=0.9, linestyle=":", zorder=1)
    axes.fill_between(list(curve), *ends, color=color, alpha=0.25, linewidth=0)
    axes.plot(*_means(curve), color=color, linewidth=1.8, marker="o", markersize=3)
    seeds = len(summary.measured(scheme))
    title, count = label(scheme).replace("in windows with", "windows +"), f"{seeds} seed{'s' if seeds > 1 else ''}"
    axes.text(0, 1.2, title, transform=axes.transAxes, size=8.5, weight="bold", va="bottom")
    longest = summary.lengths(MEASURE)[-1]
    last = f"{curve[longest].mean:.2f}" if longest in curve else summary.no_value(scheme, longest, MEASURE) or "–"
    words = f"{count}: {curve[trained].mean:.2f} → {last}"
    axes.text(0, 1.04, words, transform=axes.transAxes, size=8, va="bottom")


def _means(curve: dict[int, Estimate]) -> tuple[list[int], list[float]]:
    return list(curve), [value.mean for value in curve.values()]
