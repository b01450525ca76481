"""Checks the records of a comparison, and summarises them: means with intervals, differences, and what is undefined,
diverged or missing.

The figures, the tables and the sentences all read one `Summary`, so they cannot disagree. Runs may be unfinished: a
missing number is None, and `Summary.missing` lists the missing measurements.

Every record has the ``configuration``, ``text``, ``versions`` and ``machine`` that it was made with. The results, by
kind:

    trial           trial (its number), learning_rate, multiplier (of the positional parameters', or null), bits, twice
                    and longest (loss on tuning examples of the training length, of twice that, and of the longest),
                    seconds
    training        learning_rate, multiplier, tuned, parameters, position_parameters (with gates and features),
                    tokens_per_second, seconds, curve [[step, bits], ...], final_bits, peak_bytes (of forward and
                    backward on one batch, beyond the model itself)
    windows, sliding, final_tokens, truncated
                    bits [per byte, one for each evaluation window], tokens (scored in each window)
    far, near, shuffled, match
                    (of pieces) bits [of use, one for each row], gap, with_source and without (mean losses); of these
                    trainings there is use [[step, bits], ...] too
    accuracy        (of puzzles) accuracy [1 for each row that is right, else 0], examples (1)
    speed           relative_to, step_ratio (time of a training step over that scheme's, with low and high, the ends of
                    the interval that its median lies in), step_seconds

If a scheme has no encoding for a length, ``undefined`` has the reason in place of bits. If a training diverged,
``diverged`` says when, in place of its results and those of all its tests. A null in bits was not finite.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc_lab.compare.task import BEGUN, IN_A_ROW, Task, listed
from posenc_lab.compare.tasks import task_of
from posenc_lab.kit.files import require
from posenc_lab.kit.statistics import MIN_SEEDS, Mean, holm, mean_of, verdict, wilson
from posenc_lab.kit.titles import titled

Record = Mapping[str, Any]

# The fields that are read, by name. Kinds that are not listed belong to other commands.
COMPARED = {"seed": int, "configuration": dict, "text": dict, "versions": dict, "machine": dict}
RESULTS: dict[str, dict[str, Any]] = {
    "training": {
        "learning_rate": float,
        "multiplier": float | None,
        "tuned": bool,
        "parameters": int,
        "position_parameters": int,
        "tokens_per_second": float,
        "seconds": float,
        "curve": list[tuple[int, float]],
        "final_bits": float,
        "peak_bytes": int,
    },
    "speed": {"relative_to": str, "step_ratio": float, "low": float, "high": float, "step_seconds": float},
}
TRIAL = {"trial": int, "learning_rate": float, "multiplier": float | None, "bits": float | None, "seconds": float}
MISSING_RESULT_WORDS = ("undefined", "diverged")  # of results: words that say why there are none


def results_of(task: str) -> dict[str, Mapping[str, Any]]:
    """What the record of each kind of measurement of a task has, by name. ValueError for an unknown task."""
    of = task_of(task)
    training = {**RESULTS["training"], **of.training}
    return {**RESULTS, "training": training, "trial": TRIAL, **{kind: each.result for kind, each in of.kinds.items()}}


def check(record: Record) -> None:
    """ValueError for a record with a missing field or one of another type."""
    about = record.get("configuration")
    task = about.get("task", "text") if isinstance(about, dict) else "text"
    results = results_of(str(task)).get(record["kind"])
    if results is not None:
        instead = {name: str for name in MISSING_RESULT_WORDS if name in record}
        if instead:
            results = {name: results[name] for name in results if name in ("length", "trial")} | instead
        require(record, {**COMPARED, **results})


# The kinds of which a training has one record, in words.
MEASURED_ONCE = {"training": "training", "speed": "the step time"}


@dataclass(frozen=True)
class Estimate:
    """A mean, in bits per byte or as a share of right answers, with its 95 % interval, over ``windows`` windows and
    ``seeds`` trainings; ``found`` is for tests."""

    mean: float
    low: float
    high: float
    windows: int
    seeds: int
    found: Mean | None = None

    @property
    def finite(self) -> bool:
        """False if the loss of some window was not finite."""
        return math.isfinite(self.mean)

    @property
    def judged(self) -> bool:
        """Whether there are enough seeds for a verdict."""
        return self.seeds >= MIN_SEEDS and self.finite and self.found is not None


@dataclass(frozen=True)
class Trial:
    """A trial and its mean loss over the tuning seeds: ``bits`` at the training length, ``twice`` at twice that and
    ``longest`` at the longest; ``loss`` chooses. None if it diverged with a seed or was not measured."""

    learning_rate: float | None
    multiplier: float | None
    bits: float | None
    twice: float | None
    longest: float | None
    seconds: float | None
    loss: float | None

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Trial":
        """The trial of these records, one for each seed."""

        def mean(name: str) -> float | None:
            values = [float(record[name]) for record in records if record.get(name) is not None]
            whole = len(values) == len(records) and not any(record.get("diverged") for record in records)
            return sum(values) / len(values) if whole else None

        rate, multiplier = (records[0].get(name) for name in ("learning_rate", "multiplier"))
        means = {name: mean(name) for name in ("bits", "twice", "longest", "seconds")}
        # Both lengths decide, or that of training where a record has no other; null, which was not finite, is no loss.
        deciding = [r.get(name, r.get("bits")) for r in records for name in ("bits", "twice")]
        return cls(rate, multiplier, **means, loss=None if None in deciding else sum(deciding) / len(deciding))


class Summary:
    """The records of one comparison, by kind, scheme and length.

    Of records of several comparisons, only those of the latest are used; ``left_out`` counts the others. ``task`` is by
    default the one that their configuration names.
    """

    def __init__(self, records: Iterable[Record], task: Task | None = None) -> None:
        given = list(records)
        latest = given[-1].get("fingerprint") if given else None
        self.records: list[Record] = [record for record in given if record.get("fingerprint") == latest]
        self.left_out = len(given) - len(self.records)
        self.configuration: Mapping[str, Any] = self.records[-1].get("configuration") or {} if self.records else {}
        # A repeated measurement replaces the first.
        self._found = {
            (r["kind"], r["scheme"], r.get("seed"), r.get("length")): r
            for r in self.records
            if "kind" in r and "scheme" in r and r["kind"] != "trial"  # a training has many
        }
        asked = [(r.get("configuration") or {}) for r in self.records]
        # Schemes and seeds can be added to a comparison later, so the configurations of all records are used.
        self.trainings: tuple[tuple[str, int], ...] = _unique(
            (scheme, seed) for c in asked for seed in c.get("seeds", ()) for scheme in c.get("schemes", ())
        ) or _unique((key[1], key[2]) for key in self._found)
        tried = [str(r["scheme"]) for r in self.records if r.get("kind") == "trial"]
        self.schemes = _unique([*(scheme for scheme, _ in self.trainings), *tried])
        self.train_length = int(self.configuration.get("train_length", 0))
        self.test_lengths = tuple(sorted(self.configuration.get("test_lengths", ()))) or self.lengths("windows")
        self.task = task or task_of(str(self.configuration.get("task", "text")))
        # Caches, since figures, tables and sentences need the same numbers many times.
        self._differences: dict[tuple[Any, ...], Estimate | None] = {}
        self._best: dict[tuple[str, int], tuple[str, ...]] = {}

    @property
    def reference(self) -> str:
        """The scheme that the others are compared with: the given one, else nope, else the first."""
        asked = str(self.configuration.get("reference") or "")
        return next((name for name in (asked, "nope", *self.schemes) if name in self.schemes), "")

    @property
    def timed_against(self) -> str:
        """The scheme that the times of training steps are relative to."""
        return next((str(r["relative_to"]) for r in self.records if r.get("relative_to")), self.reference)

    @property
    def kind(self) -> str:
        """The main kind of measurement."""
        return next(iter(self.task.kinds))

    def seeds(self, scheme: str) -> tuple[int, ...]:
        """The seeds that a scheme is trained with, measured or not."""
        return tuple(seed for name, seed in self.trainings if name == scheme)

    def measured(self, scheme: str) -> tuple[int, ...]:
        """The seeds of a scheme with at least one test."""
        tested = (key for key, r in self._found.items() if key[3] is not None and not r.get("diverged"))
        return _unique(key[2] for key in tested if key[1] == scheme)

    def get(self, kind: str, scheme: str, seed: int, length: int | None = None) -> Record | None:
        return self._found.get((kind, scheme, seed, length))

    def of(self, kind: str, scheme: str) -> list[Record]:
        """A scheme's records of a kind, one per seed (and length)."""
        return [record for key, record in self._found.items() if key[:2] == (kind, scheme)]

    def lengths(self, kind: str) -> tuple[int, ...]:
        """The lengths at which some scheme has a record of this kind."""
        return tuple(sorted({key[3] for key in self._found if key[0] == kind and key[3] is not None}))

    def bits(self, kind: str, scheme: str, length: int) -> Estimate | None:
        """Mean bits per byte (or accuracy) over windows and seeds."""
        rows = list(self._rows(kind, scheme, length).values())
        return (_share(rows) if self.task.score == "accuracy" else _estimate(rows)) if rows else None

    def by_seed(self, kind: str, scheme: str, length: int) -> tuple[float, ...]:
        """The mean of each seed, in their order."""
        return tuple(float(row.mean()) for row in self._rows(kind, scheme, length).values())

    def difference(
        self, kind: str, scheme: str, other: str, length: int, kind_of_other: str = "", length_of_other: int = 0
    ) -> Estimate | None:
        """scheme - other in bits per byte, paired over the same windows and the seeds that both have."""
        what = (kind, scheme, other, length, kind_of_other or kind, length_of_other or length)
        if what not in self._differences:
            mine, theirs = self._rows(kind, scheme, length), self._rows(what[4], other, what[5])
            pairs = [(row, theirs[s]) for s, row in mine.items() if s in theirs and len(row) == len(theirs[s])]
            self._differences[what] = _estimate([row - its for row, its in pairs]) if pairs else None
        return self._differences[what]

    def verdict(self, difference: Estimate) -> str:
        """A paired difference in words; empty below three seeds."""
        if not difference.finite:
            return "not finite"
        found = difference.found
        return verdict(found, self.task.margin) if difference.judged and found is not None else ""

    def best(self, kind: str, length: int) -> tuple[str, ...]:
        """The schemes that no other is shown to beat, the best mean first; none with fewer than three seeds or a single
        scheme.

        All pairs are tested with Holm's correction: among equal schemes, one is excluded in at most 5 % of cases.
        """
        if (kind, length) not in self._best:
            self._best[kind, length] = self._unbeaten(kind, length)
        return self._best[kind, length]

    def _unbeaten(self, kind: str, length: int) -> tuple[str, ...]:
        found = {scheme: self.bits(kind, scheme, length) for scheme in self.schemes}
        more_is_better = self.task.higher
        means = {scheme: value.mean for scheme, value in found.items() if value and value.judged}
        pairs = {(a, b): self.difference(kind, a, b, length) for a, b in combinations(means, 2)}
        tested = {pair: gap for pair, gap in pairs.items() if gap and gap.judged}
        if not tested:
            return ()
        shown = holm([float(gap.found.p_value()) for gap in tested.values() if gap.found])
        beaten = {
            a if (gap.mean < 0) == more_is_better else b
            for ((a, b), gap), differs in zip(tested.items(), shown, strict=True)
            if differs
        }
        order = sorted(means, key=means.__getitem__, reverse=more_is_better)
        # Schemes that are never right are not beaten either, where all are alike.
        return tuple(s for s in order if s not in beaten and (means[s] > 0 or not more_is_better))

    def undefined(self, scheme: str, length: int, kind: str = "windows") -> str:
        """Why the scheme has no value at this length; empty where it has one, or was not measured."""
        records = [self.get(kind, scheme, seed, length) for seed in self.seeds(scheme)]
        return next((str(r["undefined"]) for r in records if r and r.get("undefined")), "")

    def diverged(self, scheme: str) -> str:
        """Which of the scheme's trainings diverged: "diverged at step 40", with seeds where not all did, or empty."""
        why = {r["seed"]: str(r["diverged"]) for r in self.of("training", scheme) if r.get("diverged")}
        steps = {seed: words.rpartition("at step ")[2] for seed, words in why.items()}
        if not steps:
            return ""
        if len(steps) == len(self.seeds(scheme)):
            return f"diverged at step {listed(_unique(steps.values()))}"
        return listed(f"diverged at step {step} with seed {seed}" for seed, step in steps.items())

    def no_value(self, scheme: str, length: int, kind: str = "windows") -> str:
        """Why there are no bits, in one word: undefined, diverged, or empty if not measured."""
        if self.undefined(scheme, length, kind):
            return "undefined"
        records = [self.get(kind, scheme, seed, length) for seed in self.seeds(scheme)]
        return "diverged" if any(r and r.get("diverged") for r in records) else ""

    def end(self, scheme: str, kind: str = "windows") -> str:
        """Why the scheme's line stops before the longest length: "undefined past 128", or empty."""
        lengths = self.lengths(kind)
        if not any(self.undefined(scheme, length, kind) for length in lengths):
            return ""
        defined = [length for length in lengths if self.bits(kind, scheme, length)]
        return f"undefined past {defined[-1]:,}" if defined else "undefined at every length"

    def number(self, kind: str, scheme: str, name: str) -> float | None:
        """The median over seeds of a number that each training has."""
        values = [record[name] for record in self.of(kind, scheme) if record.get(name) is not None]
        return float(median(values)) if values else None

    def shown(self, kind: str, scheme: str, name: str, form: str, scale: float = 1) -> str:
        """The number, formatted; empty if there is none."""
        value = self.number(kind, scheme, name)
        return "" if value is None else form.format(value * scale)

    def enough_seeds(self) -> tuple[str, ...]:
        """The schemes that were tested with enough seeds for a verdict."""
        return tuple(scheme for scheme in self.schemes if len(self.measured(scheme)) >= MIN_SEEDS)

    def few_seeds(self) -> tuple[str, ...]:
        """The schemes that were tested with too few seeds for a verdict."""
        return tuple(scheme for scheme in self.schemes if 0 < len(self.measured(scheme)) < MIN_SEEDS)

    def trials(self, scheme: str) -> list["Trial"]:
        """A scheme's trials in their order."""
        found: dict[Any, dict[Any, Record]] = {}
        for record in self.records:
            if record.get("kind") == "trial" and record["scheme"] == scheme:
                found.setdefault(record.get("trial"), {})[record.get("seed")] = record
        return [Trial.of(list(found[number].values())) for number in sorted(found)]

    def begun(self, scheme: str) -> dict[int, int | None]:
        """Of each seed of pieces, the first step from which the use of the source is `BEGUN` or more at `IN_A_ROW`
        points in a row; None without one."""
        found: dict[int, int | None] = {}
        for record in self.of("training", scheme):
            rows = zip(*(record.get("use", ())[n:] for n in range(IN_A_ROW)), strict=False)
            begun = (row[0][0] for row in rows if all(use is not None and use >= BEGUN for _, use in row))
            found[record["seed"]] = next(begun, None)
        return found

    def lacking(self) -> dict[tuple[str, int], str]:
        """The missing measurements of each incomplete training, by scheme and seed."""
        found = {}
        timed = self.configuration.get("timed", True)
        once = {kind: called for kind, called in MEASURED_ONCE.items() if kind != "speed" or timed}
        for scheme, seed in self.trainings:
            parts = [called for kind, called in once.items() if not self.get(kind, scheme, seed)]
            expected: dict[str, list[int]] = {}
            for kind, length in self.plan():
                expected.setdefault(kind, []).append(length)
            for kind, lengths in expected.items():
                gone = [f"{length:,}" for length in lengths if not self.get(kind, scheme, seed, length)]
                at = f" at {listed(gone)} {self.task.lengths}" if len(gone) < len(lengths) else ""
                parts += [self.task.kinds[kind].called + at] if gone else []
            if parts:
                found[scheme, seed] = "everything" if len(parts) == len(once) + len(expected) else "; ".join(parts)
        return found

    def whole(self) -> set[tuple[str, int]]:
        """The trainings, by scheme and seed, that miss no measurement."""
        return set(self.trainings) - set(self.lacking())

    def plan(self) -> list[tuple[str, int]]:
        """The planned measurements of each training."""
        return self.task.plan(self.test_lengths, self.train_length) if self.test_lengths else []

    def missing(self) -> list[str]:
        """The missing measurements in words, one line for the schemes and seeds that miss the same."""
        groups: dict[tuple[int, str], list[str]] = {}
        for (scheme, seed), what in self.lacking().items():
            groups.setdefault((seed, what), []).append(scheme)
        alike: dict[tuple[str, str], list[str]] = {}
        for (seed, what), schemes in groups.items():
            alike.setdefault((listed(map(titled, schemes)), what), []).append(str(seed))
        return [
            f"{schemes}, {'seeds' if seeds[1:] else 'seed'} {listed(seeds)}: {what}"
            for (schemes, what), seeds in alike.items()
        ]

    def _rows(self, kind: str, scheme: str, length: int) -> dict[int, NDArray[np.float64]]:
        """Bits (or accuracy) per window, by seed, in order; NaN where the record has null, which was not finite."""
        found = {seed: self.get(kind, scheme, seed, length) for seed in sorted(self.seeds(scheme))}
        name = self.task.score
        rows = {s: np.array(r[name], dtype=np.float64) for s, r in found.items() if r and r.get(name)}
        # Seeds share their windows; records of earlier versions may have fewer, and cannot be paired.
        most = max((row.size for row in rows.values()), default=0)
        return {seed: row for seed, row in rows.items() if row.size == most}


