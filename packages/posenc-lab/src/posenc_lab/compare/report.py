"""Writes the report of a comparison: a self-contained HTML file, its pictures as PNGs, and a table for the terminal.

An incomplete run can be reported too; the report then lists what is missing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from rich.table import Table as RichTable

from posenc_lab.compare import pictures
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.pieces import MATCHED, Pieces
from posenc_lab.compare.puzzle import Recall
from posenc_lab.compare.summary import Record, Summary, Trial, multiple
from posenc_lab.compare.task import BEGUN, IN_A_ROW, Task, listed
from posenc_lab.kit import page
from posenc_lab.kit.command import command_of
from posenc_lab.kit.page import joined, strong
from posenc_lab.kit.records import made_with
from posenc_lab.kit.report import (
    Cell,
    Column,
    Figures,
    Items,
    Paragraph,
    Part,
    Report,
    Row,
    Section,
    Table,
    Warn,
    as_printed,
)
from posenc_lab.kit.statistics import MIN_SEEDS, wilson
from posenc_lab.kit.titles import titled

if TYPE_CHECKING:
    from posenc_lab.compare.grid import Cell as GridCell
    from posenc_lab.compare.grid import Grid

CAPTIONS = {
    "sliding": "Bits per byte against test length, over sliding windows. The same bytes are scored at every length. "
    "Bars: 95 % intervals.",
    "windows": "Bits per byte against test length, over separate windows: every byte is scored, including the first of "
    "a window.",
    "accuracy": "Share of rows in which every character of the answers is right, against their length. Bars: 95 % "
    "intervals.",
    "final_tokens": "Bits per byte of the same final bytes as their context grows. A line below its dashed line: "
    "context beyond the training length helps.",
    "far": "Use of a source at the beginning of rows, by their length; dashed: of one near the copy, in the same rows. "
    "Bars: 95 % intervals.",
    "begins": "Use of the source in rows of the training length against step, a line for each seed. Dotted: what "
    "counts as begun.",
    "training": "Training loss against step, a line for each seed.",
}


def write(records: Sequence[Record], out: str | Path) -> Path:
    """Writes ``report.html`` and its pictures into the folder ``out``; returns the path of the report."""
    summary = Summary(records)
    return page.write(content(summary), Path(out), page.drawn(figures(summary.task), summary))


def html(records: Sequence[Record], images: page.Images) -> str:
    """The page, with the images of each figure inside it."""
    return page.html(content(Summary(records)), images)


def figures(task: Task) -> dict[str, Callable[[Summary, bool], Figure]]:
    return {name: pictures.FIGURES[name] for group in task.figures for name in group}


def content(summary: Summary) -> Report:
    """The contents of the page."""
    task = summary.task
    left_out = "; ".join(f"{named(names)} ({reason})" for reason, names in task.left_out().items())
    return Report(
        title=f"posenc compare: {', '.join(map(titled, summary.schemes))}",
        heading=task.title,
        lead=[_lead(summary)],
        parts=[
            *_warnings(summary),
            Section("Results", [Items(observed(summary) or ["Nothing yet."], "results")]),
            *_numbers(summary),
            *_trials(summary),
            Section("How to read this", [Items(_how_to_read(summary))]),
            Section(
                "What must not be concluded",
                [
                    Items(_not_concluded(summary)),
                    Paragraph(f"Schemes of the catalog that do not apply to this task: {left_out}.", faint=True),
                ],
            ),
        ],
        command=command(summary),
        environment=made_with(summary.records, _facts),
    )


def command(summary: Summary) -> str:
    """The command that repeats this comparison."""
    seeds = sorted({seed for _, seed in summary.trainings})
    given = {**summary.configuration, "schemes": list(summary.schemes), "seeds": seeds}
    return command_of(("posenc", "compare"), given, CompareConfig)


def _facts(record: Record) -> dict[str, Any]:
    """The text, versions and machine that a record was made with."""
    labels = {"about": "text", "digest": "digest of the text"}
    parts = [record.get(part) or {} for part in ("text", "versions", "machine")]
    return {labels.get(name, name): value for part in parts for name, value in part.items()}


def _lead(summary: Summary) -> str:
    """A paragraph on the schemes, the lengths and the data."""
    lengths, count = summary.test_lengths, len(summary.schemes)
    about = str(((summary.records[-1] if summary.records else {}).get("text") or {}).get("about", ""))
    tested = f" and tested at {lengths[0]:,} to {lengths[-1]:,}" if lengths else ""
    encodings = "One positional encoding" if count == 1 else f"{count} positional encodings"
    trained = f"trained at {summary.train_length:,} {summary.task.lengths}{tested}"
    return f"{encodings} in the same small model, {trained}.{f' Data: {about}.' if about else ''}"


def _warnings(summary: Summary) -> list[Part]:
    found: list[Part] = []
    if missing := summary.missing():
        said = "The report covers what was measured so far. Missing:"
        found.append(Warn("This comparison is not finished.", said, missing, id="missing"))
    elif not summary.records:
        found.append(Warn("There are no records yet.", id="missing"))
    if summary.left_out:
        found.append(Warn(f"{summary.left_out} records of another comparison were ignored."))
    return found


def named(schemes: Sequence[str]) -> str:
    """Schemes in a row of words."""
    return listed(map(titled, schemes))


# --- sentences ------------------------------------------------------------------------------------------------------


def observed(summary: Summary) -> list[str]:
    """How the schemes were tuned, the results at the training length and at the longest, the use of context, and
    divergence; with verdicts only where there are enough seeds."""
    trained, longest = summary.train_length, max(summary.lengths(summary.kind), default=0)
    found = [*preface(summary), _order(summary, trained)]
    if longest > trained:
        found += [_order(summary, longest), _use_of_context(summary, longest)]
    if isinstance(summary.task, Pieces):
        found += [_begun(summary), *_controls(summary)]
    for scheme in summary.schemes:
        if words := summary.diverged(scheme):
            rest = "its results are from the other seeds" if summary.measured(scheme) else "it was not tested"
            found.append(f"{titled(scheme)} {words}: its loss was no longer finite, so {rest}.")
    return [sentence for sentence in found if sentence]


def preface(summary: Summary) -> list[str]:
    """How the schemes were tuned, and whether there are enough seeds."""
    if not any(map(summary.measured, summary.schemes)):
        return []
    few = summary.few_seeds()
    most = max(len(summary.measured(scheme)) for scheme in summary.schemes)
    planned = len({seed for _, seed in summary.trainings})
    seeds = f"results of {most} of {planned} seeds" if most < planned else "one seed" if most == 1 else f"{most} seeds"
    verdicts = ""
    if most < MIN_SEEDS:
        verdicts = f"This comparison has {seeds}, so there are no verdicts: they need at least {MIN_SEEDS} seeds."
    elif few:
        verdicts = f"There are no verdicts on {named(few)}: they need at least {MIN_SEEDS} seeds."
    return [sentence for sentence in (_tuned(summary), verdicts) if sentence]


def _tuned(summary: Summary) -> str:
    """A sentence on how the schemes were tuned; empty if none is trained."""
    trained = [s for s in summary.schemes if summary.of("training", s)]
    done = [s for s in trained if any(r.get("tuned") for r in summary.of("training", s))]
    if trained and not done:
        rate = summary.configuration.get("learning_rate")
        return (
            f"No scheme was tuned: all had one learning rate{f', {rate:g}' if rate else ''} (positional parameters: "
            "times what the scheme's entry says), and their order can be an artefact of it. In posenc's study, on the "
            "Python files kept for tuning, T5 needs 2.00 bits per byte with one rate of 0.005 for all that is learned, "
            "and 1.64 tuned."
        )
    counts = {scheme: len(summary.trials(scheme)) for scheme in done}
    parts = []
    for count in dict.fromkeys(counts.values()):
        whose = [scheme for scheme, its in counts.items() if its == count]
        were = "Every scheme was" if len(whose) == len(trained) else f"{named(whose)} {'were' if whose[1:] else 'was'}"
        parts.append(f"{were} {f'tuned with {count} trials' if count else 'trained at a learning rate given for it'}")
    if without := [scheme for scheme in trained if scheme not in done]:
        were, stand = ("were", "they stand") if without[1:] else ("was", "it stands")
        parts.append(f"{named(without)} {were} not tuned, and where {stand} can be an artefact of the learning rate")
    if ends := [scheme for scheme in done if _at_end(summary.trials(scheme))]:
        parts.append(f"the best rate or multiplier of {named(ends)} is an end of what was tried: try others beyond")
    return f"{'; '.join(parts)}." if parts else ""


def _at_end(trials: Sequence[Trial]) -> bool:
    """Whether the best trial has the highest or the lowest rate or multiplier, of several."""
    _, best = min(((trial.loss, n) for n, trial in enumerate(trials) if trial.loss is not None), default=(0, None))
    tried = [[getattr(trial, name) or 0.0 for trial in trials] for name in ("learning_rate", "multiplier")]
    return best is not None and any(min(of) < max(of) and of[best] in (min(of), max(of)) for of in tried)


def _order(summary: Summary, length: int) -> str:
    """The results at a length: the best, and how far the others are from it."""
    kind, higher = summary.kind, summary.task.higher
    found = {s: e for s in summary.schemes if (e := summary.bits(kind, s, length))}
    means = {s: e.mean for s, e in found.items() if e.finite}
    if not means:
        return ""
    where, best = _where(summary, length), summary.best(kind, length)
    measure = summary.task.measure
    unit = "" if higher else f" {measure}"
    order = sorted(means, key=lambda s: -means[s] if higher else means[s])

    if best:
        top, judged = means[best[0]], [s for s in order if found[s].judged]
        among = "" if len(judged) == len(order) else f" among those with {MIN_SEEDS} seeds"
        if best[1:]:
            among_best = listed(f"{titled(s)} ({means[s]:.2f})" for s in best)
            words = f"{where}, no scheme is shown to beat any of {among_best}{unit}{among}"
        else:
            superlative = f"highest {measure}" if higher else "lowest loss"
            words = f"{where}, {titled(best[0])} has the {superlative}{among}, {top:.2f}{unit}"
        side = "below" if higher else "above"
        parts = [listed(f"{titled(s)} is {abs(means[s] - top):.2f} {side}" for s in judged if s not in best)]
        parts += [f"{titled(s)} has {means[s]:.2f} with too few seeds" for s in order if s not in judged]
    else:
        words = f"{where}, {measure}: {listed(f'{means[s]:z.2f} with {titled(s)}' for s in order)}"
        parts = []
    parts += [f"{titled(s)} is not finite" for s, e in found.items() if not e.finite]
    parts += [f"{titled(s)} is {summary.end(s, kind)}" for s in summary.schemes if summary.undefined(s, length, kind)]
    absent = [s for s in summary.schemes if s not in found and not summary.no_value(s, length, kind)]
    parts += [f"{named(absent)} {'is' if len(absent) == 1 else 'are'} not measured"] if absent else []
    return "; ".join([words, *filter(None, parts)]) + "."


def _where(summary: Summary, length: int) -> str:
    lengths, trained = summary.task.lengths, summary.train_length
    if length == trained:
        return f"At the training length of {length:,} {lengths}"
    return f"At {length:,} {lengths}, {length / trained:g}× the training length"


def solved(summary: Summary, scheme: str, length: int) -> str:
    """How many seeds solve a puzzle: a training either finds the algorithm or does not, which a mean hides. With
    Wilson's interval from three seeds on; empty for one seed, and for text."""
    means = summary.by_seed(summary.kind, scheme, length)
    if not isinstance(summary.task, Recall) or len(means) < 2:
        return ""
    right = sum(mean >= summary.task.solved for mean in means)
    words = f"{right} of {len(means)} solve it"
    if len(means) < MIN_SEEDS:
        return words
    _, low, high = wilson(right, len(means))
    return f"{words} ({low:.2f}–{high:.2f})"


