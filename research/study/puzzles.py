"""What the records of the puzzles say: who solves each of them, and whether a published order of schemes is found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from posenc_lab.kit.statistics import wilson
from study.findings import PUBLISHED, Finished, Part, puzzle_of, records, summary

MIN_SHARE_SOLVED = 0.05  # with fewer rows right, by every scheme, there is no order
DRAWS = 2000  # of seeds, for the intervals of mean reciprocal ranks


class Task(Part):
    """A puzzle."""

    @property
    def puzzle(self) -> Finished:
        return puzzle_of(self.name)

    @property
    def called(self) -> str:
        """What a row is."""
        return self.puzzle.called[0].upper() + self.puzzle.called[1:]

    @property
    def published(self) -> str:
        """What was published of it, in words."""
        return str(PUBLISHED[self.name])

    @property
    def lengths(self) -> tuple[int, ...]:
        """The trained length, then longer ones."""
        return self.puzzle.test_lengths

    def shares(self, scheme: str, length: int) -> tuple[float, ...]:
        """The share of right rows of each seed."""
        return self.summary.by_seed("accuracy", scheme, length)

    def solved(self, scheme: str, length: int) -> int:
        """The number of seeds that solve it."""
        return sum(share >= self.puzzle.solved for share in self.shares(scheme, length))

    @property
    def solvers(self) -> list[tuple[int, list[str]]]:
        """At every length, the schemes with which half of the seeds solve it, or more."""

        def half(scheme: str, length: int) -> bool:
            return 2 * self.solved(scheme, length) >= len(self.shares(scheme, length)) > 0

        return [(length, [s for s in self.summary.schemes if half(s, length)]) for length in self.lengths]

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """The tested schemes with a cell for each length, those first that the most seeds solve at the longest rows."""

        def solved(scheme: str) -> list[float]:
            return [self.solved(scheme, n) / max(len(self.shares(scheme, n)), 1) for n in reversed(self.lengths)]

        tested = sorted(filter(self.summary.measured, self.summary.schemes), key=solved, reverse=True)
        return [(scheme, [self._cell(scheme, n) for n in self.lengths]) for scheme in tested]

    def _cell(self, scheme: str, length: int) -> str:
        """The seeds that solve it, bold if half do, the interval of their share, and the mean share of right rows."""
        shares = self.shares(scheme, length)
        if not shares:
            return self.summary.no_value(scheme, length, "accuracy") or "–"
        right = self.solved(scheme, length)
        _, low, high = (f"{n:.2f}" for n in wilson(right, len(shares)))
        bold = "**" * (2 * right >= len(shares))
        return f"{bold}{right} of {len(shares)}{bold} ({low} to {high}), {np.mean(shares):.2f}".replace("0.", ".")


def task(name: str, seeds: int) -> Task:
    """The puzzle with its records."""
    return Task(name, summary(name, records(name)), seeds)


@dataclass(frozen=True)
class Place:
    """A scheme's mean reciprocal rank, published and found, with its 95 % interval over seeds."""

    scheme: str
    published: float
    found: float
    low: float
    high: float


@dataclass(frozen=True)
class Order:
    """Schemes by their published mean reciprocal rank, the best first, and where theirs were found: (puzzle, length)
    with at least one scheme that is right in `MIN_SHARE_SOLVED` of the rows, and those without."""

    places: list[Place]
    ranked: list[tuple[str, int]]
    unranked: list[tuple[str, int]]

    @property
    def found(self) -> list[str]:
        """The schemes by the rank that was found."""
        return [place.scheme for place in sorted(self.places, key=lambda place: -place.found)]

    @property
    def reproduced(self) -> bool:
        """Whether that is the published order, without ties."""
        return all(first.found > second.found for first, second in pairwise(self.places))


def order(tasks: Sequence[Task]) -> Order | None:
    """Of the puzzles of the paper, at longer rows than in training; None while some of them are not complete, where
    trainings diverged, and where no row is ranked."""
    ranks = PUBLISHED["ranks"]
    asked = [each for each in tasks if each.name in PUBLISHED["ranked"]]
    if not all(each.complete for each in asked) or len(asked) < len(PUBLISHED["ranked"]):
        return None
    places = [(each, length) for each in asked for length in each.lengths[1:]]
    known = {(each.name, n): [each.shares(scheme, n) for scheme in ranks] for each, n in places}
    if any(len(share) < asked[0].seeds for found in known.values() for share in found):
        return None
    shares = {place: np.array(found) for place, found in known.items()}
    ranked = [place for place, found in shares.items() if found.mean(1).max() >= MIN_SHARE_SOLVED]
    if not ranked:
        return None
    drawn = np.stack([_reciprocal([shares[place][:, seeds] for place in ranked]) for seeds in _draws(asked[0].seeds)])
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    found = _reciprocal([shares[place] for place in ranked])
    made = [Place(*each) for each in zip(ranks, ranks.values(), found, low, high, strict=True)]
    return Order(made, ranked, [place for place in shares if place not in ranked])


def _draws(seeds: int) -> Iterator[NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    return (rng.integers(seeds, size=seeds) for _ in range(DRAWS))


def _reciprocal(shares: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The mean reciprocal rank of each scheme from shares (schemes, seeds); schemes with the same mean share a rank."""
    return np.mean([1 / rankdata(-each.mean(1)) for each in shares], axis=0)
