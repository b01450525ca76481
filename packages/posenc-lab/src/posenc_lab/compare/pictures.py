"""Draws the pictures of a comparison, on a light or dark background.

A value outside the axes is shown as an arrow at the edge, with the number above it in the scheme's row. A line that
stops early ends in a cross, with the reason below it. Figures are made without pyplot, which would keep global state.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import Transform, offset_copy

from posenc_lab.compare.summary import Estimate, Summary, multiple
from posenc_lab.compare.task import ACCURACY, BEGUN, BITS, listed
from posenc_lab.kit import style
from posenc_lab.kit.titles import titled

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
            label = f"{titled(line.scheme)}, baseline"
            axes.plot(*_data(line), color=look.color, linestyle=style.BASELINE, linewidth=1, label=label)
        # An offset in points, so that the intervals of schemes do not overlap.
        aside = {line.scheme: 3.0 * (i - (len(drawn) - 1) / 2) for i, line in enumerate(drawn)}
        for line in drawn:
            _curve(axes, line, dark, aside[line.scheme])
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
    notes = {reason: f"{reason}: {listed(map(titled, schemes))}" for reason, schemes in found.items()}
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
    summary: Measured, dark: bool, title: str, xlabel: str, ylabel: str = BITS, rows: int = 0
) -> tuple[Figure, Axes]:
    """A figure with axes of the standard size, and room for ``rows`` of text above and for names on the right."""
    right = 0.5 + 0.078 * max([8, *(len(titled(scheme)) for scheme in summary.schemes)])
    width, height = LEFT + AXES[0] + right, BOTTOM + AXES[1] + GAP + rows * ROW + TOP
    with style.context(dark):
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((LEFT / width, BOTTOM / height, AXES[0] / width, AXES[1] / height))
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


def _curve(axes: Axes, line: Line, dark: bool, aside: float) -> None:
    look = style.look(line.scheme, dark)
    color, (x, means) = look.color, _data(line)
    finite = line.finite()
    ends = [x for x, _ in finite], [p.low for _, p in finite], [p.high for _, p in finite]
    moved = _aside(axes, axes.transData, aside)
    axes.vlines(*ends, color=color, linewidth=2.6, alpha=0.4, transform=moved)
    marked = [x.index(at) for at in _spaced(axes, x, x[-1], lambda _: 0.06)]
    (drawn,) = axes.plot(x, means, color=color, linestyle=look.dashes, transform=moved, label=titled(line.scheme))
    drawn.set(marker=look.marker, markersize=5.5, markevery=marked)


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
    _note(axes, row, at + 0.015 if at < 0.5 else at - 0.015, f"× {titled(line.scheme)}: {line.end}", dark)


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
    axes.text(1.075, y, titled(scheme), transform=across, va="center", size=9.5)


# --- the figures ------------------------------------------------------------------------------------------------------


def windows(summary: Summary, dark: bool = False) -> Figure:
    """Bits per byte against test length, over separate windows: every token counts, also the first of a window."""
    return _by_length(summary, "windows", "Loss at each test length: separate windows", dark)


def sliding(summary: Summary, dark: bool = False) -> Figure:
    """Bits per byte against test length, over sliding windows: the same tokens are scored at every length."""
    return _by_length(summary, "sliding", "Loss at each test length: sliding windows", dark)


def final_tokens(summary: Summary, dark: bool = False) -> Figure:
    """Bits per byte of the same final bytes as their context grows, with the same model limited to its training length
    as the baseline."""
    trained, lengths = summary.train_length, summary.lengths("final_tokens")
    lines = [line_of(summary, "final_tokens", scheme, lengths) for scheme in summary.schemes]
    begins = [line for s in summary.schemes if (line := line_of(summary, "truncated", s, [trained])).points]
    limits = _limits([*lines, *begins], trained)
    # The baseline is a single number, drawn as a line across all lengths.
    baselines = [
        Line(each.scheme, (*each.points, (float(lengths[-1]), each.points[0][1]))) for each in begins if lengths
    ]
    words = f"dashed: each token from exactly the last {trained:,}" if baselines else ""
    title, xlabel = "The same final bytes, as context grows", "context (bytes)"
    return draw(summary, lines, limits, dark, title, xlabel, baselines=baselines, words=words)


def training(summary: Summary, dark: bool = False) -> Figure:
    """Training loss against step, a thin line for each seed."""
    loss = BITS if summary.task.score == "bits" else "cross-entropy (bits)"
    return _by_step(summary, "curve", "Loss in training", loss, dark)


def begins(summary: Summary, dark: bool = False) -> Figure:
    """Use of the source at the training length against step, a thin line for each seed."""
    return _by_step(summary, "use", "When the use of the source begins", summary.task.measure, dark)


def _by_step(summary: Summary, field: str, title: str, ylabel: str, dark: bool) -> Figure:
    diverged = [
        f"not drawn: {titled(scheme)} {words}" for scheme in summary.schemes if (words := summary.diverged(scheme))
    ]
    figure, axes = canvas(summary, dark, title, "step", ylabel, rows=len(diverged) + (field == "use"))
    curves = {s: [r[field] for r in summary.of("training", s) if r.get(field)] for s in summary.schemes}
    every = [curve for group in curves.values() for curve in group]
    with style.context(dark):
        for row, words in enumerate(diverged):
            note(axes, row, words)
        if not every:
            return empty(figure, axes, dark, "no curve" if diverged else "")
        if field == "use":  # as high as the figure beside it, which has a line of words too
            note(axes, len(diverged), f"dotted: {BEGUN} bits per byte, from which on a model looks back")
        # The first fifth of a loss falls from chance to about the final one; it would dominate the scale.
        early = 0.2 if field == "curve" else 0.0
        late = [value for curve in every for step, value in curve if step >= early * curve[-1][0] and value is not None]
        late += [BEGUN] if field == "use" else []
        margin = 0.05 * (max(late) - min(late)) or 0.1
        last, first = max(curve[-1][0] for curve in every), max(curve[0][1] or 0.0 for curve in every)
        axes.set(xlim=(0, 1.03 * last), ylim=(min(late) - margin, max(late) + margin))
        if field == "use":
            axes.axhline(BEGUN, color=style.theme(dark).faint, linewidth=0.9, linestyle=":", zorder=1)
        if first > axes.get_ylim()[1]:
            words = f"↑ from {first:.1f} at first"
            axes.text(0.98, 0.95, words, transform=axes.transAxes, ha="right", va="top", size=9)
        for scheme, group in curves.items():
            look = style.look(scheme, dark)
            for curve in group:
                axes.plot(
                    *np.array(curve, dtype=float).T,
                    color=look.color,
                    linestyle=look.dashes,
                    linewidth=1.2,
                    label=titled(scheme),
                )
        names(axes, {scheme: group[0][-1] for scheme, group in curves.items() if group}, dark)
    return figure


def far(summary: Summary, dark: bool = False) -> Figure:
    """Use of the source against the length of the row, with it at the beginning or, dashed, near."""
    lines = [line_of(summary, "far", scheme, summary.test_lengths) for scheme in summary.schemes]
    near = [line for s in summary.schemes if (line := line_of(summary, "near", s, summary.test_lengths)).points]
    means = [value.mean for line in (*lines, *near) for _, value in line.finite()]
    gaps = {record["gap"] for scheme in summary.schemes for record in summary.of("near", scheme) if "gap" in record}
    words = f"dashed: the source {max(gaps):,} bytes before the copy" if gaps else ""
    title, xlabel = "Use of a source at the beginning of the row", f"length of the row ({summary.task.lengths})"
    limits = (min([0.0, *means]), max([0.1, *means]))
    return draw(summary, lines, limits, dark, title, xlabel, summary.task.measure, baselines=near, words=words)


def accuracy(summary: Summary, dark: bool = False) -> Figure:
    """The share of right answers of a puzzle against the length."""
    lines = [line_of(summary, "accuracy", scheme, summary.lengths("accuracy")) for scheme in summary.schemes]
    xlabel = f"length of the row ({summary.task.lengths})"
    return draw(summary, lines, (0.0, 1.0), dark, "Exact match at each length", xlabel, ACCURACY)


Draw = Callable[[Summary, bool], Figure]
FIGURES: dict[str, Draw] = {
    draw.__name__: draw for draw in (sliding, windows, final_tokens, far, begins, accuracy, training)
}


def _by_length(summary: Summary, kind: str, title: str, dark: bool) -> Figure:
    lines = [line_of(summary, kind, scheme, summary.test_lengths) for scheme in summary.schemes]
    # One scale for separate and sliding windows, so that the two figures can be compared.
    both = [line_of(summary, k, s, summary.test_lengths) for k in ("windows", "sliding") for s in summary.schemes]
    return draw(summary, lines, _limits(both, summary.train_length), dark, title, "test length (bytes)")


def line_of(summary: Summary, kind: str, scheme: str, lengths: Iterable[int]) -> Line:
    """A scheme's measurements of a kind at these lengths, and why they stop."""
    found = [(n, summary.bits(kind, scheme, n)) for n in lengths]
    points = tuple((float(n), value) for n, value in found if value)
    return Line(scheme, points, _end(summary, kind, scheme, [n for n, value in found if value]))


def _end(summary: Summary, kind: str, scheme: str, measured: Sequence[int]) -> str:
    """Why a line stops before the others do."""
    lengths = summary.lengths(kind)
    if not lengths or (measured and measured[-1] == lengths[-1]):
        return ""
    if not measured and summary.diverged(scheme):
        return summary.diverged(scheme)
    undefined = summary.end(scheme, kind)
    return undefined or (f"not measured past {measured[-1]:,}" if measured else "not measured")


def _limits(lines: Sequence[Line], train_length: int) -> tuple[float, float]:
    """The y limits: around the best at every length and, up to the training length, also those near the best."""
    points = [point for line in lines for point in line.finite()]
    if not points:
        return (0.0, 1.0)
    best = {x: min(p.mean for y, p in points if y == x) for x, _ in points}
    core = [p.mean for x, p in points if p.mean <= best[x] + (1 if x <= train_length else 0)]
    cap = max(core) + max(0.4, max(core) - min(core))
    highest = max(p.mean for _, p in points)
    # Values just above the cap are drawn: arrows would need more space.
    return min(core), highest if highest <= cap + 0.25 * (cap - min(core)) else cap