def _use_of_context(summary: Summary, length: int) -> str:
    """Whether context beyond the training length helps, compared with the truncated baseline on the same bytes."""
    trained, kinds = summary.train_length, ("final_tokens", "truncated")
    gains = {s: summary.difference(kinds[0], s, s, length, kinds[1], trained) for s in summary.schemes}
    effects = {scheme: gain for scheme, gain in gains.items() if gain and gain.finite}
    grouped: dict[str, list[str]] = {}
    for scheme, effect in effects.items():
        verdict = summary.verdict(effect)
        if not verdict:
            without = " (no verdict)" if summary.enough_seeds() else ""  # else said of all
            change = f"{effect.mean:+.2f}".replace("-", "−")
            form, words = f"changes the loss of {{}}{without}", f"{titled(scheme)} by {change}"
        elif verdict in ("tied", "undecided"):
            form = "does not change the loss of {}" if verdict == "tied" else "has an undecided effect on {}"
            words = titled(scheme)
        else:
            side, _, small = verdict.partition(", ")
            form = "lowers the loss of {}" if side == "lower" else "raises the loss of {}"
            words = f"{titled(scheme)} by {abs(effect.mean):.2f}{f' ({small})' if small else ''}"
        grouped.setdefault(form, []).append(words)
    words = "; ".join(form.format(listed(schemes)) for form, schemes in sorted(grouped.items()))
    start = f"A context of {length:,} bytes instead of {summary.train_length:,} for the final bytes"
    return f"{start} {words} (bits per byte)." if words else ""


