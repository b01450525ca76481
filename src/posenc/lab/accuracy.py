"""The pictures, tables and sentences of the tasks whose answers are right or wrong."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from matplotlib.figure import Figure

from posenc.lab import tables
from posenc.lab.drawing import draw
from posenc.lab.pictures import line_of, training
from posenc.lab.sentences import marked
from posenc.lab.summary import Estimate, Summary
from posenc.lab.task import Answers, listed
from posenc.workbench import style

ACCURACY = "share of right answers"


def answers(summary: Summary) -> Answers:
    """The task. ValueError for one whose answers are not right or wrong."""
    if not isinstance(summary.task, Answers):
        kind = type(summary.task).__name__
        raise ValueError(f"records must be of a task whose answers are right or wrong, got those of {kind}")
    return summary.task


def by_length(kind: str, summary: Summary, dark: bool = False) -> Figure:
    """The share of right answers of one kind against the length, or the side of the grid."""
    task = answers(summary)
    lines = [line_of(summary, kind, scheme, summary.lengths(kind)) for scheme in _asked(summary, kind)]
    if kind == "resized":  # at the training grid nothing is to be fitted
        trained = [line_of(summary, "accuracy", line.scheme, [summary.train_length]).points for line in lines]
        both = zip(lines, trained, strict=True)
        lines = [replace(line, points=tuple(sorted(line.points + more))) for line, more in both]
    points = [value.mean for line in lines for _, value in line.finite()]
    limits, words = (min([task.chance, *points]), 1.0), f"grey: guessing, {task.chance:g}"
    figure = draw(summary, lines, limits, dark, task.kinds[kind].title, task.axis, ACCURACY, words=words)
    if points:
        figure.axes[0].axhline(task.chance, color=style.theme(dark).faint, linewidth=1, zorder=1, label="guessing")
    return figure


def figures(task: Answers) -> dict[str, Callable[[Summary, bool], Figure]]:
    return {**{kind: partial(by_length, kind) for kind in task.kinds}, "training": training}


def rows(summary: Summary, kind: str) -> list[dict[str, Any]]:
    """The table of one kind: a row for every scheme that it was to be measured for."""
    found = []
    for scheme in _asked(summary, kind):
        row = tables.row(summary, scheme, kind, highest)
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
    trained, longest = summary.train_length, max(summary.test_lengths, default=0)
    task = answers(summary)
    asked = product(task.kinds, dict.fromkeys((trained, longest)))
    found = [_order(summary, kind, n) for kind, n in asked if (kind, n) != ("resized", trained)]
    measured = {k: {s: e for s in summary.schemes if (e := summary.bits(k, s, trained))} for k in task.kinds}
    guessing = {k: [s for s, e in each.items() if at_chance(e, task.chance)] for k, each in measured.items()}
    telling = {k: [s for s in each if s not in guessing[k]] for k, each in measured.items()}
    if more := task.observed(guessing, telling):
        found.append(f"At {trained:,} {task.lengths} {more}")
    return [sentence for sentence in found if sentence]


def highest(summary: Summary, kind: str, length: int) -> tuple[str, ...]:
    """The schemes with the highest accuracy, as far as it is more than guessing gives; of one alone, none."""
    found = {scheme: summary.bits(kind, scheme, length) for scheme in marked(summary, kind, length)}
    return tuple(scheme for scheme, e in found.items() if e and not at_chance(e, answers(summary).chance))


def at_chance(value: Estimate, chance: float) -> bool:
    """Whether an accuracy is what guessing gives, as far as these examples can tell."""
    return value.low <= chance <= value.high or abs(value.mean - chance) < value.noise


def how_to_read(summary: Summary) -> list[str]:
    task = answers(summary)
    return [
        f"Higher is better: 1 is every answer right, and guessing gives {task.chance:g}.",
        f"Bars are 95 % bootstrap intervals over {summary.over(task.units)}. All schemes are asked the same, and are "
        f"called a tie where their paired difference may be zero or is below {task.noise:g}.",
        *task.how_to_read,
    ]


def not_concluded(summary: Summary) -> list[str]:
    steps = summary.configuration.get("steps", 0)
    one_seed = summary.one_seed()
    return [
        f"This is a small model trained briefly ({steps:,} steps). The order of the schemes can differ in a larger "
        "model and after longer training.",
        *([f"{one_seed} say nothing of how much another training would differ."] if one_seed else []),
        *answers(summary).not_concluded,
        "Undefined is not a low accuracy: the scheme has no such positions, and no number stands for that.",
        f"Speed and memory are those of this machine and this size of model; step times were taken in turns with "
        f"{summary.timed_against}'s.",
    ]


def page(summary: Summary) -> dict[str, Any]:
    """What the page of these tasks shows that the page of a text does not."""
    task = answers(summary)
    return {
        "title": task.title,
        "kinds": task.kinds,
        "tables": {kind: rows(summary, kind) for kind in task.kinds},
        "rows": [tables.row(summary, scheme, next(iter(task.kinds))) for scheme in summary.schemes],
    }


def _asked(summary: Summary, kind: str) -> list[str]:
    """The schemes that a kind was to be measured for."""
    return [scheme for scheme in summary.schemes if any(k == kind for k, _ in summary.plan(scheme))]


def _order(summary: Summary, kind: str, length: int) -> str:
    """The best schemes of a kind at a length, those in between, and those that do no better than guessing."""
    means = {s: e for s in summary.schemes if (e := summary.bits(kind, s, length))}
    if not means:
        return ""
    task = answers(summary)
    guessing = [s for s in means if at_chance(means[s], task.chance)]
    top = highest(summary, kind, length)
    between = sorted((s for s in means if s not in (*guessing, *top)), key=lambda s: -means[s].mean)
    parts = []
    if top:
        named = listed(f"{s} ({means[s].mean:.2f})" for s in top)
        parts.append(f"{named} {'tie for the highest' if top[1:] else 'is the highest'}")
    parts += [listed(f"{s} has {means[s].mean:.2f}" for s in between)] if between else []
    parts += [f"{_are(guessing)} no better than guessing"] if guessing else []
    undefined = [s for s in summary.schemes if summary.undefined(s, length, kind)]
    parts += [f"{_are(undefined)} undefined"] if undefined else []
    return f"{task.where(kind, length, summary.train_length)}: {'; '.join(parts)}."


def _are(schemes: Sequence[str]) -> str:
    return f"{listed(schemes)} {'are' if schemes[1:] else 'is'}"
