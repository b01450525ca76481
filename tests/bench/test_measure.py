from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posenc.bench.measure import FEWEST_ROUNDS, LeftOutError, Work, beyond, race, ratios, spread
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


def test_the_spread_is_of_quartiles() -> None:
    # By hand: of 1 2 3 4 5 6 7 8 9 the quartiles are 3 and 7.
    assert spread([9, 1, 8, 2, 7, 3, 6, 4, 5]) == (5, 3, 7)
    assert spread([2.5]) == (2.5, 2.5, 2.5)


def test_ratios_are_taken_round_by_round() -> None:
    # The machine was twice as slow in the second round and ten times as slow in the third: it slowed both.
    assert ratios([3.0, 6.0, 30.0], [1.0, 2.0, 10.0]) == (3, 3, 3)
    # Each over its own: 3, 2, 5, not 4 over 2.
    assert ratios([3.0, 4.0, 20.0], [1.0, 2.0, 4.0]) == (3, 2.5, 4)


def test_competitors_take_turns_and_the_warm_up_does_not_count() -> None:
    script = Scripted(plain=[9, 8, 1, 2, 4], ours=[99, 88, 3, 4, 20])
    makes = {name: script.make(name) for name in ("plain", "ours")}
    found = race(makes, rounds=3, budget=1e9, clock=script.clock)
    assert script.calls == ["plain", "plain", "ours", "ours", *["plain", "ours"] * 3]
    assert found["rounds"] == 3
    assert found["baseline"] == "plain"
    assert found["results"]["plain"] == {"seconds": [1, 2, 4], "ratio": [1, 1, 1]}
    assert found["results"]["ours"] == {"seconds": [3, 4, 20], "ratio": [3, 2.5, 4]}


def test_rounds_that_last_too_long_are_the_fewest() -> None:
    script = Scripted(plain=[1] * 100)
    found = race({"plain": script.make("plain")}, rounds=50, budget=0.0, clock=script.clock)
    assert found["rounds"] == FEWEST_ROUNDS == len(found["results"]["plain"]["seconds"])


def test_short_calls_are_repeated_and_the_time_of_one_is_given() -> None:
    # The second call took 1 ms, a fifth of the shortest timing; then five calls took 10 ms.
    script = Scripted(plain=[0.5, 0.001, 0.010])
    found = race({"plain": script.make("plain")}, rounds=1, budget=1e9, clock=script.clock)
    assert len(script.calls) == 2 + 5
    assert found["results"]["plain"]["seconds"] == pytest.approx([0.002])


def test_who_cannot_take_part_is_left_out_with_the_reason() -> None:
    def refuses() -> Work:
        raise LeftOutError("it has no backward pass")

    def breaks() -> Work:
        raise RuntimeError("no compiler\nand a hundred lines more")

    script = Scripted(plain=[1] * 3)
    makes = {"plain": script.make("plain"), "refuses": refuses, "breaks": breaks}
    found = race(makes, rounds=1, budget=1e9, clock=script.clock)
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
        {"plain": lambda: work}, rounds=1, budget=1, clock=clock_of(torch.device("cpu")), memory=torch.device("cpu")
    )
    assert 3 * MEBIBYTE <= found["results"]["plain"]["peak_bytes"] < 3 * MEBIBYTE + 4096
    assert found["results"]["plain"]["seconds"][0] > 0
