"""How often the verdicts of a comparison err, measured on made-up comparisons in which the truth is known.

The variances are those that trainings of `posenc compare` had: paired differences of two schemes differ between seeds
by 0.021 bits per byte, and over 64 windows the choice of text adds a third of that variance. Windows are normal, or
heavy-tailed (Student's t with 3 degrees of freedom), as those of real text are. `pytest -s` prints the rates.
"""

import itertools
import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from posenc_lab.kit.statistics import ALPHA, Mean, holm, mean_of, verdict
from tests.rows import first_of

SEEDS_SD, WINDOWS, SHARE, MARGIN = 0.021, 64, 1 / 3, 0.02
TAILS = ("normal", "heavy")

# More than this share of wrong verdicts is too many: 5 %, and at three seeds what Satterthwaite's approximation costs.
MOST = {3: 0.08, 5: 0.06, 10: 0.06}


def scored(seeds: int, schemes: int, count: int, tails: str, share: float = SHARE) -> Iterator[NDArray[np.float64]]:
    """Comparisons of equal schemes (…, schemes, seeds, windows), less what all schemes share, some at a time."""
    windows_sd = math.sqrt(SEEDS_SD**2 * share * WINDOWS)  # of one, half of it the same in every training
    rng = np.random.default_rng([seeds, schemes, TAILS.index(tails)])

    def of_windows(*shape: int) -> NDArray[np.float64]:
        drawn = rng.normal(size=shape) if tails == "normal" else rng.standard_t(3, shape) / math.sqrt(3)
        return windows_sd / math.sqrt(2) * drawn

    at_once = 200
    for _ in range(count // at_once):
        trainings = SEEDS_SD * rng.normal(size=(at_once, schemes, seeds, 1))
        windows = of_windows(at_once, schemes, 1, WINDOWS) + of_windows(at_once, schemes, seeds, WINDOWS)
        yield (trainings + windows) / math.sqrt(2)  # a difference has both schemes' variance


def differences(seeds: int, count: int, tails: str, share: float = SHARE) -> Mean:
    """Of pairs of equal schemes."""
    found = [mean_of(values[:, 0] - values[:, 1]) for values in scored(seeds, 2, count, tails, share)]
    return Mean(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def within(rate: float, most: float, count: int) -> bool:
    """Whether a rate measured ``count`` times can be that of one of ``most``: three standard errors above it."""
    return rate <= most + 3 * math.sqrt(most * (1 - most) / count)


@pytest.mark.parametrize("tails", TAILS)
@pytest.mark.parametrize("seeds", [1, 2, 3, 5, 10])
def test_equal_schemes_are_called_different_as_seldom_as_is_said(seeds: int, tails: str) -> None:
    count = 4000
    found = differences(seeds, count, tails)
    rate = float(np.mean(np.abs(found.mean) > found.half()))
    print(f"{seeds} seeds, {tails} windows: the 95 % interval of no difference excludes zero in {rate:.3f} of cases")
    if seeds in MOST:
        assert within(rate, MOST[seeds], count)
        assert rate > 0.03  # nor is it so wide that it finds nothing
    else:
        # Why there is no verdict: one seed's interval is of the text alone, and two say little of how seeds differ.
        assert rate > 0.25 if seeds == 1 else rate > 0.07


@pytest.mark.parametrize(("seeds", "tails", "share"), first_of(itertools.product([3, 5, 10], TAILS, [1 / 3, 0.03, 3])))
def test_of_twelve_equal_schemes_one_is_called_worse_as_seldom_as_is_said(seeds: int, tails: str, share: float) -> None:
    """Whatever share windows add to the variance."""
    pairs = np.array(list(combinations(range(12), 2)))
    count, wrong = 600, 0
    for values in scored(seeds, 12, count, tails, share):
        p = np.stack([mean_of(values[:, i] - values[:, j]).p_value() for i, j in pairs], axis=-1)
        wrong += int(holm(p).any(-1).sum())
    rate = wrong / count
    what = f"{seeds} seeds, {tails} windows that add {share:.2f} of the seeds' variance"
    print(f"{what}: some scheme of twelve equal ones is called worse in {rate:.3f} of cases")
    assert within(rate, ALPHA, count)


@pytest.mark.parametrize(("seeds", "least"), first_of([(5, 0.2), (10, 0.95)]))
def test_a_difference_of_a_tenth_of_a_bit_is_found(seeds: int, least: float) -> None:
    """With five seeds, between two schemes; among twelve, not to err over 66 pairs costs more seeds."""
    pairs = list(combinations(range(12), 2))
    found, first = [], []
    for values in scored(seeds, 12, 400, "heavy"):
        values[:, 0] -= 0.1
        each = [mean_of(values[:, i] - values[:, j]) for i, j in pairs]
        first.append(np.abs(each[0].mean) > each[0].half())
        better = holm(np.stack([one.p_value() for one in each], axis=-1))
        found.append(better[:, [i == 0 for i, _ in pairs]])
    alone, among = float(np.mean(first)), float(np.mean(found))
    print(f"{seeds} seeds: 0.1 bits are found in {alone:.3f} of cases between two schemes, {among:.3f} among twelve")
    assert alone > 0.95
    assert among > least


@pytest.mark.parametrize(("seeds", "tails"), first_of(itertools.product([3, 5, 10], TAILS)))
def test_schemes_apart_by_the_margin_are_called_tied_as_seldom_as_is_said(seeds: int, tails: str) -> None:
    count = 4000
    found = differences(seeds, count, tails)
    apart = found._replace(mean=found.mean + MARGIN)
    said = [verdict(Mean(*each), MARGIN) for each in zip(*apart, strict=True)]
    rate = np.mean([word == "tied" or word.endswith("within the margin") for word in said])
    print(f"{seeds} seeds, {tails} windows: schemes apart by the margin are called tied in {rate:.3f} of cases")
    assert within(float(rate), ALPHA, count)


def test_equal_schemes_are_called_tied_where_there_are_seeds_and_windows_enough() -> None:
    """Seeds do not make up for windows: what 64 of them add to the variance stays."""
    rates = {}
    for seeds, windows in ((5, 64), (40, 64), (40, 640)):
        found = differences(seeds, 400, "normal", SHARE * 64 / windows)
        said = [verdict(Mean(*each), MARGIN) for each in zip(*found, strict=True)]
        rates[seeds, windows] = np.mean([word == "tied" or word.endswith("within the margin") for word in said])
    print("equal schemes are called tied in", {key: f"{rate:.3f}" for key, rate in rates.items()})
    assert rates[5, 64] < rates[40, 64] < 0.5
    assert rates[40, 640] > 0.9
