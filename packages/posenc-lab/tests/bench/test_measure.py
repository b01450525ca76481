from collections.abc import Callable
from itertools import chain, islice

import pytest
import torch
from torch import Tensor

from posenc_lab.bench.measure import LeftOutError, Work, beyond, race
from posenc_lab.kit.interleaving import orders
from posenc_lab.kit.machine import clock_of

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


def test_competitors_take_turns_and_the_warm_up_does_not_count() -> None:
    script = Scripted(plain=[9, 8, 1, 2, 4], ours=[99, 88, 3, 4, 20])
    makes = {name: script.make(name) for name in ("plain", "ours")}
    found = race(makes, rounds=3, budget=0, clock=script.clock, seed="a group")
    drawn = list(islice(orders(("plain", "ours"), "a group"), 3))
    assert len(set(drawn)) == 2
    assert script.calls == ["plain", "plain", "ours", "ours", *chain(*drawn)]
    assert found["orders"] == [[("plain", "ours").index(name) for name in order] for order in drawn]
    assert found["rounds"] == 3
    assert found["baseline"] == "plain"
    assert found["results"]["plain"] == {"seconds": [1, 2, 4], "ratio": [1, 1, 1]}
    assert found["results"]["ours"] == {"seconds": [3, 4, 20], "ratio": [3, 2, 5]}


@pytest.mark.parametrize(("slow", "rounds"), [({"ours": 0}, 5), ({"ours": 1}, 10), ({"ours": 1, "theirs": 2}, 20)])
def test_rounds_are_doubled_until_every_ratio_is_known_to_a_tenth(slow: dict[str, int], rounds: int) -> None:
    # One round that is slow is left out of the interval from 8 rounds on, and two from 11; asked at 5, 10 and 20.
    script = Scripted(plain=[1.0] * 99, **{name: [1.0, 1.0, *[2.0] * n, *[1.0] * 99] for name, n in slow.items()})
    makes = {name: script.make(name) for name in script.seconds}
    assert race(makes, rounds=3, budget=1e9, clock=script.clock)["rounds"] == rounds


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
