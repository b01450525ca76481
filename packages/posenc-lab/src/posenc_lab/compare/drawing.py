"""Draws lines against an axis of tokens.

A value outside the axes is shown as an arrow at the edge, with the number above it in the scheme's row. A line that
stops early ends in a cross, with the reason below it. Figures are made without pyplot, which would keep global state.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import Transform, offset_copy

from posenc_lab.compare.summary import Estimate, multiple
from posenc_lab.compare.task import listed
from posenc_lab.kit import style

BITS = "bits per byte"

# In inches. The axes have the same size in every figure, so that the height of a row of text is known.
AXES = (3.5, 2.6)
LEFT, BOTTOM, TOP = 0.84, 0.98, 0.36
# The height of a row of text, and the gap between the axes and the rows above.
ROW, GAP = 0.19, 0.08


class Measured(Protocol):
    """What lines are drawn of: their names, the tested lengths in tokens, and the trained one."""

    @property
    def schemes(self) -> Sequence[str]: ...
    @property
    def train_length(self) -> int: ...
    @property
    def test_lengths(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Line:
    """The values of one scheme against x, and the reason if they stop early."""

    scheme: str
    points: tuple[tuple[float, Estimate], ...]
    end: str = ""

    def finite(self) -> list[tuple[float, Estimate]]:
        return [(x, value) for x, value in self.points if value.finite]


def draw(
    summary: Measured,
    lines: Sequence[Line],
    limits: tuple[float, float],
    dark: bool,
    title: str,
    xlabel: str,
    ylabel: str = BITS,
    bands: bool = False,
    baselines: Sequence[Line] = (),
    words: str = "",
) -> Figure:
    """Lines against a log-2 axis of tokens, with the training length marked and every line named where it ends."""
    drawn = [line for line in lines if line.points]
    ended = [line for line in drawn if line.end]
    absent = _absences(lines)
    low, high = _with_room(limits, [*drawn, *baselines], rows_below=len(ended) + len(absent))
    outside = [line for line in drawn if any(not _within(p, low, high) for _, p in line.points)]
    outside.sort(key=lambda line: -math.inf if math.isnan(line.points[-1][1].mean) else -line.points[-1][1].mean)
    figure, axes = canvas(summary, dark, title, xlabel, ylabel, len(outside) + bool(words))
    with style.context(dark):
        if not drawn:
            return empty(figure, axes, dark, "\n".join(absent))
        axes.set_ylim(low, high)
        _tokens_axis(axes, summary, sorted({x for line in drawn for x, _ in line.points}))
        note(axes, len(outside), words)
        for line in baselines:
            look = style.look(line.scheme, dark)
            label = f"{line.scheme}, truncated"
            axes.plot(*_data(line), color=look.color, linestyle=style.BASELINE, linewidth=1, label=label)
        # An offset in points, so that the intervals of schemes do not overlap.
        aside = {line.scheme: 0.0 if bands else 3.0 * (i - (len(drawn) - 1) / 2) for i, line in enumerate(drawn)}
        for line in drawn:
            _curve(axes, line, dark, bands, aside[line.scheme])
        for row, line in enumerate(reversed(outside)):
            _outside(axes, line, row, 7.0 * (row - (len(outside) - 1) / 2), dark)
        for row, line in enumerate(reversed(ended), len(absent)):
            _stop(axes, line, row, aside[line.scheme], dark)
        for row, words in enumerate(absent):
            _note(axes, row, 0.015, words, dark)
        ends = {line.scheme: line.points[-1] for line in drawn if not line.end}
        names(axes, {s: (x, value.mean) for s, (x, value) in ends.items() if _within(value, low, high)}, dark)
    return figure


def _absences(lines: Sequence[Line]) -> list[str]:
    """Notes on the lines without any point, one for each reason."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.end and not line.points:
            found.setdefault(line.end, []).append(line.scheme)
    notes = {reason: f"{reason}: {listed(schemes)}" for reason, schemes in found.items()}
    return [note if len(note) <= 46 else f"{reason}: {len(found[reason])} schemes" for reason, note in notes.items()]