def _begun(summary: Summary) -> str:
    """From which step on the source is used, of each scheme and seed."""
    words = []
    for scheme in summary.schemes:
        steps = ", ".join("not" if step is None else f"{step:,}" for step in summary.begun(scheme).values())
        words += [f"{titled(scheme)} {steps}"] if steps else []
    said = f"Steps from which the use of the source is {BEGUN} bits or more at {IN_A_ROW} points in a row, of each seed"
    return f"{said}: {'; '.join(words)}." if words else ""


def _controls(summary: Summary) -> list[str]:
    """What the controls gain from the source, and whether they are as they must be."""
    found = []
    for kind, name in (("match", "A match by construction"), ("shuffled", "With the source shuffled, each model")):
        uses = [(s, e.mean) for s in summary.schemes for n in summary.lengths(kind) if (e := summary.bits(kind, s, n))]
        if uses:
            low, high = min(use for _, use in uses), max(use for _, use in uses)
            wrong = (s for s, use in uses if not (use >= MATCHED if kind == "match" else use <= BEGUN))  # or no number
            failing = list(dict.fromkeys(wrong))
            words = f"{name} gains {low:z.2f} to {high:z.2f} bits per byte from the source".replace("-", "−")
            fails = f": this control fails for {named(failing)}, whose numbers say nothing of far tokens"
            found.append(f"{words}{fails if failing else ''}.")
    return found