def multiple(tokens: float, train_length: int) -> str:
    """A length in training lengths: "½×", "8×"; empty without one.

    >>> multiple(64, 128), multiple(192, 128)
    ('½×', '1.5×')
    """
    if not train_length:
        return ""
    times = tokens / train_length
    return {0.5: "½", 0.25: "¼", 0.125: "⅛"}.get(times, f"{times:g}") + "×"


def _estimate(rows: Sequence[NDArray[np.float64]]) -> Estimate:
    values = np.stack(rows)
    seeds, windows = values.shape
    if not np.isfinite(values).all():
        return Estimate(math.nan, math.nan, math.nan, windows, seeds)
    found = mean_of(values)
    mean, half = float(found.mean), float(found.half())
    return Estimate(mean, mean - half, mean + half, windows, seeds, found)


def _share(rows: Sequence[NDArray[np.float64]]) -> Estimate:
    """A share of right answers with an interval within 0 and 1: Wilson's for the answers of one training, and if all
    units have the same value, since there is no variance then."""
    estimate, first = _estimate(rows), rows[0]
    alike = all((row == first[0]).all() for row in rows)
    if estimate.finite and (alike or (len(rows) == 1 and np.isin(first, (0, 1)).all())):
        _, low, high = wilson(round(float(first.sum())), len(first))
    else:
        low, high = max(estimate.low, 0.0), min(estimate.high, 1.0)
    return replace(estimate, low=low, high=high)


def _unique(items: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))
