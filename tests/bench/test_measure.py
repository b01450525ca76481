import random
import statistics
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posenc.bench.measure import LeftOutError, Work, beyond, race, ratios, spread
from posenc.workbench.machine import clock_of

MEBIBYTE = 2**20


class Scripted:
    """Competitors and a clock whose times are given: one for the first call, one for the second, then one a round."""

    def __init__(self, **seconds: list[float]) -> None:
        self.seconds = {name: list(times) for name, times in seconds.items()}
        self.calls: list[str] = []

    def make(self, name: str) -> Callable[[], Work]:
        def work() -> tuple[Tensor, ...]:
            self.calls.append(name)
            return ()

        return lambda: work

    def clock(self, work: Work) -> float:
        work()
        return self.seconds[self.calls[-1]].pop(0)


def test_the_interval_is_that_of_the_tables_of_the_sign_test() -> None:
    # Of n values, those from the k-th smallest to the k-th largest: k as in any table of the sign test at 10 %.
    for count, k in {1: 1, 4: 1, 5: 1, 7: 1, 8: 2, 10: 2, 11: 3, 13: 4, 16: 5, 20: 6, 25: 8, 30: 11, 50: 19}.items():
        values = [float(value) for value in range(1, count + 1)]
        assert spread(values[::-1]) == ((count + 1) / 2, k, count + 1 - k)


def test_ratios_are_taken_round_by_round() -> None:
    # The machine was twice as slow in the second round and ten times as slow in the third: it slowed both.
    assert ratios([3.0, 6.0, 30.0], [1.0, 2.0, 10.0]) == (3, 3, 3)
    # Each over its own: 3, 2, 5, not 4 over 2.
    assert ratios([3.0, 4.0, 20.0], [1.0, 2.0, 4.0]) == (3, 2, 5)


def test_competitors_take_turns_and_the_warm_up_does_not_count() -> None:
    script = Scripted(plain=[9, 8, 1, 2, 4], ours=[99, 88, 3, 4, 20])
    makes = {name: script.make(name) for name in ("plain", "ours")}
    found = race(makes, rounds=3, budget=0, clock=script.clock)
    assert script.calls == ["plain", "plain", "ours", "ours", *["plain", "ours"] * 3]
    assert found["rounds"] == 3
    assert found["baseline"] == "plain"
    assert found["results"]["plain"] == {"seconds": [1, 2, 4], "ratio": [1, 1, 1]}
    assert found["results"]["ours"] == {"seconds": [3, 4, 20], "ratio": [3, 2, 5]}


@pytest.mark.parametrize(("slow", "rounds"), [({"ours": 0}, 5), ({"ours": 1}, 8), ({"ours": 1, "theirs": 2}, 11)])
def test_rounds_are_added_until_every_ratio_is_known_to_a_tenth(slow: dict[str, int], rounds: int) -> None:
    # One round that is slow is left out of the interval from 8 rounds on, and two from 11.
    script = Scripted(plain=[1.0] * 99, **{name: [1.0, 1.0, *[2.0] * n, *[1.0] * 99] for name, n in slow.items()})
    makes = {name: script.make(name) for name in script.seconds}
    assert race(makes, rounds=3, budget=1e9, clock=script.clock)["rounds"] == rounds


@pytest.mark.parametrize(("noise", "share", "typical"), [(0.02, 0.94, 5), (0.05, 0.9, 8), (0.2, 0.85, 60)])
def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says(noise: float, share: float, typical: int) -> None:
    # Plain takes a second and ours two, give or take: the true ratio is 2, also where rounds end by what they found.
    draw, held, rounds = random.Random(1), [], []
    for _ in range(300):
        script = Scripted(plain=[1.0] * 2000, ours=[1.0, 1.0, *(draw.gauss(2, 2 * noise) for _ in range(998))])
        makes = {name: script.make(name) for name in script.seconds}
        found = race(makes, rounds=5, budget=1e9, clock=script.clock)
        _, low, high = found["results"]["ours"]["ratio"]
        held.append(low <= 2 <= high)
        rounds.append(found["rounds"])
    assert statistics.mean(held) == pytest.approx(share, abs=0.06)  # three standard deviations of 300 draws
    assert statistics.median(rounds) == pytest.approx(typical, rel=0.3)


def test_rounds_are_not_added_once_the_time_is_up() -> None:
    script = Scripted(plain=[1.0] * 100, ours=[1.0, 2.0] * 50)
    found = race({name: script.make(name) for name in script.seconds}, rounds=4, budget=0.0, clock=script.clock)
    assert found["rounds"] == 4 == len(found["results"]["ours"]["seconds"])


def test_four_rounds_that_agree_are_too_few_to_know() -> None:
    script = Scripted(plain=[1.0] * 100)
    assert race({"plain": script.make("plain")}, rounds=1, budget=1e9, clock=script.clock)["rounds"] == 5


def test_short_calls_are_repeated_and_the_time_of_one_is_given() -> None:
    # The second call took 1 ms, a fifth of the shortest timing; then five calls took 10 ms.
    script = Scripted(plain=[0.5, 0.001, 0.010])
    found = race({"plain": script.make("plain")}, rounds=1, budget=0, clock=script.clock)
    assert len(script.calls) == 2 + 5
    assert found["results"]["plain"]["seconds"] == pytest.approx([0.002])


def test_who_cannot_take_part_is_left_out_with_the_reason() -> None:
    def refuses() -> Work:
        raise LeftOutError("it has no backward pass")

    def breaks() -> Work:
        raise RuntimeError("no compiler\nand a hundred lines more")

    script = Scripted(plain=[1] * 3)
    makes = {"plain": script.make("plain"), "refuses": refuses, "breaks": breaks}
    found = race(makes, rounds=1, budget=0, clock=script.clock)
    assert found["results"]["refuses"] == {"left_out": "it has no backward pass"}
    assert found["results"]["breaks"] == {"left_out": "failed with RuntimeError: no compiler"}
    assert found["results"]["plain"]["ratio"] == [1, 1, 1]


def test_without_its_baseline_nothing_has_a_ratio() -> None:
    def refuses() -> Work:
        raise LeftOutError("no")

    script = Scripted(ours=[1] * 3)
    found = race({"plain": refuses, "ours": script.make("ours")}, rounds=3, budget=1e9, clock=script.clock)
    assert found["results"] == {
        "plain": {"left_out": "no"},
        "ours": {"left_out": "plain, which it is compared with, was left out"},
    }


def test_memory_is_counted_beyond_what_is_given() -> None:
    def work() -> tuple[Tensor, ...]:
        passing = torch.empty(3 * MEBIBYTE, dtype=torch.uint8)
        return (passing[:MEBIBYTE].clone(),)

    # The most at one time is 3 and 1, of which 1 is given. A few bytes more for what arithmetic needs.
    assert 3 * MEBIBYTE <= beyond(work, torch.device("cpu")) < 3 * MEBIBYTE + 4096
    found = race(
        {"plain": lambda: work}, rounds=1, budget=0, clock=clock_of(torch.device("cpu")), memory=torch.device("cpu")
    )
    assert 3 * MEBIBYTE <= found["results"]["plain"]["peak_bytes"] < 3 * MEBIBYTE + 4096
    assert found["results"]["plain"]["seconds"][0] > 0
