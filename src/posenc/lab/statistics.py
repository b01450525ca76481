"""How sure a mean is: percentile bootstrap over evaluation windows, and over training seeds where there are several."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Interval(NamedTuple):
    """A mean and the ends of its interval."""

    mean: float
    low: float
    high: float


def mean_interval(values: ArrayLike, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """The mean of ``values`` and its percentile bootstrap interval.

    ``values`` is (windows,), one number per evaluation window, or (seeds, windows), a row per training seed with the
    same windows in every row. Windows and seeds are crossed, so both are drawn anew, each on its own, in every
    resample (the pigeonhole bootstrap of Owen 2007, which errs on the wide side). One seed says nothing of how much
    seeds differ: the interval then covers the choice of text alone.

    >>> mean_interval([2.0, 2.0, 2.0])
    Interval(mean=2.0, low=2.0, high=2.0)

    Raises ValueError for values of another shape, none at all, or a level outside 0 to 1.
    """
    rows = _rows("values", values)
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    rng = np.random.default_rng(seed)
    # A resample is how often each row and each column was drawn, so that all resamples are two matrix products.
    seeds, windows = (rng.multinomial(n, np.full(n, 1 / n), size=resamples) / n for n in rows.shape)
    means = ((seeds @ rows) * windows).sum(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(rows.mean()), float(low), float(high))


def _rows(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(f"{name} must be (windows,) or (seeds, windows) and not empty, got shape {array.shape}")
    return np.atleast_2d(array)