def _with_room(limits: tuple[float, float], lines: Iterable[Line], rows_below: int) -> tuple[float, float]:
    """The limits, widened for the intervals inside them, a margin, and the rows of reasons why lines stop."""
    low, high = limits
    inside = [value for line in lines for _, value in line.points if _within(value, low, high)]
    low, high = min([low, *(value.low for value in inside)]), max([high, *(value.high for value in inside)])
    margin = 0.04 * (high - low) or 0.1
    share = rows_below * ROW / AXES[1]
    return low - margin - (high - low + 2 * margin) * share / (1 - share), high + margin


def _within(value: Estimate, low: float, high: float) -> bool:
    return value.finite and low <= value.mean <= high


def canvas(
    summary: Measured, dark: bool, title: str, xlabel: str, ylabel: str = BITS, rows: int = 0, bottom: float = BOTTOM
) -> tuple[Figure, Axes]:
    """A figure with axes of the standard size, and room for ``rows`` of text above and for names on the right."""
    right = 0.5 + 0.078 * max([8, *map(len, summary.schemes)])
    width, height = LEFT + AXES[0] + right, bottom + AXES[1] + GAP + rows * ROW + TOP
    with style.context(dark):
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((LEFT / width, bottom / height, AXES[0] / width, AXES[1] / height))
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
        figure.text(0.1 / width, 1 - 0.1 / height, title, va="top", weight="bold", size=11.5)
    return figure, axes


def empty(figure: Figure, axes: Axes, dark: bool, why: str = "") -> Figure:
    """A figure without data, with the reason or "not measured yet"."""
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, why or "not measured yet", transform=axes.transAxes, ha="center", color=style.theme(dark).faint)
    return figure


def _tokens_axis(axes: Axes, summary: Measured, tokens: Sequence[float]) -> None:
    """Sets up a log-2 axis, whose ticks have the tokens and the multiple of the training length."""
    trained = summary.train_length
    low, high = min(tokens), max(tokens)
    pad = (high / low) ** 0.05 if high > low else 2.0
    axes.set_xscale("log", base=2)
    axes.set_xlim(low / pad, high * pad)
    # Positions fall between lengths, so an axis of positions has its ticks at lengths as well.
    ticks = [n for n in (*summary.test_lengths, trained) if low / pad <= n <= high * pad]
    below = min(ticks, default=high)
    ticks += [below / 2**k for k in range(1, 12) if below / 2**k >= low / pad]
    # The approximate width of a tick's number, with a gap.
    kept = _spaced(axes, ticks, trained, lambda n: (0.085 * len(f"{n:,.0f}") + 0.06) / AXES[0])
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _tick(x, trained)))
    axes.xaxis.set_minor_locator(NullLocator())
    if low / pad <= trained <= high * pad:
        axes.axvline(trained, color=axes.spines["bottom"].get_edgecolor(), linewidth=1, linestyle=":", zorder=1)


def _tick(tokens: float, trained: int) -> str:
    if tokens == trained:
        return f"{tokens:,.0f}\n1×\ntraining length"
    words = multiple(tokens, trained)
    return f"{tokens:,.0f}\n{words}" if words and "." not in words else f"{tokens:,.0f}"


def _spaced(axes: Axes, xs: Iterable[float], first: float, width: Callable[[float], float]) -> list[float]:
    """The xs whose labels of these widths do not touch. ``first`` is kept, and larger ones take precedence."""
    kept: list[float] = []
    for x in sorted(set(xs), key=lambda x: (x != first, -x)):
        at = _place(axes, x, 1)[0]
        if all(abs(at - _place(axes, other, 1)[0]) >= (width(x) + width(other)) / 2 for other in kept):
            kept.append(x)
    return sorted(kept)


def _data(line: Line) -> tuple[list[float], list[float]]:
    return [x for x, _ in line.points], [value.mean for _, value in line.points]


def _curve(axes: Axes, line: Line, dark: bool, bands: bool, aside: float) -> None:
    look = style.look(line.scheme, dark)
    color, (x, means) = look.color, _data(line)
    finite = line.finite()
    ends = [x for x, _ in finite], [p.low for _, p in finite], [p.high for _, p in finite]
    moved = _aside(axes, axes.transData, aside)
    if bands:
        axes.fill_between(*ends, color=color, alpha=0.12, linewidth=0)
    else:
        axes.vlines(*ends, color=color, linewidth=2.6, alpha=0.4, transform=moved)
    marked = [x.index(at) for at in _spaced(axes, x, x[-1], lambda _: 0.06)]
    (drawn,) = axes.plot(x, means, color=color, linestyle=look.dashes, transform=moved, label=line.scheme)
    drawn.set(marker=look.marker, markersize=4.5 if bands else 5.5, markevery=marked)


