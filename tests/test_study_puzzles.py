"""What the study's pages say of the records of puzzles, made up here."""

from typing import Any

import pytest

from posenc.tools.compare.summary import Summary
from posenc.tools.kit.files import digest_of
from study import found, puzzles, run
from tests.compare import made_up


def solving(scheme: str, seed: int, length: int, share: float, task: str = "copy", rows: int = 10) -> dict[str, Any]:
    """So many rows are right."""
    config = {"schemes": [scheme], "seeds": [seed], "train_length": 20, "timed": False}
    about = {
        name: made_up.records(("nope",))[0][name] for name in ("fingerprint", "text", "versions", "machine", "time")
    }
    right = [float(n < rows * share) for n in range(rows)]
    named = {"kind": "accuracy", "scheme": scheme, "seed": seed, "length": length}
    lengths = {"test_lengths": [20, 25, 30, 40]}
    about["plan"] = digest_of((found.HERE / "plan.md").read_bytes())
    return {**named, "accuracy": right, "examples": 1, "configuration": {**config, **lengths, "task": task}, **about}


def test_a_task_counts_the_seeds_that_solve_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {"nope": {20: (1.0, 1.0, 0.9), 40: (0.0, 0.0, 0.0)}, "rope": {20: (1.0, 1.0, 1.0), 40: (1.0, 0.2, 0.1)}}
    made = [
        solving(scheme, seed, length, share)
        for scheme, lengths in shares.items()
        for length, each in lengths.items()
        for seed, share in enumerate(each)
    ]
    monkeypatch.setattr(puzzles, "records", lambda part: made)
    copy = puzzles.task("copy", 10)
    assert (copy.progress, copy.lengths) == ("6 of 80 trainings are there", (20, 25, 30, 40))
    assert copy.solvers == [(20, ["nope", "rope"]), (25, []), (30, []), (40, [])]
    (first, of_rope), (second, of_nope) = copy.rows
    assert (first, second) == ("rope", "nope")
    assert [cell.partition(" (")[0] for cell in of_rope] == ["**3 of 3**", "–", "–", "**1 of 3**"]
    assert [cell.partition(" (")[0] for cell in of_nope] == ["**2 of 3**", "–", "–", "**0 of 3**"]
    assert of_nope[0] == "**2 of 3** (0.21 to 0.94), mean 0.97"  # Wilson's interval


def ranked(shares: dict[str, dict[str, float]], seeds: int = 3) -> list[puzzles.Task]:
    """The puzzles of the published order with these shares of each scheme at every longer length, complete."""
    made = []
    for name in puzzles.PUBLISHED["ranked"]:
        task = puzzles.Task(name, Summary([]), seeds)
        records = [
            solving(scheme, seed, length, 1.0 if n == 0 else shares[name].get(scheme, 0.0), name, 100)
            for n, length in enumerate(task.lengths)
            for scheme in run.OF_TASKS
            for seed in range(seeds)
        ]
        made.append(puzzles.Task(name, Summary(records), seeds))
    return made


def test_the_published_order_is_compared_with_ranks_at_longer_rows() -> None:
    as_published = {"nope": 0.9, "t5": 0.8, "alibi": 0.7, "rope": 0.6, "sinusoidal": 0.5}
    nobody = {"nope": 0.04}
    found = puzzles.order(
        ranked({"copy": as_published, "reverse": as_published, "sort": as_published, "addition": nobody})
    )
    assert found is not None
    assert found.reproduced
    assert [place.found for place in found.places] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert [(place.low, place.high) for place in found.places] == [(place.found,) * 2 for place in found.places]
    assert {name for name, _ in found.ranked} == {"copy", "reverse", "sort"}
    assert found.unranked == [("addition", 6), ("addition", 7), ("addition", 10)]

    tied = {"alibi": 0.9, "nope": 0.8, "t5": 0.8}
    found = puzzles.order(ranked({"copy": tied, "reverse": tied, "sort": tied, "addition": nobody}))
    assert found is not None
    assert not found.reproduced
    assert found.found[0] == "alibi"
    ranks = {"alibi": 1, "nope": 2.5, "t5": 2.5, "rope": 4.5, "sinusoidal": 4.5}  # those with the same share a rank
    assert {place.scheme: 1 / place.found for place in found.places} == pytest.approx(ranks)


def test_there_is_no_order_before_all_trainings_are_there() -> None:
    tasks = ranked({name: {"nope": 1.0} for name in puzzles.PUBLISHED["ranked"]})
    assert puzzles.order(tasks) is not None
    assert puzzles.order(tasks[:3]) is None
    few = puzzles.Task(tasks[0].name, tasks[0].summary, 4)
    assert puzzles.order([few, *tasks[1:]]) is None
    assert (tasks[0].progress, few.progress) == (
        "all 24 trainings are there",
        "24 of 32 trainings are there",
    )