def _how_to_read(summary: Summary) -> list[str]:
    several = any(len(summary.measured(s)) > 1 for s in summary.schemes)
    units = summary.task.examples + " and over seeds" * several
    found = [
        "Higher is better." if summary.task.higher else "Lower is better.",
        *summary.task.how_to_read,
        f"Bars are 95 % intervals over {units} (Student's t; of the right answers of one training, Wilson's). All "
        f"schemes are tested on the same {summary.task.examples}, so schemes whose bars overlap may still differ: see "
        "the paired differences.",
    ]
    verdicts = [
        "Lower or higher: the 95 % interval of the paired difference excludes zero. Tied: its 90 % interval lies "
        f"within ±{summary.task.margin:g}, so a difference that matters is ruled out. Within the margin: both. "
        "Undecided: neither; more seeds or windows could decide.",
        "The best at a length are the schemes that no other is shown to beat. All pairs are tested with Holm's "
        "correction: among equal schemes, one is excluded in at most 5 % of comparisons.",
    ]
    enough = len(summary.enough_seeds())
    return [*found, *verdicts[: min(enough, 2)]]  # the second is of several schemes


def _not_concluded(summary: Summary) -> list[str]:
    sizes = [e for s in summary.schemes if (e := summary.number("training", s, "parameters"))]
    # To two digits: 370,000.
    size = f"about {float(f'{max(sizes):.2g}'):,.0f} parameters" if sizes else "few parameters"
    found = [
        f"This is a small model ({size}) trained briefly ({summary.configuration.get('steps', 0):,} steps) on one "
        "task. The order of the schemes may differ in a larger model, after longer training, or on other data."
    ]
    few = summary.few_seeds()
    if alone := [scheme for scheme in few if len(summary.measured(scheme)) == 1]:
        tested = [scheme for scheme in summary.schemes if summary.measured(scheme)]
        whose = "" if len(alone) == len(tested) else f" of {named(alone)}"
        found.append(
            f"The results{whose} are of one seed: the intervals cover the choice of examples, but not the variance "
            "between training runs."
        )
    if few != tuple(alone):
        found.append(
            "Two seeds hardly measure the variance between training runs: in about one of ten pairs of equal schemes "
            "the interval excludes zero."
        )
    found += [
        *summary.task.not_concluded,
        "Undefined does not mean a bad result: the scheme does not define positions there.",
        f"Speed and memory are of this machine and this model size; step times are interleaved with "
        f"{titled(summary.timed_against)}'s, so the load of the machine cancels.",
    ]
    if any(map(summary.diverged, summary.schemes)):
        found.append(
            "Divergence shows that the learning rate was too high here, not that the scheme cannot be trained."
        )
    return found


