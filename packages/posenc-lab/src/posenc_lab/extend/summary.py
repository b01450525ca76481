"""Checks the records of an extension, turns them into numbers, and lists what is missing.

The records by kind, where ``seed`` is the number of the piece of text:

    final        bits (per byte of the last tokens), tokens (scored), file and byte of it at which the piece begins
    by_position  edges of the buckets, bits (per token, of each bucket)

Every record also has ``configuration``, ``text``, ``model``, the facts of its ``card``, ``versions`` and ``machine``.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from scipy.special import stdtrit

from posenc_lab.extend.settings import CROPPED, Extension
from posenc_lab.kit.files import require
from posenc_lab.kit.statistics import LEVEL, Interval, mean_interval, mean_of, verdict

MARGIN = 0.02  # bits per byte: differences surely smaller than this are ties
# If a third of the text has some property, 8 random pieces all lack it in 4 of 100 cases, and 7 in 6. So fewer than 8
# give no verdict.
MIN_PIECES = 8
TOO_FEW = "too few pieces to say"


class Gain(NamedTuple):
    """A paired difference in bits per byte; below 0, the scaling does better.

    ``verdict`` is "lower" or "higher" if the 95 % interval excludes zero; "tied" if two one-sided tests at 5 % place
    the difference within ±`MARGIN`; with both, "lower, within the margin"; else "undecided"; "not finite"; or `TOO_FEW`
    for fewer than `MIN_PIECES`. ``needed`` is the approximate number of pieces for an interval of ±`MARGIN`, if they
    are too few or it is undecided; None if more pieces would not help, or with a single piece."""

    mean: float
    low: float
    high: float
    verdict: str
    needed: int | None


def gain_of(differences: Sequence[float | None]) -> Gain:
    """The gain over one or more pieces; None stands for a value that was not finite."""
    values = [x for x in differences if x is not None]
    if len(values) < len(differences):
        return Gain(math.nan, math.nan, math.nan, "not finite", None)
    found = mean_of([values])
    word = verdict(found, MARGIN) if len(values) >= MIN_PIECES else TOO_FEW
    needed = None
    if word in (TOO_FEW, "undecided") and len(values) > 1:
        needed = max(pieces_needed(float(found.error) * math.sqrt(len(values))), MIN_PIECES)
        needed = needed if needed > len(values) else None
    return Gain(*mean_interval(values), word, needed)


def pieces_needed(deviation: float) -> int:
    """The number of pieces for which half the 95 % interval of a mean is at most `MARGIN`, given the standard
    deviation: the least n with t(n - 1) deviation / sqrt(n) <= `MARGIN`, rounded up to two digits, since the deviation
    of few pieces is known no better.

    >>> pieces_needed(0.05), pieces_needed(0.2)
    (27, 390)
    """
    count = 2
    while stdtrit(count - 1, (1 + LEVEL) / 2) * deviation > MARGIN * math.sqrt(count):
        # The normal distribution's n is a lower bound, since Student's t is wider.
        count = max(count + 1, math.floor((1.959 * deviation / MARGIN) ** 2))
    unit = 10 ** max(0, len(str(count)) - 2)
    return -(-count // unit) * unit


def interval_of(values: Sequence[float | None]) -> Interval | None:
    """The mean with its 95 % interval by Student's t; NaN if some value was not finite, None without values."""
    if not values:
        return None
    known = [x for x in values if x is not None]
    return mean_interval(known) if len(known) == len(values) else Interval(math.nan, math.nan, math.nan)


Record = Mapping[str, Any]
STRETCHES = 8  # intervals of a piece over which the loss by position is averaged

SHARED = {
    "seed": int,
    "length": int,
    "configuration": dict,
    "text": dict,
    "model": str,
    "card": str,
    "versions": dict,
    "machine": dict,
}
KINDS: dict[str, Mapping[str, Any]] = {
    "final": {"bits": float | None, "tokens": int, "file": str, "byte": int},
    "by_position": {"edges": list[int], "bits": list[float | None]},
}


def check(record: Record) -> None:
    """ValueError for a record with a missing field or one of another type."""
    expected = KINDS.get(record["kind"])
    if expected is None:
        raise ValueError(f"its kind is {record['kind']!r}")
    require(record, {**SHARED, **expected})


