"""The pictures of a comparison: each a function from a summary to a figure, for light paper or dark."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from matplotlib.figure import Figure

from posenc.lab.drawing import BITS, Line, canvas, draw, empty, names, note
from posenc.lab.summary import Estimate, Summary
from posenc.lab.tasks.text import TIE_AT_ONE_SEED
from posenc.workbench import style


def windows(summary: Summary, dark: bool = False) -> Figure:
    """Bits per byte against test length, over separate windows: every token counts, also the first of a window."""
    return _by_length(summary, "windows", "Loss at each test length: separate windows", dark)


def sliding(summary: Summary, dark: bool = False) -> Figure:
    """Bits per byte against test length, over sliding windows, beside the same model kept to its training length."""
    baselines = []
    for scheme in summary.schemes:
        # Sliding windows of the training length *are* the baseline, so its line begins there.
        begin = line_of(summary, "sliding", scheme, [summary.train_length]).points
        if rest := line_of(summary, "truncated", scheme, summary.lengths("truncated")).points:
            baselines.append(Line(scheme, begin + rest))
    return _by_length(summary, "sliding", "Loss at each test length: sliding windows", dark, baselines)


def final_tokens(summary: Summary, dark: bool = False) -> Figure:
    """Bits per byte of the same few tokens as their left context grows."""
    lines = [line_of(summary, "final_tokens", scheme, summary.lengths("final_tokens")) for scheme in summary.schemes]
    limits = _limits(lines, summary.train_length)
    return draw(summary, lines, limits, dark, "The same final tokens, as context grows", "context (tokens)")


def differences(summary: Summary, dark: bool = False) -> Figure:
    """Paired differences to the reference scheme against test length; with one seed, the zone where gaps are ties."""
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
    near = min(max([5 * TIE_AT_ONE_SEED, *(2.5 * v for v in shown)]), 1.0)
    means = [value.mean for line in lines for _, value in line.finite()]
    limits = (max(-near, min([-2 * TIE_AT_ONE_SEED, *means])), min(near, max([2 * TIE_AT_ONE_SEED, *means])))
    title = f"Difference from {summary.reference or 'the reference'}: sliding windows"
    one_seed = any(value.seeds == 1 for line in lines for _, value in line.points)
    words = f"grey: with one seed, gaps under {TIE_AT_ONE_SEED:.2f} bits are called ties" if one_seed else ""
    figure = draw(summary, lines, limits, dark, title, "test length (tokens)", f"difference in {BITS}", words=words)
    if lines:
        axes, paper = figure.axes[0], style.theme(dark)
        if one_seed:
            axes.axhspan(-TIE_AT_ONE_SEED, TIE_AT_ONE_SEED, color=paper.grid, zorder=0, label="ties")
        axes.axhline(0, color=paper.faint, linewidth=1, zorder=1)
    return figure


def by_position(summary: Summary, dark: bool = False) -> Figure:
    """Bits per byte against the position of the token, in windows of the longest test length."""
    found = {scheme: _positions(summary, scheme) for scheme in summary.schemes}
    lines = [Line(scheme, points, "" if points else _absent(summary, scheme)) for scheme, points in found.items()]
    # The first tokens of a window cost the most of all the model was trained on; they set the scale.
    trained = [p.mean for line in lines for x, p in line.finite() if x <= summary.train_length]
    every = [p.mean for line in lines for _, p in line.finite()]
    limits = (min(every, default=0), min(max(every, default=1), max(trained, default=math.inf) + 0.5))
    xlabel = f"position in windows of {summary.test_lengths[-1]:,} tokens" if summary.test_lengths else "position"
    return draw(summary, lines, limits, dark, "Loss by position", xlabel, bands=True)


def training(summary: Summary, dark: bool = False) -> Figure:
    """The loss in training: every seed a thin line."""
    diverged = [f"not drawn: {scheme} {words}" for scheme in summary.schemes if (words := summary.diverged(scheme))]
    loss = BITS if summary.task.score == "bits" else "cross-entropy (bits)"
    figure, axes = canvas(summary, dark, "Loss in training", "step", loss, rows=len(diverged), bottom=0.62)
    curves = {s: [r["curve"] for r in summary.of("training", s) if r.get("curve")] for s in summary.schemes}
    points = [point for group in curves.values() for curve in group for point in curve]
    with style.context(dark):
        for row, words in enumerate(diverged):
            note(axes, row, words)
        if not points:
            return empty(figure, axes, dark, "no curve" if diverged else "")
        # The first fifth of the steps falls from chance to about the final loss, and would flatten all that follows.
        late = [bits for step, bits in points if step >= 0.2 * max(step for step, _ in points)]
        margin = 0.05 * (max(late) - min(late)) or 0.1
        axes.set(xlim=(0, 1.03 * max(step for step, _ in points)), ylim=(min(late) - margin, max(late) + margin))
        first = max(bits for _, bits in points)
        if first > axes.get_ylim()[1]:
            words = f"↑ from {first:.1f} at first"
            axes.text(0.98, 0.95, words, transform=axes.transAxes, ha="right", va="top", size=9)
        for scheme, group in curves.items():
            look = style.look(scheme, dark)
            for curve in group:
                steps, bits = zip(*curve, strict=True)
                axes.plot(steps, bits, color=look.color, linestyle=look.dashes, linewidth=1.2, label=scheme)
        last = {scheme: group[0][-1] for scheme, group in curves.items() if group}
        names(axes, {scheme: (float(step), float(bits)) for scheme, (step, bits) in last.items()}, dark)
    return figure


FIGURES: dict[str, Callable[[Summary, bool], Figure]] = {
    draw.__name__: draw for draw in (sliding, windows, differences, final_tokens, by_position, training)
}


def _by_length(summary: Summary, kind: str, title: str, dark: bool, baselines: Sequence[Line] = ()) -> Figure:
    lines = [line_of(summary, kind, scheme, summary.test_lengths) for scheme in summary.schemes]
    # One scale for separate and sliding windows, so that the two figures can be held against each other.
    both = [line_of(summary, k, s, summary.test_lengths) for k in ("windows", "sliding") for s in summary.schemes]
    limits = _limits(both, summary.train_length)
    words = f"dashed: the same model, shown only the last {summary.train_length:,} tokens" if baselines else ""
    return draw(summary, lines, limits, dark, title, "test length (tokens)", baselines=baselines, words=words)


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
        # The seeds share their windows, so averaging over seeds takes nothing off the error over windows.
        error = 1.96 * sum(r["stderr"][i] for r in records) / len(records)
        points.append((math.sqrt((a + 1) * b), Estimate(mean, mean - error, mean + error, 0, len(records))))
    return tuple(points)


def _absent(summary: Summary, scheme: str) -> str:
    undefined = any(record.get("undefined") for record in summary.of("by_position", scheme))
    return (summary.end(scheme) or "undefined") if undefined else summary.diverged(scheme) or "not measured"


def _limits(lines: Sequence[Line], train_length: int) -> tuple[float, float]:
    """The range of bits worth its space: the best at every length, and up to the training length those near it."""
    points = [point for line in lines for point in line.finite()]
    if not points:
        return (0.0, 1.0)
    best = {x: min(p.mean for y, p in points if y == x) for x, _ in points}
    core = [p.mean for x, p in points if p.mean <= best[x] + (1 if x <= train_length else 0)]
    cap = max(core) + max(0.4, max(core) - min(core))
    highest = max(p.mean for _, p in points)
    # A little above the cap is drawn as it is: an arrow would cost more space than it saves.
    return min(core), highest if highest <= cap + 0.25 * (cap - min(core)) else cap