# --- tables ---------------------------------------------------------------------------------------------------------


def _numbers(summary: Summary) -> list[Part]:
    """The figures and the tables."""
    lengths, task = summary.test_lengths, summary.task
    costs = (
        Column("parameters", "positional"),
        Column("step time", f"÷ {titled(summary.timed_against)}'s"),
        Column("memory", "peak of a step"),
    )
    rows: list[Row] = []
    for scheme in summary.schemes:
        name = Cell(titled(scheme), [summary.end(scheme, summary.kind), summary.diverged(scheme)])
        cells = [
            cell(summary, summary.kind, scheme, n, solved(summary, scheme, n), scheme in summary.best(summary.kind, n))
            for n in lengths
        ]
        rows.append([name, *cells, *_costs(summary, scheme)])
    what = f"{task.measure[0].upper()}{task.measure[1:]} ({task.kinds[summary.kind].called})"
    solve = ", and how many seeds solve the task" * isinstance(task, Recall)
    lead = f"{what} at each test length, with 95 % intervals{solve}."
    if summary.enough_seeds()[1:]:
        lead += " Shaded: the schemes that no other is shown to beat at that length."
    first: list[Part] = [
        _figures(*task.figures[0]),
        Table("All schemes", lead, ["scheme", *_columns(summary), *costs], rows, id="schemes"),
        *(Paragraph(words, faint=True) for words in _why_undefined(summary)),
        *_differences(summary),
    ]
    others: list[Part] = [_figures(*task.figures[1])]
    if means := _means(summary):
        table = Table("", "", ["scheme", "measurement", *_columns(summary)], means, id="means")
        others.append(Section("Numbers of the other figures", [table], folded=True))
    return [*first, Section(task.others, others)]


def _figures(*names: str) -> Figures:
    return Figures({name: CAPTIONS[name] for name in names})


def _columns(summary: Summary) -> list[Column]:
    """A column for each test length, with how many times the training length it is."""
    return [Column(f"{n:,}", multiple(n, summary.train_length)) for n in summary.test_lengths]


