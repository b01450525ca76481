"""What the records of the puzzles say: who solves each of them, and whether a published order of schemes is found."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from posenc_lab.compare.puzzle import Recall
from study.findings import PUBLISHED, Part, records, summary

MIN_SHARE_SOLVED = 0.05  # with fewer rows right, by every scheme, there is no order
DRAWS = 2000  # of seeds, for the intervals of mean reciprocal ranks


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

    def solvers(self, length: int) -> list[str]:
        """The schemes with which half of the seeds solve it, or more."""
        return [s for s in self.summary.schemes if 2 * self.solved(s, length) >= len(self.shares(s, length)) > 0]


def task(name: str, seeds: int) -> Task:
    """The puzzle with its records. ValueError where some are missing."""
    return Task(name, summary(name, records(name)), seeds).whole()


class Place(NamedTuple):
    """A scheme's mean reciprocal rank, published and found, with its 95 % interval over seeds."""

    scheme: str
    published: float
    found: float
    low: float
    high: float


class Order(NamedTuple):
    """Schemes by their published mean reciprocal rank, the best first; where theirs were found: (puzzle, length) with
    at least one scheme that is right in `MIN_SHARE_SOLVED` of the rows, and those without; whether both orders agree,
    without ties."""

    places: list[Place]
    ranked: list[tuple[str, int]]
    unranked: list[tuple[str, int]]
    reproduced: bool


def order(tasks: Sequence[Task]) -> Order:
    """Of the puzzles of the paper, at longer rows than in training."""
    ranks = PUBLISHED["ranks"]
    asked = [each for each in tasks if each.name in PUBLISHED["ranked"]]
    places = [(each, length) for each in asked for length in each.lengths[1:]]
    shares = {(each.name, n): np.array([each.shares(scheme, n) for scheme in ranks]) for each, n in places}
    ranked = [place for place, found in shares.items() if found.mean(1).max() >= MIN_SHARE_SOLVED]
    seeds = np.random.default_rng(0).integers(asked[0].seeds, size=(DRAWS, asked[0].seeds))
    drawn = np.stack([_reciprocal([shares[place][:, its] for place in ranked]) for its in seeds])
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    found = _reciprocal([shares[place] for place in ranked])
    made = [Place(*each) for each in zip(ranks, ranks.values(), found, low, high, strict=True)]
    reproduced = all(first.found > second.found for first, second in pairwise(made))
    return Order(made, ranked, [place for place in shares if place not in ranked], reproduced)


def _reciprocal(shares: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The mean reciprocal rank of each scheme from shares (schemes, seeds); schemes with the same mean share a rank."""
    return np.mean([1 / rankdata(-each.mean(1)) for each in shares], axis=0)
