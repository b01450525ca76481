"""The pictures, tables and sentences of the tasks whose answers are right or wrong: digits and classify."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from posenc.lab import tables
from posenc.lab.drawing import Line, draw
from posenc.lab.pictures import line_of, training
from posenc.lab.sentences import marked
from posenc.lab.summary import ACCURACY_NOISE, Estimate, Record, Summary, listed
from posenc.workbench import style

ACCURACY = "share of right answers"

TITLES = {"digits": "One digit, other grids", "classify": "Which word comes first, and how far apart"}

# The kinds of each task, as a reader calls them; what guessing gives.
NAMES = {
    "digits": {
        "accuracy": "Accuracy at each grid",
        "resized": "Accuracy with positions fitted to the training grid",
    },
    "classify": {"order": "Order: which comes first", "distance": "Distance: near or far"},
}
CHANCE = {"digits": 0.1, "classify": 0.5}

CAPTIONS = {
    "accuracy": "Share of digits recognised against the patches along a side; away from the training grid the same "
    "images are resized. Bars: 95 % intervals.",
    "resized": "The same where each patch has its place on the training grid (relative_2d: its tables interpolated).",
    "order": "Share of sequences in which the model tells which marked word comes first, against their length. "
    "Bars: 95 % intervals.",
    "distance": "Share of sequences in which it tells whether they are near or far, at the same distances throughout.",
}


def by_length(kind: str, records: Iterable[Record], dark: bool = False) -> Figure:
    """The share of right answers of one kind against the length, or the side of the grid."""
    summary = Summary(records)
    if not NAMES.get(summary.task):
        raise ValueError(f"records must be of {' or '.join(NAMES)}, got the task {summary.task!r}")
    lines = [line_of(summary, kind, scheme, summary.lengths(kind)) for scheme in _asked(summary, kind)]
    if kind == "resized":  # at the training grid nothing is to be fitted
        lines = [
            Line(line.scheme, tuple(sorted((*line.points, *_trained(summary, line.scheme)))), line.end)
            for line in lines
        ]
    xlabel = "patches along a side" if summary.task == "digits" else "sequence length (words)"
    chance = CHANCE[summary.task]
    points = [value.mean for line in lines for _, value in line.finite()]
    limits = (min([chance, *points]), 1.0)
    title = NAMES[summary.task][kind]
    figure = draw(summary, lines, limits, dark, title, xlabel, ACCURACY, words=f"grey: guessing, {chance:g}")
    if points:
        figure.axes[0].axhline(chance, color=style.theme(dark).faint, linewidth=1, zorder=1, label="guessing")
    return figure


FIGURES: dict[str, dict[str, Callable[[Iterable[Record], bool], Figure]]] = {
    task: {**{kind: partial(by_length, kind) for kind in kinds}, "training": training} for task, kinds in NAMES.items()
}


def rows(summary: Summary, kind: str) -> list[dict[str, Any]]:
    """The table of one kind: a row for every scheme that it was to be measured for."""
    found = []
    for scheme in _asked(summary, kind):
        row = tables.row(summary, scheme, kind)
        row["bits"] = [
            (mean, interval, scheme in highest(summary, kind, n))
            for n, (mean, interval, _) in zip(summary.test_lengths, row["bits"], strict=True)
        ]
        if kind == "resized":
            row["end"] = ""
            row["bits"] = [
                (*tables.cell(summary, "accuracy", scheme, n), False) if n == summary.train_length else cell
                for n, cell in zip(summary.test_lengths, row["bits"], strict=True)
            ]
        found.append(row)
    return found


def observed(summary: Summary) -> list[str]:
    """What was seen at the training length and at the longest, of each question."""
    found = []
    trained, longest = summary.train_length, max(summary.test_lengths, default=0)
    for kind in NAMES[summary.task]:
        for length in dict.fromkeys((trained, longest)):
            if kind == "resized" and length == trained:
                continue
            sentence = _order(summary, kind, length)
            found += [sentence] if sentence else []
    if summary.task == "classify":
        guessing = [s for s in summary.schemes if (e := summary.bits("order", s, trained)) and at_chance(e, 0.5)]
        telling = [s for s in guessing if (e := summary.bits("distance", s, trained)) and not at_chance(e, 0.5)]
        if telling:
            tell, guess = ("tell", "guess") if telling[1:] else ("tells", "guesses")
            said = f"{listed(telling)} {tell} near from far and {guess} which comes first"
            found.append(f"At {trained:,} words {said}, as whatever is blind to direction must.")
    return found


def highest(summary: Summary, kind: str, length: int) -> tuple[str, ...]:
    """The schemes with the highest accuracy, as far as it is more than guessing gives; of one alone,
    none."""
    found = {scheme: summary.bits(kind, scheme, length) for scheme in marked(summary, kind, length)}
    return tuple(scheme for scheme, e in found.items() if e and not at_chance(e, CHANCE[summary.task]))


def at_chance(value: Estimate, chance: float) -> bool:
    """Whether an accuracy is what guessing gives, as far as these examples can tell."""
    return value.low <= chance <= value.high or abs(value.mean - chance) < ACCURACY_NOISE


def how_to_read(summary: Summary) -> list[str]:
    """What the figures mean."""
    seeds = max((len(summary.measured(scheme)) for scheme in summary.schemes), default=0)
    units = "images" if summary.task == "digits" else "groups of four sequences"
    over = f"{units} and over seeds" if seeds > 1 else units
    found = [
        f"Higher is better: 1 is every answer right, and guessing gives {CHANCE[summary.task]:g}.",
        f"Bars are 95 % bootstrap intervals over {over}. All schemes are asked the same, and are called a tie where "
        f"their paired difference may be zero or is below {ACCURACY_NOISE:g}.",
    ]
    if summary.task == "digits":
        found += [
            "Sinusoidal, Fourier features and relative 2D are given the row and the column of a patch. The others take "
            "one coordinate, and are given the patch's number, counted along the rows: at another grid the patch below "
            "is another number of steps away.",
            "Away from the training grid the same images are resized and every patch keeps its size in pixels. With "
            "fitted positions a patch stands where that part of the image stood in training.",
        ]
    else:
        found += [
            "Sequences come in groups of four with the same words: near and far, each also read backwards. A model "
            "that sees the words and not where they stand gives all four one answer, and is right in two.",
            "Reading backwards turns the order and keeps the distance. A scheme that is blind to direction cannot tell "
            "the two readings apart, so it guesses on order and may still tell near from far.",
            "At every length the marked words are as far apart as in training: what grows is the distance from the "
            "beginning, and the number of other words.",
        ]
    return found


def not_concluded(summary: Summary) -> list[str]:
    """What these numbers do not show."""
    steps = summary.configuration.get("steps", 0)
    few = [s for s in summary.schemes if len(summary.measured(s)) == 1]
    found = [
        f"This is a small model trained briefly ({steps:,} steps). The order of the schemes can differ in a larger "
        "model and after longer training.",
    ]
    if few:
        whose = "" if len(few) == len(summary.schemes) else f" of {listed(few)}"
        found.append(f"There is one seed{whose}: the intervals say nothing of how much another training would differ.")
    if summary.task == "digits":
        found += [
            "Images of 8 × 8 pixels are not photographs. A resized image also shows something else in each patch, so "
            "what is lost at another grid is not all lost to positions.",
            "Fitted positions are not more training: a model trained at several grids would do better at each.",
        ]
    else:
        found.append(
            "The task is made so that nothing but positions helps. It shows what a scheme can tell, not what it is "
            "worth in language, where words give most of it away."
        )
    return [
        *found,
        "Undefined is not a low accuracy: the scheme has no such positions, and no number stands for that.",
        f"Speed and memory are those of this machine and this size of model; step times were taken in turns with "
        f"{summary.timed_against}'s.",
    ]


def page(summary: Summary) -> dict[str, Any]:
    """What the page of these tasks shows that the page of a text does not."""
    kinds = NAMES[summary.task]
    return {
        "title": TITLES[summary.task],
        "names": kinds,
        "captions": {kind: CAPTIONS[kind] for kind in kinds},
        "tables": {kind: rows(summary, kind) for kind in kinds},
        "rows": [tables.row(summary, scheme, next(iter(kinds))) for scheme in summary.schemes],
    }


def _asked(summary: Summary, kind: str) -> list[str]:
    """The schemes that a kind was to be measured for."""
    return [scheme for scheme in summary.schemes if any(k == kind for k, _ in summary.plan(scheme))]


def _trained(summary: Summary, scheme: str) -> list[tuple[float, Estimate]]:
    value = summary.bits("accuracy", scheme, summary.train_length)
    return [(float(summary.train_length), value)] if value else []


def _order(summary: Summary, kind: str, length: int) -> str:
    """The best schemes of a kind at a length, those in between, and those that do no better than guessing."""
    means = {s: e for s in summary.schemes if (e := summary.bits(kind, s, length))}
    if not means:
        return ""
    chance = CHANCE[summary.task]
    guessing = [s for s in means if at_chance(means[s], chance)]
    top = highest(summary, kind, length)
    between = sorted((s for s in means if s not in (*guessing, *top)), key=lambda s: -means[s].mean)
    parts = []
    if top:
        named = listed(f"{s} ({means[s].mean:.2f})" for s in top)
        parts.append(f"{named} {'tie for the highest' if top[1:] else 'is the highest'}")
    parts += [listed(f"{s} has {means[s].mean:.2f}" for s in between)] if between else []
    parts += [f"{_are(guessing)} no better than guessing"] if guessing else []
    parts += [f"{_are(no)} undefined"] if (no := _undefined(summary, kind, length)) else []
    return f"{_where(summary, kind, length)}: {'; '.join(parts)}."


def _where(summary: Summary, kind: str, length: int) -> str:
    trained = length == summary.train_length
    if summary.task == "digits":
        grid = f"{length} × {length} patches"
        fitted = " with fitted positions" if kind == "resized" else ""
        return f"At the training grid of {grid}" if trained else f"At {grid}{fitted}"
    times = f"{length / summary.train_length:g}× the training length"
    return f"On {kind} at {'the training length of ' if trained else ''}{length:,} words" + (
        "" if trained else f", {times}"
    )


def _undefined(summary: Summary, kind: str, length: int) -> list[str]:
    return [scheme for scheme in summary.schemes if summary.undefined(scheme, length, kind)]


def _are(schemes: Sequence[str]) -> str:
    return f"{listed(schemes)} {'are' if schemes[1:] else 'is'}"
