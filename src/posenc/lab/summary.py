"""From records to numbers: what was measured, what is undefined or diverged, and what is not there.

The figures, the tables and the sentences all read one `Summary`, so they cannot disagree. Nothing here expects a
finished run: a number that is not there is None, and `Summary.missing` says in words which measurement it would be.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from posenc.lab.task import listed
from posenc.lab.tasks import task_of
from posenc.lab.tasks.text import TIE_AT_ONE_SEED

Record = Mapping[str, Any]

# What a training has one of, as a reader calls it.
ONCE = {"training": "training", "speed": "the step time"}


class Interval(NamedTuple):
    mean: float
    low: float
    high: float


def mean_interval(values: ArrayLike, *, resamples: int = 2000) -> Interval:
    """The mean of ``values`` and its 95 % percentile bootstrap interval, by draws that are the same each time.

    ``values`` is (windows,), one number per evaluation window, or (seeds, windows), a row per training seed with the
    same windows in every row. Windows and seeds are crossed, so both are drawn anew, each on its own, in every
    resample (the pigeonhole bootstrap of Owen 2007, which errs on the wide side). One seed says nothing of how much
    seeds differ: the interval then covers the choice of text alone.

    >>> mean_interval([2.0, 2.0, 2.0])
    Interval(mean=2.0, low=2.0, high=2.0)

    Raises ValueError for values of another shape, or none at all.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(f"values must be (windows,) or (seeds, windows) and not empty, got shape {array.shape}")
    rows = np.atleast_2d(array)
    rng = np.random.default_rng(0)
    # A resample is how often each row and each column was drawn, so that all resamples are two matrix products.
    seeds, windows = (rng.multinomial(n, np.full(n, 1 / n), size=resamples) / n for n in rows.shape)
    means = ((seeds @ rows) * windows).sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(rows.mean()), float(low), float(high))


@dataclass(frozen=True)
class Estimate:
    """A mean, in bits per byte or of right answers, with its 95 % interval, over ``windows`` windows and ``seeds``
    trainings."""

    mean: float
    low: float
    high: float
    windows: int
    seeds: int
    noise: float = TIE_AT_ONE_SEED  # the gap under which one seed decides nothing

    @property
    def finite(self) -> bool:
        """False where some window's loss was not a number, or past the largest."""
        return math.isfinite(self.mean)

    @property
    def tie(self) -> bool:
        """For a difference: zero lies in the interval, or there is one seed and the gap is small."""
        return self.low <= 0 <= self.high or (self.seeds == 1 and abs(self.mean) < self.noise)


