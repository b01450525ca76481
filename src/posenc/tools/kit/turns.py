"""Timing in turns: every competitor once a round, in an order drawn anew, and what the rounds say of a ratio.

What is compared is the ratio of two times of the same round, so that a machine that is busy for a while slows both.
Since which of two comes first is a toss of a coin in every round, whatever befalls the machine is as likely to slow
one as the other: the rounds' ratios are above the true one in half of the rounds, each round for itself, however the
machine's noise hangs together. `spread` needs no more. A fixed order would not do: what comes at every other call, or
a load that rises while a round lasts, slows the same competitor each time.

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
"""A median, and the ends of the interval that it is known to lie in."""

UNSURE = 10  # an interval is to hold the true median in all but one of so many cases
FEWEST = 5  # values: all of four hold the median in 7 of 8 cases only


def orders(names: Sequence[str], seed: int | str) -> Iterator[tuple[str, ...]]:
    """The order of each round, without end: a fresh permutation of all names, the same for the same ``seed``."""
    rng = random.Random(seed)
    while True:
        yield tuple(rng.sample(names, len(names)))


def spread(values: Sequence[float]) -> Spread:
    """The median, and the interval from the k-th smallest to the k-th largest value, with the largest k that makes it
    hold the true median in 9 of 10 cases, whatever the values are drawn from. Fewer than 5 have no such interval: of
    these all, which hold it in less.

    ``values`` are in the order they were measured. Where neighbours are alike, as when one competitor is slow for some
    rounds and the others are not, n values say no more than n (1 - r) / (1 + r) that know nothing of one another, by
    the lag-one correlation r of being above the median (as of a first-order autoregression); k is then that of so many.

    >>> spread([4.0, 1.0, 2.0, 5.0, 3.0])
    (3.0, 1.0, 5.0)
    >>> spread([4.0, 8.0, 2.0, 6.0, 1.0, 5.0, 3.0, 7.0])
    (4.5, 2.0, 7.0)
    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])  # they rise: 8 of these say as much as one
    (4.5, 1.0, 8.0)
    """
    ordered, count, middle = sorted(values), len(values), statistics.median(values)
    independent = _independent([(value > middle) - (value < middle) for value in values])
    # The median is below the k-th smallest if k - 1 or fewer of the values are below the median, as of coins tossed.
    left_out, outside = 0, 1
    while 2 * (outside := outside + math.comb(independent, left_out + 1)) * UNSURE <= 2**independent:
        left_out += 1
    left_out = left_out * count // max(independent, 1)
    return middle, ordered[left_out], ordered[-1 - left_out]


def ratios(seconds: Sequence[float], baseline: Sequence[float]) -> Spread:
    """Of the times of a competitor over those of the baseline, round by round.

    >>> ratios([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    (2.0, 2.0, 3.0)
    """
    return spread([mine / its for mine, its in zip(seconds, baseline, strict=True)])


def _independent(sides: Sequence[int]) -> int:
    """How many values that know nothing of one another say as much as these, of which each is above (1), at (0) or
    below (-1) the median."""
    alike = sum(one * other for one, other in pairwise(sides)) / max(len(sides) - 1, 1)
    correlation = max(0.0, alike)  # where neighbours differ the interval is wide enough as it is
    return math.floor(len(sides) * (1 - correlation) / (1 + correlation))
