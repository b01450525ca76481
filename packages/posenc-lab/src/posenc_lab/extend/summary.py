"""Turns the records of an extension into numbers, and lists what is missing."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from posenc_lab.extend.settings import CROPPED, PLAIN, PUZZLES, TASKS, Extension
from posenc_lab.extend.verdicts import Gain, Paired, gain_of, interval_of
from posenc_lab.kit.statistics import Interval

Record = Mapping[str, Any]
STRETCHES = 8  # intervals of a piece over which the loss by position is averaged


class Summary:
    """The records of one extension, asked by kind, scaling and length."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)
        self.configuration: Mapping[str, Any] = self.records[-1]["configuration"] if self.records else {}
        self.trained = int(self.configuration.get("trained_length", 0))
        self.scalings = tuple(dict.fromkeys(r["scheme"] for r in self.records if r["scheme"] != CROPPED))
        self.lengths = self.lengths_of("final", *PUZZLES)
        self._rows: dict[tuple[str, str, int], dict[int, Record]] = {}
        for r in self.records:
            self._rows.setdefault((r["kind"], r["scheme"], r["length"]), {})[r["seed"]] = r

    def lengths_of(self, *kinds: str) -> tuple[int, ...]:
        """The lengths at which a scaling was measured."""
        return tuple(sorted({r["length"] for r in self.records if r["kind"] in kinds and r["scheme"] != CROPPED}))

    # What lines are drawn of.
    @property
    def schemes(self) -> tuple[str, ...]:
        return self.scalings

    @property
    def train_length(self) -> int:
        return self.trained

    @property
    def test_lengths(self) -> tuple[int, ...]:
        return self.lengths

    def rows(self, kind: str, scaling: str, length: int) -> dict[int, Record]:
        """Records by the number of the piece or puzzle."""
        return self._rows.get((kind, scaling, length), {})

    def bits(self, scaling: str, length: int) -> Interval | None:
        """Mean bits per byte of the final tokens over the pieces, with a 95 % interval."""
        return interval_of([r["bits"] for r in self.rows("final", scaling, length).values()])

    def cropped(self) -> Interval | None:
        return self.bits(CROPPED, self.trained)

    def dashed(self) -> Interval | None:
        """The cropped baseline, if it is finite."""
        found = self.cropped()
        return found if found and math.isfinite(found.mean) else None

    def baseline(self, scaling: str) -> str:
        """What a scaling is compared with beyond the trained length: the unscaled model on cropped text, or, if
        fine-tuned, itself on cropped text."""
        return scaling if self.configuration.get("train") else CROPPED

    def gain(self, scaling: str, length: int, other: str = "") -> Gain | None:
        """Bits per byte minus those of its baseline on text cropped to the trained length (or of another scaling at
        this length), paired over the same pieces; below 0, the scaling does better."""
        mine = self.rows("final", scaling, length)
        theirs = self.rows("final", other or self.baseline(scaling), length if other else self.trained)
        both = [(mine[n]["bits"], theirs[n]["bits"]) for n in mine if n in theirs]
        return gain_of([None if a is None or b is None else a - b for a, b in both]) if both else None

    @property
    def plain(self) -> str:
        """The recorded name of the scaling none; empty if it was not measured."""
        return next((s for s in self.scalings if s.partition(",")[0] == PLAIN), "")

    def against_plain(self, kind: str, scaling: str, length: int) -> Paired | None:
        """A scaling compared with none on the same puzzles; None for none itself or without common puzzles."""
        mine, theirs = self.rows(kind, scaling, length), self.rows(kind, self.plain, length)
        both = [(mine[n]["found"], theirs[n]["found"]) for n in mine if n in theirs]
        if scaling == self.plain or not both:
            return None
        return Paired(sum(a > b for a, b in both), sum(b > a for a, b in both))

    def pieces(self) -> dict[int, tuple[str, int]]:
        """The file and byte offset of each piece of text, by its number."""
        return {
            r["seed"]: (r["file"], r["byte"]) for r in self.records if r["kind"] == "final" and r["scheme"] != CROPPED
        }

    def found(self, kind: str, scaling: str, length: int, depth: int | None = None) -> tuple[int, int] | None:
        """How many puzzles were solved, of how many; None if there were none."""
        rows = [r for r in self.rows(kind, scaling, length).values() if depth is None or r["depth"] == depth]
        return (sum(r["found"] for r in rows), len(rows)) if rows else None

    def answer_bits(self, kind: str, scaling: str, length: int) -> Interval | None:
        """The loss of the whole answer."""
        return interval_of([r["bits"] for r in self.rows(kind, scaling, length).values()])

    def depths(self, kind: str) -> tuple[int, ...]:
        return tuple(sorted({r["depth"] for r in self.records if r["kind"] == kind}))

    def by_position(self, scaling: str) -> list[tuple[float, Interval]]:
        """Bits per token in each of `STRETCHES` equal parts of the longest pieces, at its middle.

        A bucket belongs to the part that contains its middle, weighted by its width. Single buckets are means of few
        tokens, too noisy and too many to plot.
        """
        rows = list(self.rows("by_position", scaling, self.lengths[-1]).values()) if self.lengths else []
        parts: dict[int, list[tuple[int, int, int]]] = {}
        for n, (a, b) in enumerate(pairwise(rows[0]["edges"] if rows else ())):
            parts.setdefault((a + b) * STRETCHES // (2 * self.lengths[-1]), []).append((n, a, b))
        found = []
        for buckets in parts.values():
            value = interval_of([_mean([(r["bits"][n], b - a) for n, a, b in buckets]) for r in rows])
            if value is not None:
                found.append(((buckets[0][1] + buckets[-1][2]) / 2, value))
        return found

    def kinds(self) -> tuple[str, ...]:
        """The kinds of puzzles that were measured."""
        return tuple(kind for kind in PUZZLES if any(r["kind"] == kind for r in self.records))

    def asked(self) -> Extension:
        """The settings of all runs together, since some may have been added later."""

        def every(name: str) -> set[Any]:
            return {value for r in self.records for value in r["configuration"][name]}

        tasks = every("tasks")
        return Extension(
            **{
                **self.configuration,
                "scalings": tuple(dict.fromkeys(s for r in self.records for s in r["configuration"]["scalings"])),
                "lengths": tuple(every("lengths")),
                "tasks": tuple(task for task in TASKS if task in tasks),
                "depths": tuple(every("depths")),
                "trials": max(r["configuration"]["trials"] for r in self.records),
            }
        )

    def missing(self) -> list[str]:
        """The missing measurements of each scaling and of the baseline, in words."""
        asked, lines = self.asked(), []
        for scaling in (*asked.scalings, CROPPED):
            name, there, gone = asked.name(scaling), Counter[tuple[str, int]](), Counter[tuple[str, int]]()
            for kind, number, length in asked.plan(scaling):
                found = number in self.rows(kind, name, length)
                (there if found else gone)[kind, length] += 1
            if gone:
                parts = [
                    f"{kind} at {n:,} ({there[kind, n]} of {there[kind, n] + count})"
                    for (kind, n), count in gone.items()
                ]
                lines.append(f"{name}: {', '.join(parts)}")
        return lines


def _mean(weighted: Sequence[tuple[float | None, int]]) -> float | None:
    """The weighted mean; None if some value is None."""
    total = 0.0
    for value, weight in weighted:
        if value is None:
            return None
        total += value * weight
    return total / sum(weight for _, weight in weighted)
