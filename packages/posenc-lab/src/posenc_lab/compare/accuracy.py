"""Makes the pictures, tables and sentences of puzzles, whose answers are right or wrong."""

from collections.abc import Callable

from matplotlib.figure import Figure

from posenc_lab.compare import tables
from posenc_lab.compare.drawing import draw
from posenc_lab.compare.pictures import line_of, training, training_by_time
from posenc_lab.compare.puzzle import Puzzle
from posenc_lab.compare.sentences import how_verdicts_are_made, of_few_seeds, preface
from posenc_lab.compare.summary import Summary
from posenc_lab.compare.task import listed
from posenc_lab.kit.report import Figures, Paragraph, Part, Row, Section, Table
from posenc_lab.kit.statistics import LEAST_SEEDS, wilson

ACCURACY = "share of right answers"
KIND = "accuracy"
TITLE = "Exact match at each length"
CAPTION = (
    "Share of rows in which every character that is to be told is right, against their length. Bars: 95 % intervals."
)


def puzzle_of(summary: Summary) -> Puzzle:
    """The puzzle. ValueError for records of text."""
    if not isinstance(summary.task, Puzzle):
        kind = type(summary.task).__name__
        raise ValueError(f"records must be of a task whose answers are right or wrong, got those of {kind}")
    return summary.task


def by_length(summary: Summary, dark: bool = False) -> Figure:
    """The share of right answers against the length."""
    lines = [line_of(summary, KIND, scheme, summary.lengths(KIND)) for scheme in summary.schemes]
    return draw(summary, lines, (0.0, 1.0), dark, TITLE, puzzle_of(summary).axis, ACCURACY)


FIGURES: dict[str, Callable[[Summary, bool], Figure]] = {
    KIND: by_length,
    "training": training,
    "training_by_time": training_by_time,
}


def highest(summary: Summary, length: int) -> tuple[str, ...]:
    """The best schemes that are right in some rows."""
    return tuple(s for s in summary.best(KIND, length) if not is_never_right(summary, s, length))


def is_never_right(summary: Summary, scheme: str, length: int) -> bool:
    """Whether the accuracy of these trainings cannot be told from none."""
    value = summary.of_these_seeds(KIND, scheme, length)
    return value is not None and value.low <= 0


def solved(summary: Summary, scheme: str, length: int) -> str:
    """How many seeds solve the task: a training run either finds the algorithm or does not, which a mean hides. With
    Wilson's interval from three seeds on; empty for one seed."""
    means = summary.by_seed(KIND, scheme, length)
    if len(means) < 2:
        return ""
    right = sum(mean >= puzzle_of(summary).solved for mean in means)
    words = f"{right} of {len(means)} solve it"
    if len(means) < LEAST_SEEDS:
        return words
    _, low, high = wilson(right, len(means))
    return f"{words} ({low:.2f}–{high:.2f})"


def observed(summary: Summary) -> list[str]:
    """The results at the training length and at the longest."""
    asked = dict.fromkeys((summary.train_length, max(summary.test_lengths, default=0)))
    return [sentence for sentence in (*preface(summary), *(_order(summary, n) for n in asked)) if sentence]


def _order(summary: Summary, length: int) -> str:
    """The best schemes at a length, those in between, and those that are never right."""
    means = {s: e for s in summary.schemes if (e := summary.bits(KIND, s, length))}
    if not means:
        return ""
    never = [s for s in means if is_never_right(summary, s, length)]
    top = highest(summary, length)
    between = sorted((s for s in means if s not in (*never, *top)), key=lambda s: -means[s].mean)
    solves = {s: solved(summary, s, length) for s in (*top, *between)}
    alike = len(set(solves.values())) == 1 and len(solves) > 1  # then it is said once

    def share(scheme: str) -> str:
        return f"{means[scheme].mean:.2f}" + (f"; {solves[scheme]}" if solves[scheme] and not alike else "")

    parts = []
    if top:
        named = listed(f"{s} ({share(s)})" for s in top)
        parts.append(f"no scheme is shown to beat any of {named}" if top[1:] else f"{named} is the highest")
    parts += [listed(f"{s} has {share(s)}" for s in between)] if between else []
    parts += [f"of each, {words}" for words in set(solves.values()) if words and alike]
    undefined = [s for s in summary.schemes if summary.undefined(s, length, KIND)]
    for schemes, said in ((never, "never right"), (undefined, "undefined")):
        parts += [f"{listed(schemes)} {'are' if schemes[1:] else 'is'} {said}"] if schemes else []
    return f"{_where(summary, length)}: {'; '.join(parts)}."


def _where(summary: Summary, length: int) -> str:
    lengths, trained = summary.task.lengths, summary.train_length
    if length == trained:
        return f"At the training length of {length:,} {lengths}"
    return f"At {length:,} {lengths}, {length / trained:g}× the training length"


def how_to_read(summary: Summary) -> list[str]:
    return [
        "Higher is better: 1 is every answer right.",
        f"Bars are 95 % intervals over {summary.over('rows')} (Student's t; of one training, Wilson's). "
        "All schemes have the same test examples, so differences are paired.",
        *how_verdicts_are_made(summary),
        *puzzle_of(summary).how_to_read,
    ]


def not_concluded(summary: Summary) -> list[str]:
    return [
        f"This is a small model trained briefly ({summary.configuration.get('steps', 0):,} steps). The order of the "
        "schemes may differ in a larger model or after longer training.",
        *of_few_seeds(summary),
        *puzzle_of(summary).not_concluded,
        "Undefined does not mean a low accuracy: the scheme does not define positions there.",
        f"Speed and memory are of this machine and this model size; step times are interleaved with "
        f"{summary.timed_against}'s.",
    ]


def numbers(summary: Summary) -> list[Part]:
    """The part of the page that is specific to puzzles."""
    lead = "The share of right answers, with 95 % intervals, and how many seeds solve the task."
    if summary.enough_seeds()[1:]:
        lead += " Shaded: the schemes that no other is shown to beat, if they are right in some rows."
    lengths, trained = summary.test_lengths, summary.train_length
    rows: list[Row] = [
        [
            tables.name_cell(summary, scheme, KIND),
            *(
                tables.cell(summary, KIND, scheme, n, solved(summary, scheme, n), best=scheme in highest(summary, n))
                for n in lengths
            ),
        ]
        for scheme in summary.schemes
    ]
    ends = dict.fromkeys((trained, max(lengths, default=0)))
    every = [
        Paragraph(lead),
        Table(TITLE, "", ["scheme", *tables.columns(summary)], rows, id=KIND),
        *tables.why_undefined(summary, KIND),
        *tables.pairs([tables.matrix(summary, KIND, n, _where(summary, n)) for n in ends]),
    ]
    costs: list[Row] = [[scheme, *tables.costs(summary, scheme)] for scheme in summary.schemes]
    return [
        Figures({KIND: CAPTION}),
        Section("All schemes", every),
        Table("Cost", "", ["scheme", *tables.costs_of(summary)], costs, id="costs"),
        Section("How they learned", [tables.figures("training", "training_by_time")]),
    ]
