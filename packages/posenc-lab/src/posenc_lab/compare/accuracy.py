"""Makes the pictures, tables and sentences of tasks whose answers are right or wrong."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from matplotlib.figure import Figure

from posenc_lab.compare import tables
from posenc_lab.compare.drawing import draw
from posenc_lab.compare.pictures import line_of, training, training_by_time
from posenc_lab.compare.sentences import how_verdicts_are_made, of_few_seeds, preface
from posenc_lab.compare.summary import Summary
from posenc_lab.compare.task import Answers, listed
from posenc_lab.kit import style
from posenc_lab.kit.report import Cell, Figures, Paragraph, Part, Row, Section, Table
from posenc_lab.kit.statistics import LEAST_SEEDS, wilson

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
    if kind == "resized":  # at the training grid there is nothing to resize
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
    return {
        **{kind: partial(by_length, kind) for kind in task.kinds},
        "training": training,
        "training_by_time": training_by_time,
    }


def table(summary: Summary, kind: str) -> Table:
    """The table of one kind of measurement: a row for every scheme planned for it."""
    found = Table(answers(summary).kinds[kind].title, "", ["scheme", *tables.columns(summary)], id=kind)
    for scheme in _asked(summary, kind):
        name = Cell(scheme) if kind == "resized" else tables.name_cell(summary, scheme, kind)
        cells = []
        for n in summary.test_lengths:
            of = "accuracy" if kind == "resized" and n == summary.train_length else kind
            best = of == kind and scheme in highest(summary, kind, n)
            cells.append(tables.cell(summary, of, scheme, n, solved(summary, kind, scheme, n), best=best))
        found.rows.append([name, *cells])
    return found


def observed(summary: Summary) -> list[str]:
    """The results of each kind at the training length and at the longest."""
    trained, longest = summary.train_length, max(summary.test_lengths, default=0)
    task = answers(summary)
    asked = product(task.kinds, dict.fromkeys((trained, longest)))
    found = [*preface(summary), *(_order(summary, kind, n) for kind, n in asked if (kind, n) != ("resized", trained))]
    measured = {k: [s for s in summary.schemes if summary.bits(k, s, trained)] for k in task.kinds}
    guessing = {k: [s for s in each if at_chance(summary, k, s, trained)] for k, each in measured.items()}
    above_chance = {k: [s for s in each if s not in guessing[k]] for k, each in measured.items()}
    if more := task.observed(guessing, above_chance):
        found.append(f"At {trained:,} {task.lengths} {more}")
    return [sentence for sentence in found if sentence]


def highest(summary: Summary, kind: str, length: int) -> tuple[str, ...]:
    """The best schemes whose accuracy is above chance."""
    return tuple(s for s in summary.best(kind, length) if not at_chance(summary, kind, s, length))


def at_chance(summary: Summary, kind: str, scheme: str, length: int) -> bool:
    """Whether the accuracy of these trainings is indistinguishable from chance."""
    value, chance = summary.of_these_seeds(kind, scheme, length), answers(summary).chance
    return value is not None and (
        value.low <= chance <= value.high or (chance > 0 and abs(value.mean - chance) < summary.task.margin)
    )


def solved(summary: Summary, kind: str, scheme: str, length: int) -> str:
    """How many seeds solve the task: a training run either finds the algorithm or does not, which a mean hides. With
    Wilson's interval from three seeds on; empty for one seed."""
    means = summary.by_seed(kind, scheme, length)
    if len(means) < 2:
        return ""
    right = sum(mean >= answers(summary).solved for mean in means)
    words = f"{right} of {len(means)} solve it"
    if len(means) < LEAST_SEEDS:
        return words
    _, low, high = wilson(right, len(means))
    return f"{words} ({low:.2f}–{high:.2f})"


