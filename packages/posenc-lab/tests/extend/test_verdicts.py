"""What is said of paired differences, and how often that is wrong."""

import math

import numpy as np
import pytest

from posenc_lab.extend.summary import MIN_PIECES, TOO_FEW, Gain, gain_of, interval_of


def some(mean: float, deviation: float, count: int) -> list[float]:
    """Values of just this mean and standard deviation."""
    values = np.linspace(-1, 1, count)
    return list(mean + deviation * values / values.std(ddof=1))


def quantile(freedom: int) -> float:
    """The 97.5 % point of Student's t, by scipy.stats, which takes most of a second to import."""
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


@pytest.mark.parametrize("count", [2, 4, MIN_PIECES - 1])
def test_few_pieces_give_numbers_and_no_verdict(count: int) -> None:
    for mean, deviation in ((0.0, 0.0001), (-3.0, 0.01)):
        found = gain_of(some(mean, deviation, count))
        assert found.verdict == TOO_FEW
        half = quantile(count - 1) * deviation / math.sqrt(count)
        assert found[:3] == pytest.approx((mean, mean - half, mean + half))


def test_verdicts_are_by_the_interval_and_the_margin() -> None:
    # Of 16 pieces the interval is mean ± .5329 deviations (95 %), and ± .4383 (90 %).
    for mean, deviation, said in (
        (-0.060, 0.10, "lower"),
        (0.060, 0.10, "higher"),
        (0.050, 0.10, "undecided"),
        (0.010, 0.022, "tied"),
        (0.010, 0.024, "undecided"),
        (-0.010, 0.018, "lower, within the margin"),
        (0.0, 0.045, "tied"),
        (0.0, 0.046, "undecided"),
    ):
        assert gain_of(some(mean, deviation, 16)).verdict == said, (mean, deviation)


def test_what_is_not_finite_or_alone_is_said_to_be() -> None:
    found = gain_of([0.1, None, *[0.2] * 10])
    assert math.isnan(found.mean)
    assert (found.verdict, found.needed) == ("not finite", None)
    assert gain_of([0.25]) == Gain(0.25, -math.inf, math.inf, TOO_FEW, None)
    assert interval_of([]) is None
    undefined = interval_of([1.0, None])
    assert undefined is not None
    assert math.isnan(undefined.mean)
