"""Checks the records of an extension, turns them into numbers, and lists what is missing.

The records by kind, where ``seed`` is the number of the piece of text:

    final        bits (per byte of the last tokens), tokens (scored), file and byte of it at which the piece begins
    by_position  edges of the buckets, bits (per token, of each bucket)

Every record also has ``configuration``, ``text``, ``model``, the facts of its ``card``, ``versions`` and ``machine``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from posenc_lab.extend.settings import CROPPED, Extension
from posenc_lab.extend.verdicts import Gain, gain_of, interval_of
from posenc_lab.kit.files import require
from posenc_lab.kit.statistics import Interval

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
