"""Compares times of interleaved rounds, each of which runs every competitor once, in random order.

Two times of the same round are compared as a ratio, so that a machine that is busy for a while slows both. Since their
order is random in every round, noise is equally likely to slow either: each round's ratio exceeds the true one with
probability one half, independently, even if the noise is autocorrelated. `spread` needs no more. In a fixed order,
noise with a period of a few calls, or a load that rises during a round, would always slow the same competitor.

>>> order = orders(("plain", "ours"), seed=0)
>>> next(order), next(order), next(order)
(('ours', 'plain'), ('plain', 'ours'), ('ours', 'plain'))
"""

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

Spread: TypeAlias = tuple[float, float, float]
"""A median, and the ends of its confidence interval."""

CASES_PER_MISS = 10  # an interval contains the true median in all but one of so many cases
MIN_VALUES = 5  # values for an interval: the range of four contains the median in only 7 of 8 cases


def orders(names: Sequence[str], seed: int | str) -> Iterator[tuple[str, ...]]:
    """Yields the order of each round: a random permutation of all names, the same for the same ``seed``."""
    rng = random.Random(seed)
    while True:
        yield tuple(rng.sample(names, len(names)))


def spread(values: Sequence[float]) -> Spread:
    """The median and its distribution-free 90 % confidence interval, from the k-th smallest to the k-th largest value
    with the largest such k. Fewer than 5 values have no 90 % interval; then it is their range.

    ``values`` are in the order they were measured. If neighbours are correlated, as when one competitor is slow for
    some rounds, n values count as n (1 - r) / (1 + r) independent ones, where r is the lag-one autocorrelation of being
    above the median (as in a first-order autoregression); k is that of this number.

    >>> spread([4.0, 1.0, 2.0, 5.0, 3.0])
    (3.0, 1.0, 5.0)
    >>> spread([4.0, 8.0, 2.0, 6.0, 1.0, 5.0, 3.0, 7.0])
    (4.5, 2.0, 7.0)
    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])  # they rise: 8 of these say as much as one
    (4.5, 1.0, 8.0)
    """
    ordered, count, middle = sorted(values), len(values), statistics.median(values)
    independent = _independent([(value > middle) - (value < middle) for value in values])
    # The number of values below the median is binomial: each is below it with probability one half.
    left_out, outside = 0, 1
    while 2 * (outside := outside + math.comb(independent, left_out + 1)) * CASES_PER_MISS <= 2**independent:
        left_out += 1
    left_out = left_out * count // max(independent, 1)
    return middle, ordered[left_out], ordered[-1 - left_out]


def ratios(seconds: Sequence[float], baseline: Sequence[float]) -> Spread:
    """The times of a competitor divided by those of the baseline, round by round. ValueError for a time of 0, of a
    clock that stood still.

    >>> ratios([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    (2.0, 2.0, 3.0)
    """
    if not all(baseline):
        raise ValueError("times of the baseline must be above 0 s, got 0: the clock stood still, so measure again")
    return spread([mine / its for mine, its in zip(seconds, baseline, strict=True)])


def _independent(sides: Sequence[int]) -> int:
    """The effective number of independent values; each value is above (1), at (0) or below (-1) the median."""
    alike = sum(one * other for one, other in pairwise(sides)) / max(len(sides) - 1, 1)
    correlation = max(0.0, alike)  # a negative correlation only makes the interval conservative
    return math.floor(len(sides) * (1 - correlation) / (1 + correlation))
