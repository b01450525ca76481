"""Draws the pictures of a comparison, on a light or dark background."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from matplotlib.figure import Figure

from posenc_lab.compare.drawing import BITS, Line, canvas, draw, empty, names, note
from posenc_lab.compare.summary import Estimate, Summary
from posenc_lab.kit import style


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


def differences(summary: Summary, dark: bool = False) -> Figure:
    """Paired differences to the reference scheme against test length, and the margin within which they are ties."""
    margin = summary.task.margin
    lines = []
    for scheme in summary.schemes:
        pairs = {n: summary.difference("sliding", scheme, summary.reference, n) for n in summary.lengths("sliding")}
        points = tuple((float(n), value) for n, value in pairs.items() if value)
        if scheme != summary.reference:
            end = _end(summary, "sliding", scheme, [int(x) for x, _ in points])
            if not points and not summary.diverged(scheme) and (why := summary.diverged(summary.reference)):
                end = f"{summary.reference} {why}"
            lines.append(Line(scheme, points, end))
    shown = [abs(v) for line in lines for x, p in line.finite() if x <= summary.train_length for v in (p.low, p.high)]
    near = min(max([5 * margin, *(2.5 * v for v in shown)]), 1.0)
    means = [value.mean for line in lines for _, value in line.finite()]
    limits = (max(-near, min([-2 * margin, *means])), min(near, max([2 * margin, *means])))
    title = f"Difference from {summary.reference or 'the reference'}: sliding windows"
    words = f"grey: the margin, ±{margin:g} bits"
    figure = draw(summary, lines, limits, dark, title, "test length (bytes)", f"difference in {BITS}", words=words)
    if lines:
        axes, paper = figure.axes[0], style.theme(dark)
        axes.axhspan(-margin, margin, color=paper.grid, zorder=0, label="margin")
        axes.axhline(0, color=paper.faint, linewidth=1, zorder=1)
    return figure


def by_position(summary: Summary, dark: bool = False) -> Figure:
    """Bits per byte against the position of the token, in windows of the longest test length."""
    found = {scheme: _positions(summary, scheme) for scheme in summary.schemes}
    lines = [Line(scheme, points, "" if points else _absent(summary, scheme)) for scheme, points in found.items()]
    # Within the training length the first bytes have the highest loss; they set the scale.
    trained = [p.mean for line in lines for x, p in line.finite() if x <= summary.train_length]
    every = [p.mean for line in lines for _, p in line.finite()]
    limits = (min(every, default=0), min(max(every, default=1), max(trained, default=math.inf) + 0.5))
    xlabel = f"position in windows of {summary.test_lengths[-1]:,} bytes" if summary.test_lengths else "position"
    return draw(summary, lines, limits, dark, "Loss by position", xlabel, bands=True)


def training(summary: Summary, dark: bool = False) -> Figure:
    """Training loss against step, a thin line for each seed."""
    return _training(summary, dark, "Loss in training", "step", lambda scheme: 1.0)


def training_by_time(summary: Summary, dark: bool = False) -> Figure:
    """Training loss against time: steps times the measured step time."""

    def seconds(scheme: str) -> float:
        return summary.number("speed", scheme, "step_seconds") or 0.0

    return _training(summary, dark, "Loss in training, by time", "seconds (steps × time of a step)", seconds)


def _training(summary: Summary, dark: bool, title: str, xlabel: str, unit: Callable[[str], float]) -> Figure:
    """Training curves against steps times a scheme's unit; a scheme without a unit is not drawn."""
    diverged = [f"not drawn: {scheme} {words}" for scheme in summary.schemes if (words := summary.diverged(scheme))]
    loss = BITS if summary.task.score == "bits" else "cross-entropy (bits)"
    figure, axes = canvas(summary, dark, title, xlabel, loss, rows=len(diverged), bottom=0.62)
    curves = {
        s: [[(step * unit(s), bits) for step, bits in r["curve"]] for r in summary.of("training", s) if r.get("curve")]
        for s in summary.schemes
        if unit(s)
    }
    points = [point for group in curves.values() for curve in group for point in curve]
    with style.context(dark):
        for row, words in enumerate(diverged):
            note(axes, row, words)
        if not points:
            return empty(figure, axes, dark, "no curve" if diverged else "")
        # The first fifth of a curve falls from chance to about the final loss; it would dominate the scale.
        every = [curve for group in curves.values() for curve in group]
        late = [bits for curve in every for x, bits in curve if x >= 0.2 * curve[-1][0]]
        margin = 0.05 * (max(late) - min(late)) or 0.1
        axes.set(xlim=(0, 1.03 * max(x for x, _ in points)), ylim=(min(late) - margin, max(late) + margin))
        first = max(bits for _, bits in points)
        if first > axes.get_ylim()[1]:
            words = f"↑ from {first:.1f} at first"
            axes.text(0.98, 0.95, words, transform=axes.transAxes, ha="right", va="top", size=9)
        for scheme, group in curves.items():
            look = style.look(scheme, dark)
            for curve in group:
                axes.plot(
                    *zip(*curve, strict=True), color=look.color, linestyle=look.dashes, linewidth=1.2, label=scheme
                )
        names(axes, {scheme: group[0][-1] for scheme, group in curves.items() if group}, dark)
    return figure


FIGURES: dict[str, Callable[[Summary, bool], Figure]] = {
    draw.__name__: draw
    for draw in (sliding, windows, differences, final_tokens, by_position, training, training_by_time)
}


def _by_length(summary: Summary, kind: str, title: str, dark: bool) -> Figure:
    lines = [line_of(summary, kind, scheme, summary.test_lengths) for scheme in summary.schemes]
    # One scale for separate and sliding windows, so that the two figures can be compared.
    both = [line_of(summary, k, s, summary.test_lengths) for k in ("windows", "sliding") for s in summary.schemes]
    limits = _limits(both, summary.train_length)
    return draw(summary, lines, limits, dark, title, "test length (bytes)")


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


def _positions(summary: Summary, scheme: str) -> tuple[tuple[float, Estimate], ...]:
    """Bits per bucket of positions, at the geometric middle of the bucket's positions counted from 1."""
    records = [r for r in summary.of("by_position", scheme) if r.get("bits") and r.get("edges")]
    records = [r for r in records if r["edges"] == records[-1]["edges"]]
    points = []
    edges = records[-1]["edges"] if records else []
    for i, (a, b) in enumerate(pairwise(edges)):
        mean = sum(r["bits"][i] for r in records) / len(records)
        # The seeds share their windows, so averaging over seeds does not reduce the error over windows.
        error = 1.96 * sum(r["stderr"][i] for r in records) / len(records)
        points.append((math.sqrt((a + 1) * b), Estimate(mean, mean - error, mean + error, 0, len(records))))
    return tuple(points)


def _absent(summary: Summary, scheme: str) -> str:
    undefined = any(record.get("undefined") for record in summary.of("by_position", scheme))
    return (summary.end(scheme) or "undefined") if undefined else summary.diverged(scheme) or "not measured"


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
