"""Makes the tables of tuning in a report: every trial, and the expected best of fewer trials."""

from dataclasses import dataclass
from math import comb
from typing import Any

from posenc_lab.compare.summary import Record, Summary
from posenc_lab.compare.task import listed
from posenc_lab.kit.report import Cell, Column, Part, Row, Section, Table

BUDGETS = (1, 5, 10, 15)  # numbers of trials; then in steps of five, and the number of all


@dataclass(frozen=True)
class Trial:
    """A trial and its mean loss over the tuning seeds: ``bits`` at the training length, and ``longest`` at the longest;
    None if it diverged with some seed or was not measured."""

    learning_rate: float | None
    multiplier: float | None
    bits: float | None
    longest: float | None
    seconds: float | None


def of_scheme(summary: Summary, scheme: str) -> list[Trial]:
    """A scheme's trials in their order."""
    found: dict[Any, dict[Any, Record]] = {}
    for record in summary.records:
        if record.get("kind") == "trial" and record["scheme"] == scheme:
            found.setdefault(record.get("trial"), {})[record.get("seed")] = record
    return [_trial(list(found[number].values())) for number in sorted(found)]


def _trial(records: list[Record]) -> Trial:
    def mean(name: str) -> float | None:
        values = [float(record[name]) for record in records if record.get(name) is not None]
        whole = len(values) == len(records) and not any(record.get("diverged") for record in records)
        return sum(values) / len(values) if whole else None

    first = records[0]
    return Trial(first.get("learning_rate"), first.get("multiplier"), mean("bits"), mean("longest"), mean("seconds"))


def tuned(summary: Summary) -> str:
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
    counts = {scheme: len(of_scheme(summary, scheme)) for scheme in done}
    parts = []
    for count in dict.fromkeys(counts.values()):
        whose = [scheme for scheme, its in counts.items() if its == count]
        names = (
            "Every scheme was" if len(whose) == len(trained) else f"{listed(whose)} {'were' if whose[1:] else 'was'}"
        )
        parts.append(f"{names} {f'tuned with {count} trials' if count else 'trained at a learning rate given for it'}")
    if without := [scheme for scheme in trained if scheme not in done]:
        were, stand = ("were", "they stand") if without[1:] else ("was", "it stands")
        parts.append(f"{listed(without)} {were} not tuned, and where {stand} can be an artefact of the learning rate")
    return f"{'; '.join(parts)}." if parts else ""


def expected_best(bits: list[float], count: int) -> float:
    """The mean, over all draws of ``count`` of these values without replacement, of the lowest (Dodge et al. 2019,
    "Show Your Work: Improved Reporting of Experimental Results", there with replacement).

    The i-th of n values in rising order is the lowest of C(n - i, count - 1) of the C(n, count) draws.

    >>> expected_best([3.0, 1.0, 2.0], 2)  # 1, 1 and 2
    1.3333333333333333

    Raises ValueError unless count is 1 to the number of values.
    """
    if not 1 <= count <= len(bits):
        raise ValueError(f"count must be 1 to {len(bits)}, got {count}")
    n = len(bits)
    ways = [comb(n - i, count - 1) for i in range(1, n + 1)]
    return sum(value * way for value, way in zip(sorted(bits), ways, strict=True)) / comb(n, count)


def sections(summary: Summary) -> list[Part]:
    """The tables of all trials and of the expected best of fewer; nothing where there are no trials."""
    found = {scheme: of_scheme(summary, scheme) for scheme in summary.schemes}
    if not any(found.values()):
        return []
    counts = budgets(summary)
    lead = (
        f"Loss on validation text or examples ({summary.task.unit}). The expected best of fewer trials, drawn from "
        "those made, makes schemes with different numbers of trials comparable."
    )
    heads = [Column(str(count), "trials" if count > 1 else "trial") for count in counts]
    best: list[Row] = [[scheme, *expected(each, counts)] for scheme, each in found.items() if each]
    names = ("learning rate", "multiplier", "loss", "at the longest length", "seconds")
    about = "Shaded: the best trial of a scheme. The multiplier applies to the learning rate of positional parameters."
    rows = [row for scheme, each in found.items() for row in _rows(scheme, each)]
    every = Table("", about, ["scheme", *map(Column, names)], rows, id="trials")
    parts: list[Part] = [
        Table("", lead, ["expected best of", *heads], best, id="budgets"),
        Section("Every trial", [every], folded=True),
    ]
    return [Section("How they were tuned", parts)]


def budgets(summary: Summary) -> list[int]:
    """The numbers of trials whose expected best is shown."""
    most = max(len(of_scheme(summary, scheme)) for scheme in summary.schemes)
    return sorted({*(k for k in BUDGETS if k < most), *range(20, most, 5), most})


def _rows(scheme: str, found: list[Trial]) -> list[Row]:
    """A row for each trial, by learning rate and multiplier, with the best marked."""
    best = min((trial.bits for trial in found if trial.bits is not None), default=None)

    def number(value: float | None, form: str, absent: str = "–") -> str:
        return absent if value is None else form.format(value)

    return [
        [
            scheme,
            number(trial.learning_rate, "{:g}"),
            number(trial.multiplier, "{:g}"),
            Cell(
                number(trial.bits, "{:.3f}", "diverged"),
                mark="best" if trial.bits is not None and trial.bits == best else "",
            ),
            number(trial.longest, "{:.3f}"),
            number(trial.seconds, "{:.1f}"),
        ]
        for trial in sorted(found, key=lambda trial: (trial.learning_rate or 0, trial.multiplier or 0))
    ]


def expected(found: list[Trial], budgets: list[int]) -> list[str]:
    """The expected best of as many trials as each budget has. A diverged trial counts as the worst finite one;
    otherwise a draw of diverged trials would have no best."""
    learned = [trial.bits for trial in found if trial.bits is not None]
    if not learned:
        return ["diverged"] * len(budgets)
    bits = learned + [max(learned)] * (len(found) - len(learned))
    return [f"{expected_best(bits, k):.3f}" if k <= len(bits) else "–" for k in budgets]
