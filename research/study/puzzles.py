"""What the records of the puzzles say: who solves each of them, and whether a published order of schemes is found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from posenc_lab.compare.puzzle import Recall
from study.findings import PUBLISHED, Part, label, records, summary

MIN_SHARE_SOLVED = 0.05  # with fewer rows right, by every scheme, there is no order


class Task(Part):
    """A puzzle."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """The trained length, then longer ones."""
        return self.summary.test_lengths

    def shares(self, scheme: str, length: int) -> tuple[float, ...]:
        """The share of right rows of each seed."""
        return self.summary.by_seed("accuracy", scheme, length)

    def solved(self, scheme: str, length: int) -> int:
        """The number of seeds that solve it."""
        return sum(share >= Recall.solved for share in self.shares(scheme, length))

    def counts(self, length: int) -> str:
        """The number of seeds that solve it, with each scheme with which some do."""
        found = ((label(scheme), self.solved(scheme, length)) for scheme in self.summary.schemes)
        return ", ".join(f"{scheme} {count}" for scheme, count in found if count) or "none"

    def solvers(self, length: int) -> list[str]:
        """The schemes with which half of the seeds solve it, or more."""
        return [s for s in self.summary.schemes if 2 * self.solved(s, length) >= len(self.shares(s, length)) > 0]


def task(name: str, seeds: int) -> Task:
    """The puzzle with its records. ValueError where some are missing."""
    return Task(name, summary(name, records(name)), seeds).whole()


def order(tasks: Sequence[Task]) -> tuple[dict[str, float], list[tuple[str, int]]]:
    """The mean reciprocal rank of each scheme of the paper on its puzzles, at longer rows than in training, where some
    scheme is right in `MIN_SHARE_SOLVED` of them; and these places, as (puzzle, length). Schemes with the same share of
    right rows share a rank."""
    places = [(of, n) for of in tasks if of.name in PUBLISHED["ranked"] for n in of.lengths[1:]]
    shares = {(of.name, n): [np.mean(of.shares(scheme, n)) for scheme in PUBLISHED["ranks"]] for of, n in places}
    shares = {place: each for place, each in shares.items() if max(each) >= MIN_SHARE_SOLVED}
    ranks = np.mean([1 / rankdata(np.negative(each)) for each in shares.values()], axis=0)
    return dict(zip(PUBLISHED["ranks"], ranks.tolist(), strict=True)), [*shares]
