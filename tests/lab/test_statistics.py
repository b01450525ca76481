import numpy as np
import pytest

from posenc.lab.summary import mean_interval


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    samples = rng.exponential(size=(400, 60))  # mean 1, and skewed as losses are
    intervals = [mean_interval(sample, resamples=500) for sample in samples]
    covered = np.mean([low <= 1 <= high for _, low, high in intervals])
    assert 0.90 <= covered <= 0.97  # 95 % less what skew costs at 60 windows; the standard error of 400 trials is 1 %


def test_the_interval_is_that_of_the_normal_law_where_it_holds() -> None:
    values = np.random.default_rng(2).normal(3.0, 2.0, size=400)
    mean, low, high = mean_interval(values, resamples=20_000)
    half = 1.96 * values.std() / 20
    assert mean == pytest.approx(values.mean())
    assert mean - low == pytest.approx(half, rel=0.05)
    assert high - mean == pytest.approx(half, rel=0.05)


def test_seeds_that_differ_widen_the_interval() -> None:
    noise = np.random.default_rng(3).normal(size=(4, 200))
    same = mean_interval(np.repeat(noise[:1], 4, axis=0))
    spread = mean_interval(noise + np.array([[-3.0], [-1.0], [1.0], [3.0]]))
    assert spread.high - spread.low > 5 * (same.high - same.low)
    assert same == pytest.approx(mean_interval(noise[0]), abs=0.02)


def test_pairing_removes_what_both_share() -> None:
    rng = np.random.default_rng(4)
    hard = rng.normal(3, 1, size=100)
    first, second = hard + 0.10 + rng.normal(0, 0.02, 100), hard + rng.normal(0, 0.02, 100)
    difference = mean_interval(first - second)
    assert difference.low < 0.1 < difference.high
    assert difference.high - difference.low < 0.02
    assert mean_interval(first).low < mean_interval(second).high  # unpaired, nothing could be said


def test_the_same_numbers_give_the_same_interval() -> None:
    assert mean_interval([1.0, 2.0, 4.0]) == mean_interval([1.0, 2.0, 4.0])
    assert mean_interval([2.0]) == (2.0, 2.0, 2.0)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"values must be \(windows,\) or \(seeds, windows\) and not empty, got shape"):
        mean_interval([])