class Summary:
    """The records of one comparison, asked by kind, scheme and length.

    Where records of several comparisons come, those of the latest count, and ``left_out`` says how many do not.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        given = list(records)
        latest = given[-1].get("fingerprint") if given else None
        self.records: list[Record] = [record for record in given if record.get("fingerprint") == latest]
        self.left_out = len(given) - len(self.records)
        self.configuration: Mapping[str, Any] = self.records[-1].get("configuration") or {} if self.records else {}
        # The latest of equals stands: a measurement made again replaces the first.
        self._found = {
            (r["kind"], r["scheme"], r.get("seed"), r.get("length")): r
            for r in self.records
            if "kind" in r and "scheme" in r
        }
        asked = [(r.get("configuration") or {}) for r in self.records]
        # Schemes and seeds can be added to a comparison later, so each record is asked what its run was to measure.
        self.trainings: tuple[tuple[str, int], ...] = _unique(
            (scheme, seed) for c in asked for seed in c.get("seeds", ()) for scheme in c.get("schemes", ())
        ) or _unique((key[1], key[2]) for key in self._found)
        self.schemes = _unique(scheme for scheme, _ in self.trainings)
        self.train_length = int(self.configuration.get("train_length", 0))
        self.test_lengths = tuple(sorted(self.configuration.get("test_lengths", ()))) or self.lengths("windows")
        self.task = task_of(str(self.configuration.get("task", "text")))

    @property
    def reference(self) -> str:
        """The scheme that the others are compared with: the one without positions, else the first."""
        return "nope" if "nope" in self.schemes else next(iter(self.schemes), "")

    @property
    def timed_against(self) -> str:
        """The scheme whose training step is the unit of the others', trained itself or not."""
        return next((str(r["relative_to"]) for r in self.records if r.get("relative_to")), self.reference)

    def seeds(self, scheme: str) -> tuple[int, ...]:
        """The seeds that a scheme is trained with, measured or not."""
        return tuple(seed for name, seed in self.trainings if name == scheme)

    def measured(self, scheme: str) -> tuple[int, ...]:
        """Those of its seeds at which something was tested."""
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
        """Mean bits per byte (or accuracy) over windows and over the seeds that are there."""
        rows = list(self._rows(kind, scheme, length).values())
        return _estimate(rows, self.task.noise) if rows else None

    def difference(self, kind: str, scheme: str, other: str, length: int, kind_of_other: str = "") -> Estimate | None:
        """scheme - other in bits per byte, paired over the same windows and the seeds that both have."""
        mine, theirs = self._rows(kind, scheme, length), self._rows(kind_of_other or kind, other, length)
        pairs = [(row, theirs[s]) for s, row in mine.items() if s in theirs and len(row) == len(theirs[s])]
        return _estimate([row - its for row, its in pairs], self.task.noise) if pairs else None

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
        """In a word, why there are no bits: undefined, diverged, or empty where it was not measured."""
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
        """A number that each training has one of: the median over seeds."""
        values = [record[name] for record in self.of(kind, scheme) if record.get(name) is not None]
        return float(median(values)) if values else None

    def shown(self, kind: str, scheme: str, name: str, form: str, scale: float = 1) -> str:
        """The same in words; empty where there is none."""
        value = self.number(kind, scheme, name)
        return "" if value is None else form.format(value * scale)

    def over(self, units: str) -> str:
        """What the intervals are over: the units of a test, and seeds where there are several."""
        return f"{units} and over seeds" if any(len(self.measured(s)) > 1 for s in self.schemes) else units

    def one_seed(self) -> str:
        """Which of the schemes that were tested have one seed, in the beginning of a sentence; empty for none."""
        tested = [s for s in self.schemes if self.measured(s)]
        alone = [s for s in tested if len(self.measured(s)) == 1]
        whose = "" if len(alone) == len(tested) else f" of {listed(alone)}"
        return f"There is one seed{whose}: the intervals" if alone else ""

    def lacking(self) -> dict[tuple[str, int], str]:
        """What each training that is not complete lacks, by scheme and seed."""
        found = {}
        for scheme, seed in self.trainings:
            parts = [called for kind, called in ONCE.items() if not self.get(kind, scheme, seed)]
            expected: dict[str, list[int]] = {}
            for kind, length in self.plan(scheme):
                expected.setdefault(kind, []).append(length)
            for kind, lengths in expected.items():
                gone = [f"{length:,}" for length in lengths if not self.get(kind, scheme, seed, length)]
                at = f" at {listed(gone)} {self.task.lengths}" if len(gone) < len(lengths) else ""
                parts += [self.task.kinds[kind].called + at] if gone else []
            if parts:
                found[scheme, seed] = "everything" if len(parts) == len(ONCE) + len(expected) else "; ".join(parts)
        return found

    def plan(self, scheme: str) -> list[tuple[str, int]]:
        """What was to be measured of a training."""
        return self.task.plan(scheme, self.test_lengths, self.train_length) if self.test_lengths else []

    def missing(self) -> list[str]:
        """What is lacking, a line for the schemes that lack the same at a seed."""
        groups: dict[tuple[int, str], list[str]] = {}
        for (scheme, seed), what in self.lacking().items():
            groups.setdefault((seed, what), []).append(scheme)
        return [f"{listed(schemes)}, seed {seed}: {what}" for (seed, what), schemes in groups.items()]

    def _rows(self, kind: str, scheme: str, length: int) -> dict[int, NDArray[np.float64]]:
        """Bits (or accuracy) per window, by seed. One without a finite value came as null, and stays not a number."""
        found = {seed: self.get(kind, scheme, seed, length) for seed in self.seeds(scheme)}
        name = self.task.score
        rows = {s: np.array(r[name], dtype=np.float64) for s, r in found.items() if r and r.get(name)}
        # Seeds share their windows; one cut short by an older version of the lab cannot be paired with the others.
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


def _estimate(rows: Sequence[NDArray[np.float64]], noise: float) -> Estimate:
    values = np.stack(rows)
    seeds, windows = values.shape
    if not np.isfinite(values).all():
        return Estimate(math.nan, math.nan, math.nan, windows, seeds, noise)
    return Estimate(*_interval(values.tobytes(), seeds), windows, seeds, noise)


# A report asks for the same interval a dozen times: in figures, light and dark, in tables and in sentences.
@lru_cache(maxsize=4096)
def _interval(values: bytes, seeds: int) -> Interval:
    return mean_interval(np.frombuffer(values).reshape(seeds, -1))


def _unique(items: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))