def _aside(axes: Axes, within: Transform, points: float) -> Transform:
    return offset_copy(within, axes.get_figure(root=True), x=points, units="points")


def _above(row: int) -> float:
    """The middle of a row of text above the axes, in axes coordinates."""
    return 1 + (GAP + (row + 0.5) * ROW) / AXES[1]


def note(axes: Axes, row: int, words: str) -> None:
    """Words in a row above the axes."""
    axes.text(0, _above(row), words, transform=axes.transAxes, va="center", size=8.5)


def _outside(axes: Axes, line: Line, row: int, aside: float, dark: bool) -> None:
    """Draws an arrow at the edge for each value outside the axes, and the values in a row above, beside the scheme."""
    color = style.look(line.scheme, dark).color
    low, high = axes.get_ylim()
    past = {x: value for x, value in line.points if not _within(value, low, high)}
    moved = _aside(axes, axes.transData, aside)
    for x in _spaced(axes, past, max(past), lambda _: 0.17):
        down = past[x].mean < low
        marker, edge = ("$↓$", low) if down else ("$↑$", high)
        axes.plot([x], [edge], color=color, marker=marker, markersize=8, clip_on=False, transform=moved)
        number = f"{past[x].mean:.2f}".replace("-", "−") if past[x].finite else "NaN"
        words = f"{number} {'↓' if down else '↑'}"
        axes.text(x, _above(row), words, transform=axes.get_xaxis_transform(), ha="center", va="center", size=9)
    _name(axes, line.scheme, _above(row), dark)


def _stop(axes: Axes, line: Line, row: int, aside: float, dark: bool) -> None:
    """Draws a cross where a line stops, and the reason in a row below the data."""
    color = style.look(line.scheme, dark).color
    (x, value), (low, high) = line.points[-1], axes.get_ylim()
    at, top = _place(axes, x, min(max(value.mean, low), high) if value.finite else high)
    across, there = (_aside(axes, within, aside) for within in (axes.transAxes, axes.transData))
    axes.plot([at, at], [_below(row), top], ":", color=color, linewidth=0.9, transform=across)
    if _within(value, low, high):
        axes.plot([x], [value.mean], "x", color=color, markersize=11, markeredgewidth=2.2, transform=there)
    _note(axes, row, at + 0.015 if at < 0.5 else at - 0.015, f"× {line.scheme}: {line.end}", dark)


def _below(row: int) -> float:
    """The middle of a row of text at the bottom of the axes, in axes coordinates."""
    return (row + 0.5) * ROW / AXES[1]


def _note(axes: Axes, row: int, x: float, words: str, dark: bool) -> None:
    side = "left" if x < 0.5 else "right"
    # A line that leaves the axes downward may cross this row.
    box = {"facecolor": style.theme(dark).background, "edgecolor": "none", "pad": 1}
    axes.text(x, _below(row), words, transform=axes.transAxes, ha=side, va="center", size=9, bbox=box)


def _place(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Axes coordinates of a point in data coordinates."""
    across, up = (axes.transScale + axes.transLimits).transform((x, y))
    return float(across), float(up)


def names(axes: Axes, ends: dict[str, tuple[float, float]], dark: bool) -> None:
    """Writes names on the right, each connected to the end of its curve, and moved apart if they would overlap."""
    places = {scheme: _place(axes, *end) for scheme, end in ends.items()}
    order = sorted(places, key=lambda scheme: places[scheme][1])
    heights = style.apart([places[scheme][1] for scheme in order], ROW / AXES[1])
    for scheme, height in zip(order, heights, strict=True):
        x, y = places[scheme]
        color = style.look(scheme, dark).color
        axes.plot([x + 0.02, 1.025], [y, height], color=color, linewidth=0.9, transform=axes.transAxes, clip_on=False)
        _name(axes, scheme, height, dark)


def _name(axes: Axes, scheme: str, y: float, dark: bool) -> None:
    look, across = style.look(scheme, dark), axes.transAxes
    axes.plot([1.05], [y], color=look.color, marker=look.marker, markersize=6, transform=across, clip_on=False)
    axes.text(1.075, y, scheme, transform=across, va="center", size=9.5)
