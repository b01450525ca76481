"""What the study's pages say of the records of puzzles, made up here."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from posenc_lab.compare.config import Rate
from posenc_lab.kit.files import digest_of
from study import findings, pages, puzzles, run
from tests.compare import synthetic_records
from tests.test_study import on_gpu

LENGTHS = {"copy": (20, 25, 30, 40), "reverse": (16, 20, 24, 32), "sort": (20, 25, 30, 40), "addition": (5, 6, 7, 10)}
RANKED = ("nope", "t5", "alibi", "rope", "sinusoidal")
Share = Callable[[str, int, int], float]


@pytest.fixture(autouse=True)
def _tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "tuned", lambda part, folder: Rate(0.005))
    monkeypatch.setattr(puzzles, "DRAWS", 50)


def records(task: str, share: Share, schemes: Sequence[str] = (), seeds: Sequence[int] = (0, 1, 2)) -> list[Any]:
    """A finished comparison: of a scheme, a seed and a length, the share of a hundred rows that are right."""
    made = []
    for scheme in schemes or [run.Job(task, folder, ()).scheme for folder in run.OF_TASKS]:
        about = {
            k: v
            for k, v in synthetic_records.records(("nope",))[0].items()
            if k in ("text", "versions", "machine", "time")
        }
        about["configuration"] = {
            "task": task,
            "schemes": [scheme],
            "seeds": list(seeds),
            "timed": False,
            "device": "cpu",
            "train_length": LENGTHS[task][0],
            "test_lengths": list(LENGTHS[task]),
        }
        about |= {"fingerprint": "a", "plan": digest_of((findings.HERE / "plan.md").read_bytes())}
        for seed in seeds:
            of = {"scheme": scheme, "seed": seed}
            curve = [[step, 7.0 / step] for step in range(1, 51)]
            trained = {"learning_rate": 0.005, "multiplier": None, "seconds": 30.0, "curve": curve}
            made.append({"kind": "training", **of, **trained, **about})
            for length in LENGTHS[task]:
                right = [float(n < round(100 * share(scheme, seed, length))) for n in range(100)]
                made.append({"kind": "accuracy", **of, "length": length, "accuracy": right, "examples": 1, **about})
    return made


def puzzle(task: str, made: list[Any], seeds: int = 3) -> puzzles.Task:
    return puzzles.Task(task, findings.summary(task, made), seeds)


def test_a_task_counts_the_seeds_that_solve_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {"nope": {20: (1.0, 1.0, 0.9)}, "rope": {20: (1.0, 1.0, 1.0), 40: (1.0, 0.2, 0.1)}}
    made = records("copy", lambda scheme, seed, n: shares[scheme].get(n, (0.0,) * 3)[seed], ("nope", "rope"))
    monkeypatch.setattr(puzzles, "records", lambda part: made)
    copy = puzzles.task("copy", 10)
    assert (copy.progress, copy.lengths) == ("6 of 80 trainings are there", (20, 25, 30, 40))
    assert copy.solvers == [(20, ["nope", "rope"]), (25, []), (30, []), (40, [])]
    (first, of_rope), (second, of_nope) = copy.rows
    assert (first, second) == ("rope", "nope")
    assert [cell.partition(" (")[0] for cell in of_rope] == ["**3 of 3**", "0 of 3", "0 of 3", "1 of 3"]
    assert of_nope[0] == "**2 of 3** (.21 to .94), .97"  # Wilson's interval

    made = made[:-1]  # rope's last seed was not tested to its end
    assert puzzles.task("copy", 10).trained == 5
    assert [cell.partition(" (")[0] for cell in puzzles.task("copy", 10).rows[0][1]][-1] == "**1 of 2**"
    made = synthetic_records.diverge(records("copy", lambda *_: 0.0), "fox", 0)
    assert puzzles.task("copy", 3).complete  # a training that diverged is there


def ranked(shares: Mapping[str, Mapping[str, float]], apart: float = 0.0) -> list[puzzles.Task]:
    """The puzzles of the published order with these shares of schemes at every longer length; the last of three seeds
    is apart from the others. Schemes have their seeds in another order."""

    def share(task: str) -> Share:
        return lambda scheme, seed, n: (
            shares[task].get(scheme, 0.0) + apart * (seed == 2) if n > LENGTHS[task][0] else 1
        )

    made = []
    for task in LENGTHS:
        own = records(task, share(task))
        own += [record for record in own if record["seed"] == 2]
        made.append(puzzle(task, own))
    return made


def test_the_published_order_is_compared_with_ranks_at_longer_rows() -> None:
    as_published = dict(zip(RANKED, (0.9, 0.8, 0.7, 0.6, 0.5), strict=True))
    nobody = {"nope": 0.04}
    order = puzzles.order(ranked(dict.fromkeys(LENGTHS, as_published) | {"addition": nobody}))
    assert order is not None
    assert order.reproduced
    assert [place.found for place in order.places] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert [(place.low, place.high) for place in order.places] == [(place.found,) * 2 for place in order.places]
    assert {name for name, _ in order.ranked} == {"copy", "reverse", "sort"}
    assert order.unranked == [("addition", 6), ("addition", 7), ("addition", 10)]

    tied = {"alibi": 0.9, "nope": 0.8, "t5": 0.8}
    order = puzzles.order(ranked(dict.fromkeys(LENGTHS, tied)))
    assert order is not None
    assert (order.reproduced, order.found[0]) == (False, "alibi")
    ranks = {"alibi": 1, "nope": 2.5, "t5": 2.5, "rope": 4.5, "sinusoidal": 4.5}  # those with the same share a rank
    assert {place.scheme: 1 / place.found for place in order.places} == pytest.approx(ranks)
    alike = puzzles.order(ranked(dict.fromkeys(LENGTHS, dict.fromkeys(RANKED, 0.5))))
    assert alike is not None
    assert not alike.reproduced


def test_the_page_of_puzzles_is_written_from_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shares = {"rope": 0.97, "nope": 0.5}
    parts = {task: records(task, lambda scheme, seed, n: shares.get(scheme, 0.0)) for task in LENGTHS}
    parts["copy"] += on_gpu(records("copy", lambda *_: 0.0, ("nope",), (2,)))
    parts["reverse"] = [r for r in parts["reverse"] if r["seed"] < 2]
    parts["reverse"] += on_gpu(records("reverse", lambda scheme, seed, n: shares.get(scheme, 0.0), seeds=(2,)))
    parts["sort"] = [record for record in parts["sort"] if record["scheme"] == "rope"]
    for module in (puzzles, findings, pages):
        monkeypatch.setattr(module, "records", lambda part: parts.get(part, []))
    for name in ("DOCS", "CHOOSE"):
        monkeypatch.setattr(pages, name, tmp_path)
    monkeypatch.setattr(pages, "FILE", tmp_path / "records.json")
    monkeypatch.setattr(pages, "TEXTS", {"python": 3, "plays": 3})
    monkeypatch.setattr(pages, "TASKS", dict.fromkeys(LENGTHS, 3))
    pages.main()
    page = (tmp_path / "study" / "tasks.md").read_text()
    assert "when all trainings of copy, reverse, sort and addition are complete." in page
    assert "| copy | 24 of 24 | RoPE | RoPE, at 40 (2 ×) |" in page
    tables = {each["name"]: each for each in json.loads((tmp_path / "study.json").read_text())["records"]}
    assert tables.keys() == {"study_rules"}
    assert tables["study_rules"]["heads"][0] == "copy, 2 times as long"
    assert tables["study_rules"]["rows"][2] == {"label": "RoPE", "schemes": ["rope"], "figures": ["3 of 3"] * 4}
    assert tables["study_rules"]["too_few"] == "3 seeds"
    cells = "**3 of 3** (.44 to 1.00), .97"
    assert f"| RoPE | {cells} | {cells} | {cells} | {cells} |" in page
    assert (
        "**Found.** Solved with half of the seeds or more: at 20, RoPE; at 25, RoPE; at 30, RoPE; at 40, RoPE." in page
    )
    assert "**So far**, and nothing follows from it. Solved with half" in page  # of sorting
    assert page.count("30 seconds on a CPU core (median of 24)") == 2
    assert "30 seconds on a CPU core (median of 16) and 30 seconds on an H1 (median of 8)" in page
    index = (tmp_path / "study" / "index.md").read_text()
    assert "1 trainings ran on both" in index
    assert "| copy | 24 (seeds 0 to 2) | – |" in index
    assert "| reverse | 16 (seeds 0 to 1) | 8 (seeds 2 to 2) |" in index

    parts["sort"] = records("sort", lambda scheme, seed, n: shares.get(scheme, 0.0))
    pages.main()
    page = (tmp_path / "study" / "tasks.md").read_text()
    assert "The order found is not the published one: RoPE, NoPE, T5, ALiBi, Sinusoidal." in page
    assert "| NoPE | 0.69 | 0.50 | 0.50 to 0.50 |" in page
    assert "Ranked at copy 25, copy 30, copy 40, reverse 20," in page
