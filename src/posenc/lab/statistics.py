"""How sure a mean is: percentile bootstrap over evaluation windows, and over training seeds where there are several."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


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