def how_to_read(summary: Summary) -> list[str]:
    task = answers(summary)
    return [
        f"Higher is better: 1 is every answer right, and guessing gives {task.chance:g}.",
        f"Bars are 95 % intervals over {summary.over(task.units)} (Student's t; of one training, Wilson's). "
        "All schemes have the same test examples, so differences are paired.",
        *how_verdicts_are_made(summary),
        *task.how_to_read,
    ]


def not_concluded(summary: Summary) -> list[str]:
    steps = summary.configuration.get("steps", 0)
    return [
        f"This is a small model trained briefly ({steps:,} steps). The order of the schemes may differ in a larger "
        "model or after longer training.",
        *of_few_seeds(summary),
        *answers(summary).not_concluded,
        "Undefined does not mean a low accuracy: the scheme does not define positions there.",
        f"Speed and memory are of this machine and this model size; step times are interleaved with "
        f"{summary.timed_against}'s.",
    ]


def numbers(summary: Summary) -> list[Part]:
    """The part of the page that is specific to these tasks."""
    kinds = answers(summary).kinds
    lead = "The share of right answers, with 95 % intervals, and how many seeds solve the task."
    if summary.enough_seeds()[1:]:
        lead += " Shaded: the schemes that no other is shown to beat, if they are above chance."
    costs: list[Row] = [[scheme, *tables.costs(summary, scheme)] for scheme in summary.schemes]
    every = [
        Paragraph(lead),
        *(table(summary, kind) for kind in kinds),
        *tables.why_undefined(summary, next(iter(kinds))),
        *tables.pairs(matrices(summary)),
    ]
    return [
        Figures({kind: each.caption for kind, each in kinds.items()}),
        Section("All schemes", every),
        Table("Cost", "", ["scheme", *tables.costs_of(summary)], costs, id="costs"),
        Section("How they learned", [tables.figures("training", "training_by_time")]),
    ]


def matrices(summary: Summary) -> list[Table]:
    """The differences between all pairs, at the training length and at the longest, of each kind."""
    task, trained = answers(summary), summary.train_length
    asked = product(task.kinds, dict.fromkeys((trained, max(summary.test_lengths, default=0))))
    return [tables.matrix(summary, kind, n, task.where(kind, n, trained)) for kind, n in asked]


def _asked(summary: Summary, kind: str) -> list[str]:
    """The schemes that a kind is planned for."""
    return [scheme for scheme in summary.schemes if any(k == kind for k, _ in summary.plan(scheme))]


def _order(summary: Summary, kind: str, length: int) -> str:
    """The best schemes of a kind at a length, those in between, and those at chance."""
    means = {s: e for s in summary.schemes if (e := summary.bits(kind, s, length))}
    if not means:
        return ""
    task = answers(summary)
    guessing = [s for s in means if at_chance(summary, kind, s, length)]
    top = highest(summary, kind, length)
    between = sorted((s for s in means if s not in (*guessing, *top)), key=lambda s: -means[s].mean)

    solves = {s: solved(summary, kind, s, length) for s in (*top, *between)}
    alike = len(set(solves.values())) == 1 and len(solves) > 1  # then it is said once

    def share(scheme: str) -> str:
        return f"{means[scheme].mean:.2f}" + (f"; {solves[scheme]}" if solves[scheme] and not alike else "")

    parts = []
    if top:
        named = listed(f"{s} ({share(s)})" for s in top)
        parts.append(f"no scheme is shown to beat any of {named}" if top[1:] else f"{named} is the highest")
    parts += [listed(f"{s} has {share(s)}" for s in between)] if between else []
    parts += [f"of each, {words}" for words in set(solves.values()) if words and alike]
    parts += [f"{_are(guessing)} no better than guessing"] if guessing else []
    undefined = [s for s in summary.schemes if summary.undefined(s, length, kind)]
    parts += [f"{_are(undefined)} undefined"] if undefined else []
    return f"{task.where(kind, length, summary.train_length)}: {'; '.join(parts)}."


def _are(schemes: Sequence[str]) -> str:
    return f"{listed(schemes)} {'are' if schemes[1:] else 'is'}"