class Summary:
    """The records of one extension, asked by kind, scaling and length."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)
        self.configuration: Mapping[str, Any] = self.records[-1]["configuration"] if self.records else {}
        # What lines are drawn of.
        self.train_length = int(self.configuration.get("trained_length", 0))
        self.schemes = tuple(dict.fromkeys(r["scheme"] for r in self.records if r["scheme"] != CROPPED))
        final = [r for r in self.records if r["kind"] == "final" and r["scheme"] != CROPPED]
        self.test_lengths = tuple(sorted({r["length"] for r in final}))
        self.pieces: dict[int, tuple[str, int]] = {r["seed"]: (r["file"], r["byte"]) for r in final if "file" in r}
        self._rows: dict[tuple[str, str, int], dict[int, Record]] = {}
        for r in self.records:
            self._rows.setdefault((r["kind"], r["scheme"], r["length"]), {})[r["seed"]] = r

    @property
    def longer(self) -> list[int]:
        """The lengths beyond the trained one."""
        return [length for length in self.test_lengths if length > self.train_length]

    def rows(self, kind: str, scaling: str, length: int) -> dict[int, Record]:
        """Records by the number of the piece."""
        return self._rows.get((kind, scaling, length), {})

    def bits(self, scaling: str, length: int) -> Interval | None:
        """Mean bits per byte of the final tokens over the pieces, with a 95 % interval."""
        return interval_of([r["bits"] for r in self.rows("final", scaling, length).values()])

    def cropped(self) -> Interval | None:
        """That of the baseline: the unscaled model on text cropped to the trained length."""
        return self.bits(CROPPED, self.train_length)

    def gain(self, scaling: str, length: int, other: str = "") -> Gain | None:
        """Bits per byte minus those of the baseline (or of another scaling at this length), paired over the same
        pieces; below 0, the scaling does better."""
        mine = self.rows("final", scaling, length)
        theirs = self.rows("final", other or CROPPED, length if other else self.train_length)
        both = [(mine[n]["bits"], theirs[n]["bits"]) for n in mine if n in theirs]
        return gain_of([None if a is None or b is None else a - b for a, b in both]) if both else None

    def by_position(self, scaling: str) -> list[tuple[float, Interval]]:
        """Bits per token in each of `STRETCHES` equal parts of the longest pieces, at its middle.

        A bucket belongs to the part that contains its middle, weighted by its width. Single buckets are means of few
        tokens, too noisy and too many to plot.
        """
        longest = max(self.test_lengths, default=0)
        rows = list(self.rows("by_position", scaling, longest).values())
        parts: dict[int, list[tuple[int, int, int]]] = {}
        for n, (a, b) in enumerate(pairwise(rows[0]["edges"] if rows else ())):
            parts.setdefault((a + b) * STRETCHES // (2 * longest), []).append((n, a, b))
        found = []
        for buckets in parts.values():
            value = interval_of([_mean([(r["bits"][n], b - a) for n, a, b in buckets]) for r in rows])
            if value is not None:
                found.append(((buckets[0][1] + buckets[-1][2]) / 2, value))
        return found

    def asked(self) -> Extension:
        """The settings of all runs together, since some may have been added later."""
        every = {
            name: tuple(dict.fromkeys(value for r in self.records for value in r["configuration"][name]))
            for name in ("scalings", "lengths")
        }
        return Extension(**{**self.configuration, **every})

    def missing(self) -> list[str]:
        """The missing measurements of each scaling and of the baseline, in words."""
        asked, lines = self.asked(), []
        for scaling in (*asked.scalings, CROPPED):
            planned, gone = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
            for kind, number, length in asked.plan(scaling):
                planned[kind, length] += 1
                gone[kind, length] += number not in self.rows(kind, scaling, length)
            if parts := [
                f"{kind} at {n:,} ({planned[kind, n] - count} of {planned[kind, n]})"
                for (kind, n), count in gone.items()
                if count
            ]:
                lines.append(f"{scaling}: {', '.join(parts)}")
        return lines


def _mean(weighted: Sequence[tuple[float | None, int]]) -> float | None:
    """The weighted mean; None if some value is None."""
    total = 0.0
    for value, weight in weighted:
        if value is None:
            return None
        total += value * weight
    return total / sum(weight for _, weight in weighted)
