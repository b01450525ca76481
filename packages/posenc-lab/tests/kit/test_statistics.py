"""Intervals and tests held against tables, other formulas and the laws that they are to keep."""

import numpy as np
import pytest
import scipy.stats

from posenc_lab.kit.statistics import Mean, holm, mean_interval, mean_of, verdict, wilson


def test_of_one_seed_it_is_students_interval_over_windows() -> None:
    values = np.random.default_rng(1).exponential(size=12)
    found = mean_interval(values)
    expected = scipy.stats.ttest_1samp(values, 0).confidence_interval()
    assert found == pytest.approx((values.mean(), expected.low, expected.high))
    assert mean_of(values[None]).p_value() == pytest.approx(scipy.stats.ttest_1samp(values, 0).pvalue)
    assert mean_interval(values[:, None]) == pytest.approx(found)  # twelve seeds of one window


def test_of_several_seeds_it_is_the_analysis_of_variance() -> None:
    """Mean squares by scalar loops, on sizes that are not alike."""
    rng = np.random.default_rng(2)
    seeds, windows = 5, 7
    y = 0.3 + rng.normal(size=(seeds, 1)) + rng.normal(size=(1, windows)) + 0.5 * rng.normal(size=(seeds, windows))
    mu = sum(y[s][w] for s in range(seeds) for w in range(windows)) / 35
    row = [sum(y[s][w] for w in range(windows)) / windows for s in range(seeds)]
    column = [sum(y[s][w] for s in range(seeds)) / seeds for w in range(windows)]
    of_seeds = windows * sum((r - mu) ** 2 for r in row) / 4
    of_windows = seeds * sum((c - mu) ** 2 for c in column) / 6
    rest = sum((y[s][w] - row[s] - column[w] + mu) ** 2 for s in range(seeds) for w in range(windows)) / 24
    assert rest < min(of_seeds, of_windows)
    variance = of_seeds + of_windows - rest
    mean, error, freedom, fewest = mean_of(y)
    assert mean == pytest.approx(mu)
    assert error == pytest.approx((variance / 35) ** 0.5)
    assert freedom == pytest.approx(variance**2 / (of_seeds**2 / 4 + of_windows**2 / 6 + rest**2 / 24))
    assert freedom > fewest == 4
    assert mean_of(y).p_value() == pytest.approx(2 * scipy.stats.t(4).sf(mu / error))


def test_a_variance_below_zero_is_none() -> None:
    """Windows that trainings find hard in turns: their means agree far better than what is left allows."""
    y = np.array([[1.0, -1.0], [-1.0, 1.0]]) + np.array([[0.0], [3.0]])
    assert mean_of(y).error == pytest.approx((9.0 / 4) ** 0.5)  # MS of seeds 9, of windows 0, of the rest 4


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    samples = np.random.default_rng(1).exponential(size=(4000, 1, 60))  # mean 1, and skewed as losses are
    found = mean_of(samples)
    covered = np.mean(np.abs(found.mean - 1) <= found.half())
    assert 0.93 <= covered <= 0.96  # 95 % less what skew costs at 60 windows; the standard error is 0.35 %


def test_wilson() -> None:
    for right, of in ((0, 10), (3, 10), (10, 10), (1, 1), (45, 100)):
        expected = scipy.stats.binomtest(right, of).proportion_ci(method="wilson")
        assert wilson(right, of) == pytest.approx((right / of, expected.low, expected.high), abs=1e-12)
    assert wilson(0, 5).low == 0.0
    assert wilson(5, 5).high == 1.0


def test_holm() -> None:
    """By adjusted p-values, which is another way to say it."""
    rng = np.random.default_rng(5)
    for p in rng.beta(0.4, 4, size=(200, 9)):
        order = np.argsort(p)
        adjusted = np.maximum.accumulate(p[order] * np.arange(9, 0, -1))
        assert set(np.flatnonzero(holm(p))) == set(order[adjusted <= 0.05])
    many = rng.beta(0.4, 4, size=(4, 5, 9))
    assert (holm(many)[2, 3] == holm(many[2, 3])).all()
    assert not holm([np.nan, 0.2]).any()


@pytest.mark.parametrize(
    ("mean", "error", "word"),
    [
        (-0.1, 0.01, "lower"),
        (0.1, 0.01, "higher"),
        (0.005, 0.004, "tied"),
        (0.005, 0.02, "undecided"),
        (-0.008, 0.002, "lower, within the margin"),
        (0.008, 0.002, "higher, within the margin"),
        (0.03, 0.02, "undecided"),
    ],
)
def test_verdicts(mean: float, error: float, word: str) -> None:
    assert verdict(Mean(np.array(mean), np.array(error), np.array(20.0), np.array(4.0)), 0.02) == word


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"values must be \(windows,\) or \(seeds, windows\) and not empty, got shape"):
        mean_interval([])
    with pytest.raises(ValueError, match=r"values must be \(\.\.\., seeds, windows\) and not empty, got shape \(3,\)"):
        mean_of([1.0, 2.0, 3.0])
    for right, of in ((3, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match=f"right must be 0 to of, and of at least 1, got {right} of {of}"):
            wilson(right, of)