def _costs(summary: Summary, scheme: str) -> list[Cell]:
    def shown(kind: str, name: str, form: str, scale: float = 1) -> str:
        absent = "diverged" if kind == "training" and summary.diverged(scheme) else "missing"
        return summary.shown(kind, scheme, name, form, scale) or absent

    ends = filter(None, (summary.shown("speed", scheme, end, "{:.2f}") for end in ("low", "high")))
    return [
        Cell(shown("training", "parameters", "{:,.0f}"), [shown("training", "position_parameters", "{:,.0f}")]),
        Cell(shown("speed", "step_ratio", "{:.2f}×"), ["–".join(ends)]),
        Cell(shown("training", "peak_bytes", "{:,.0f} MB", 1e-6)),
    ]


def _why_undefined(summary: Summary) -> list[str]:
    """A sentence on each scheme that is undefined at some length. An error begins with the name of its scheme."""
    whys = {s: [summary.undefined(s, n, summary.kind) for n in summary.test_lengths] for s in summary.schemes}
    return [
        f"{titled(s)} is {summary.end(s, summary.kind)}: {titled(name)} {words}"
        for s, why in whys.items()
        for name, _, words in [next(filter(None, why), "").partition(" ")]
        if words
    ]


def cell(summary: Summary, kind: str, scheme: str, length: int, note: str = "", best: bool = False) -> Cell:
    """A mean and its interval, or one word that says why there is none."""
    value = summary.bits(kind, scheme, length)
    if value is None:
        return Cell(summary.no_value(scheme, length, kind) or "missing", mark="absent")
    if not value.finite:
        return Cell("not finite", mark="absent")
    interval = f"{value.low:z.2f}{' to ' if value.low < 0 else '–'}{value.high:z.2f}".replace("-", "−")
    return Cell(f"{value.mean:z.3f}".replace("-", "−"), [interval, note], "best" if best else "")


def _differences(summary: Summary) -> list[Part]:
    """Every other scheme minus the reference, paired, with a verdict; and all pairs."""
    reference, kind, lengths = summary.reference, summary.kind, summary.test_lengths
    rows: list[Row] = []
    most = 0
    for scheme in summary.schemes:
        if scheme != reference:
            gaps = [summary.difference(kind, scheme, reference, n) for n in lengths]
            seeds = max((gap.seeds for gap in gaps if gap), default=0)
            rows.append([titled(scheme), *(_gap(summary, scheme, reference, n) for n in lengths), str(seeds)])
            most = max(most, seeds)
    if not rows:
        return []
    lead = joined(
        f"Each scheme's {summary.task.measure} minus {titled(reference)}'s, on the same examples"
        f"{' and with the same seeds' * (most > 1)}; {'above' if summary.task.higher else 'below'} zero is better. ",
        "The intervals cover examples and seeds." if most > 1 else strong("Over examples, with one seed."),
    )
    parts: list[Part] = [
        Paragraph(lead),
        Table("", "", ["scheme", *_columns(summary), Column("seeds")], rows, id="differences"),
    ]
    ends = dict.fromkeys((summary.train_length, max(summary.lengths(kind), default=0)))
    matrices = [matrix for n in ends if (matrix := _matrix(summary, n)).rows]
    if matrices:
        said = (
            "The scheme of the row minus that of the column, on the same examples and with the same seeds, with 95 % "
            "intervals. There is no correction for multiple comparisons: of twenty pairs of equal schemes, about one "
            "is called different."
        )
        numbered = (replace(each, id=f"pairs-{i}") for i, each in enumerate(matrices, 1))
        parts.append(Section("Differences between all pairs", [Paragraph(said), *numbered], folded=True))
    return [Section(f"Paired differences from {titled(reference)}", parts)]


