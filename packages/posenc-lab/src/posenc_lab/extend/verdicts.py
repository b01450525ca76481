"""Tests paired differences between scalings, in bits on the same pieces of text."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import stdtrit

from posenc_lab.kit.statistics import LEVEL, Interval, mean_interval, mean_of, verdict

MARGIN = 0.02  # bits per byte: differences surely smaller than this are ties
# If a third of the text has some property, 8 random pieces all lack it in 4 of 100 cases, and 7 in 6. So fewer than 8
# give no verdict.
LEAST_PIECES = 8
TOO_FEW = "too few pieces to say"


class Gain(NamedTuple):
    """A paired difference in bits per byte; below 0, the scaling does better.

    ``verdict`` is "lower" or "higher" if the 95 % interval excludes zero; "tied" if two one-sided tests at 5 % place
    the difference within ±`MARGIN`; with both, "lower, within the margin"; else "undecided"; "not finite"; or `TOO_FEW`
    for fewer than `LEAST_PIECES`. ``needed`` is the approximate number of pieces for an interval of ±`MARGIN`, if they
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
    word = verdict(found, MARGIN) if len(values) >= LEAST_PIECES else TOO_FEW
    needed = None
    if word in (TOO_FEW, "undecided") and len(values) > 1:
        needed = max(pieces_needed(float(found.error) * math.sqrt(len(values))), LEAST_PIECES)
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
