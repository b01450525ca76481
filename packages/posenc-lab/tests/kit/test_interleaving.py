from collections import Counter
from itertools import islice

import numpy as np
import pytest
from numpy.typing import NDArray

from posenc_lab.kit.interleaving import orders, ratios, spread

MACHINES = 1000


def alternating(count: int) -> list[float]:
    """1 to ``count``, low and high in turns: no two neighbours are on the same side of the median."""
    low, high = range(1, count // 2 + 1), range(count // 2 + 1, count + 1)
    return [float(value) for pair in zip(high, low, strict=False) for value in pair] + [float(count)] * (count % 2)


def test_the_interval_is_that_of_the_tables_of_the_sign_test() -> None:
    # Of n values, those from the k-th smallest to the k-th largest: k as in any table of the sign test at 10 %.
    for count, k in {1: 1, 4: 1, 5: 1, 7: 1, 8: 2, 10: 2, 11: 3, 13: 4, 16: 5, 20: 6, 25: 8, 30: 11, 50: 19}.items():
        values = alternating(count)
        assert sorted(values) == list(range(1, count + 1))
        assert spread(values) == ((count + 1) / 2, k, count + 1 - k)
    # More than a float can count the cases of: of 3,000 tosses of a coin 1,454 or fewer are heads in 1 of 20 cases.
    assert spread(alternating(3000)) == (1500.5, 1455, 1546)


def test_values_that_hang_together_count_as_fewer() -> None:
    # Runs of four on a side: of 39 neighbours 30 are alike and 9 are not, so r is 21/39, and 40 values are worth
    # 40 (1 - r) / (1 + r) = 12, whose interval leaves out 2 of 12 at each end: 6 of 40.
    values = [float(at % 40 + 100 * (at // 4 % 2)) for at in range(40)]
    ordered = sorted(values)
    assert spread(values) == ((ordered[19] + ordered[20]) / 2, ordered[6], ordered[-7])
    # The same values, dealt so that neighbours differ, are worth 40: 13 are left out at each end.
    dealt = [value for pair in zip(ordered[:20], ordered[20:], strict=True) for value in pair]
    assert spread(dealt) == ((ordered[19] + ordered[20]) / 2, ordered[14], ordered[-15])


def test_a_clock_that_stands_still_is_named() -> None:
    with pytest.raises(ValueError, match=r"^times of the baseline must be above 0 s, got 0: the clock stood still"):
        ratios([1.0, 2.0], [1.0, 0.0])


def test_ratios_are_taken_round_by_round() -> None:
    # The machine was twice as slow in the second round and ten times as slow in the third: it slowed both.
    assert ratios([3.0, 6.0, 30.0], [1.0, 2.0, 10.0]) == (3, 3, 3)
    # Each over its own: 3, 2, 5, not 4 over 2.
    assert ratios([3.0, 4.0, 20.0], [1.0, 2.0, 4.0]) == (3, 2, 5)


def test_every_round_has_an_order_of_its_own_that_can_be_drawn_again() -> None:
    names = ("plain", "ours", "theirs")
    drawn = list(islice(orders(names, "a group"), 600))
    assert drawn == list(islice(orders(names, "a group"), 600))
    assert drawn != list(islice(orders(names, "another"), 600))
    counts = Counter(drawn)
    assert {frozenset(order) for order in counts} == {frozenset(names)}
    # Six permutations, 100 of each but for chance: its standard deviation is 9.
    assert len(counts) == 6
    assert all(abs(count - 100) < 4 * 9 for count in counts.values())


def autoregressive(rng: np.random.Generator, steps: int, phi: float) -> NDArray[np.float64]:
    """(machines, steps): noise of variance 1, each value ``phi`` times the one before it, and something new."""
    noise = rng.standard_normal((MACHINES, steps))
    for step in range(1, steps):
        noise[:, step] = phi * noise[:, step - 1] + (1 - phi**2) ** 0.5 * noise[:, step]
    return noise


def in_turns(noise: NDArray[np.float64], rounds: int, competitors: int, seed: int) -> NDArray[np.float64]:
    """(machines, rounds): the ratio of the last competitor to the first where both take as long, but for the noise of
    the machine, a value for each call; in the orders of a seed for each machine."""
    calls = np.exp(noise.reshape(MACHINES, rounds, competitors))
    names = [str(name) for name in range(competitors)]
    drawn = [list(islice(orders(names, f"{seed} {machine}"), rounds)) for machine in range(MACHINES)]
    first, last = (np.array([[order.index(name) for order in of] for of in drawn]) for name in (names[0], names[-1]))
    mine, its = (np.take_along_axis(calls, place[..., None], 2)[..., 0] for place in (last, first))
    return mine / its


def held(found: NDArray[np.float64]) -> float:
    """The share of machines whose interval holds the true ratio, which is 1."""
    return float(np.mean([low <= 1 <= high for _, low, high in map(spread, found.tolist())]))


# Three standard deviations of 1000 draws are .028. Above: of 20 values the interval holds 95.9 of 100, since the next
# narrower one would hold 88.5, and values that seem to hang together by chance add 2.
SURELY, HARDLY_ALWAYS = 0.9 - 0.028, 0.985


@pytest.mark.parametrize(("rounds", "phi", "competitors"), [(20, 0.9, 2), (5, 0.0, 8)])
def test_in_random_orders_the_interval_holds_whatever_the_machine_does(
    rounds: int, phi: float, competitors: int
) -> None:
    noise = 0.2 * autoregressive(np.random.default_rng(rounds), rounds * competitors, phi)
    assert SURELY < held(in_turns(noise, rounds, competitors, 0)) < HARDLY_ALWAYS