def _gap(summary: Summary, scheme: str, other: str, length: int) -> Cell:
    """A paired difference, its interval and the verdict, or one word that says why there is none."""
    value = summary.difference(summary.kind, scheme, other, length)
    if value is None:
        both = [cell(summary, summary.kind, name, length).text for name in (scheme, other)]
        return Cell(next((word for word in ("diverged", "undefined") if word in both), "missing"), mark="absent")
    if not value.finite:
        return Cell("not finite", mark="absent")
    mean, interval = f"{value.mean:+.3f}", f"{value.low:+.3f} to {value.high:+.3f}"
    return Cell(mean.replace("-", "−"), [interval.replace("-", "−"), summary.verdict(value)])


def _matrix(summary: Summary, length: int) -> Table:
    """Every scheme that has a number at a length minus every other; without rows for fewer than two."""
    schemes = [scheme for scheme in summary.schemes if summary.bits(summary.kind, scheme, length)]
    table = Table(
        f"At {length:,} {summary.task.lengths}", "", ["minus", *(Column(titled(scheme)) for scheme in schemes)]
    )
    for one in schemes if schemes[1:] else ():
        table.rows.append([titled(one), *(_gap(summary, one, s, length) if one != s else "" for s in schemes)])
    return table


def _means(summary: Summary) -> list[Row]:
    """The other measurements made per length."""
    kinds = {k: each.called for k, each in summary.task.kinds.items() if k != summary.kind}

    def at(kind: str, scheme: str, length: int) -> Cell:
        return cell(summary, kind, scheme, length) if length in summary.lengths(kind) else Cell("–", mark="absent")

    return [
        [titled(scheme), what, *(at(kind, scheme, n) for n in summary.test_lengths)]
        for kind, what in kinds.items()
        for scheme in summary.schemes
    ]


def _trials(summary: Summary) -> list[Part]:
    """The table of all trials; nothing where there are none."""

    def number(value: float | None, form: str, absent: str = "–") -> str:
        return absent if value is None else form.format(value)

    rows: list[Row] = []
    for scheme in summary.schemes:
        found = summary.trials(scheme)
        best = min((trial.loss for trial in found if trial.loss is not None), default=None)
        for trial in sorted(found, key=lambda trial: (trial.learning_rate or 0, trial.multiplier or 0)):
            is_best = trial.loss is not None and trial.loss == best
            rows.append(
                [
                    titled(scheme),
                    number(trial.learning_rate, "{:g}"),
                    number(trial.multiplier, "{:g}"),
                    Cell(number(trial.bits, "{:.3f}", "diverged"), mark="best" if is_best else ""),
                    number(trial.twice, "{:.3f}"),
                    number(trial.longest, "{:.3f}"),
                    number(trial.seconds, "{:.1f}"),
                ]
            )
    if not rows:
        return []
    heads = map(Column, ("learning rate", "multiplier", "loss", "at twice the length", "at the longest", "seconds"))
    lead = (
        f"Loss on validation text or examples ({summary.task.unit}). Shaded: the best trial of a scheme, by "
        "the mean of the training length and twice that. The multiplier applies to the learning rate of positional "
        "parameters."
    )
    return [Section("How they were tuned", [Table("", lead, ["scheme", *heads], rows, id="trials")], folded=True)]


# --- the terminal ---------------------------------------------------------------------------------------------------


def terminal_table(records: Sequence[Record]) -> RichTable:
    """The main numbers of every scheme, for a terminal of 100 columns."""
    summary = Summary(records)
    kind, trained, lengths = summary.kind, summary.train_length, _few(summary.test_lengths, summary.train_length)
    names = ("params", "step", "MB", *(f"{length:,} " for length in lengths))
    table = Table("", "", [Column("scheme", number=False), *map(Column, names)])
    for scheme in summary.schemes:
        once = (
            summary.shown("training", scheme, "parameters", "{:.0f}k", 1e-3) or "–",
            summary.shown("speed", scheme, "step_ratio", "{:.2f}×") or "–",
            summary.shown("training", scheme, "peak_bytes", "{:,.0f}", 1e-6) or "–",
        )
        cells = []
        for length in lengths:
            words, is_best = _short(summary, scheme, length), scheme in summary.best(kind, length)
            cells.append(Cell(words + ("*" if is_best else " "), mark="best" if is_best else ""))
        table.rows.append([titled(scheme), *once, *cells])
    star = "*: no other scheme is shown to be better; " if summary.enough_seeds()[1:] else ""
    notes = [
        *preface(summary),
        f"{star}±: half the 95 % interval; step: time ÷ {titled(summary.timed_against)}'s; –: not measured.",
        *(f"{titled(s)} {words}." for s in summary.schemes if (words := summary.diverged(s))),
        *_controls(summary),
    ]
    if missing := len(summary.lacking()):
        notes.append(f"{missing} of {len(summary.trainings)} trainings are incomplete: see the report.")
    shown = as_printed(table)
    what = summary.task.measure.capitalize()
    shown.title = f"{what} at each test length, trained at {trained:,} {summary.task.lengths}"
    shown.caption = "\n".join(notes)
    return shown


def _short(summary: Summary, scheme: str, length: int, places: int = 2) -> str:
    value = summary.bits(summary.kind, scheme, length)
    if value is None:
        return summary.no_value(scheme, length, summary.kind) or "–"
    if not value.finite:
        return "not finite"
    half = (value.high - value.low) / 2
    return f"{value.mean:z.{places}f}±" + (f"{half:.{places}f}".removeprefix("0") if half < 1 else f"{half:.1f}")


def _few(lengths: Sequence[int], trained: int) -> list[int]:
    """At most five lengths: the shortest, the training length, and the longest ones."""
    if len(lengths) <= 5:
        return list(lengths)
    keep = {lengths[0], trained if trained in lengths else lengths[1]}
    return sorted(keep | set(lengths[-3:]))


# --- a grid ---------------------------------------------------------------------------------------------------------

Found = Mapping["GridCell", Sequence[Record]]
"""The records of the cells of a grid that have some."""


def write_grid(grid: "Grid", found: Found, out: Path) -> Path:
    """Writes the report of a grid into the folder ``out``; returns its path. Cells that differ in schemes and seeds
    alone are one comparison; others are rows of a table."""
    if grid.is_one:
        return write(_all(found), out)
    missing = len(grid.cells) - len(found)
    warnings = [Warn(f"{missing} of {len(grid.cells)} cells have no records yet.", id="missing")] if missing else []
    heading = f"{len(grid.cells)} comparisons"
    return page.write(Report("posenc compare: a grid", heading, [], [*warnings, grid_table(grid, found)]), out)


def terminal_table_of_grid(grid: "Grid", found: Found) -> RichTable:
    """The main numbers, for a terminal."""
    if grid.is_one:
        return terminal_table(_all(found))
    table = grid_table(grid, found)
    shown = as_printed(table)
    shown.title, shown.caption = table.title, table.lead
    return shown


def grid_table(grid: "Grid", found: Found) -> Table:
    """A row for each scheme of each configuration, with the means over its seeds."""
    varied = [name for name in grid.varied if name not in ("schemes", "seeds")]
    groups: dict[tuple[str, ...], list[Record]] = {}
    for cell, records in found.items():
        groups.setdefault(tuple(map(cell.value, varied)), []).extend(records)
    rows: list[Row] = []
    for values, records in groups.items():
        summary = Summary(records)
        for scheme in summary.schemes:
            seeds = len(summary.measured(scheme))
            ends = [_short(summary, scheme, n, 3) for n in (summary.train_length, summary.test_lengths[-1])]
            rows.append([*values, titled(scheme), summary.task.measure, str(seeds), *ends])
    numbers = [Column(name) for name in ("seeds", "at the training length", "at the longest")]
    lead = "Means over seeds and windows, ± half the 95 % interval. Loss: lower is better; accuracy and use: higher."
    return Table("Every configuration", lead, [*varied, "scheme", "score", *numbers], rows, id="cells")


def _all(found: Found) -> list[Record]:
    return [record for records in found.values() for record in records]
