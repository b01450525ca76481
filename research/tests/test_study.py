"""The study: what its jobs are, and what its pages say of records, of texts and of puzzles, made up here."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenc_lab.compare.config import Rate
from posenc_lab.compare.summary import Estimate
from posenc_lab.kit.files import digest_of
from posenc_lab.kit.statistics import mean_of
from study import findings, pages, pieces, puzzles, run, texts
from study.findings import AT_ONE_RATE, Contrast, judged
from tests.compare import synthetic_records


def contrast(mean: float, spread: float, seeds: int = 10, published: str = "tied") -> Contrast:
    """A contrast whose difference has this mean and, from seed to seed and window to window, this spread."""
    rng = np.random.default_rng(0)
    values = rng.normal(0, spread, (seeds, 1)) + rng.normal(0, spread, (1, 64)) + rng.normal(0, spread, (seeds, 64))
    test = mean_of(values - values.mean() + mean)
    half = float(test.half())
    estimate = Estimate(mean, mean - half, mean + half, 64, seeds, test)
    return Contrast({"published": {"verdict": published}}, estimate)


def test_verdicts_are_those_of_the_plan() -> None:
    contrasts = [contrast(-0.1, 0.01), contrast(0.1, 0.01), contrast(0.0, 0.01), contrast(0.0, 0.2)]
    assert [each.verdict for each in judged(contrasts, 0.02)] == ["lower", "higher", "tied", "undecided"]


def test_holm_corrects_over_all_tests() -> None:
    """A difference that one test alone would call real is none among eight of which no other is."""
    one = contrast(0.005, 0.006)
    assert one.found is not None
    assert one.found.found is not None
    p = float(one.found.found.p_value())
    assert 0.05 / 8 < p < 0.05
    assert judged([one], 0.001)[0].verdict == "higher"
    assert judged([one, *[contrast(0.0, 0.2)] * 7], 0.001)[0].verdict == "undecided"
    four = [one, *[contrast(0.0, 0.2)] * 3]  # p is .016 with the fewest degrees of freedom, .011 with Satterthwaite's
    assert [judged(four, 0.001, careful=careful)[0].verdict for careful in (True, False)] == ["undecided", "higher"]


RATE = Rate(0.004, 3.0)


@pytest.fixture(autouse=True)
def _tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "tuned", lambda part, folder: RATE)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Records of the study, as they would be kept, of schemes at seeds."""
    growth = {scheme: 0.1 * n for n, scheme in enumerate(run.SCHEMES.values())} | synthetic_records.GROWTH
    level = {scheme: 2.4 + 0.05 * n for n, scheme in enumerate(run.SCHEMES.values())} | synthetic_records.LEVEL
    monkeypatch.setattr(synthetic_records, "GROWTH", growth)
    monkeypatch.setattr(synthetic_records, "LEVEL", level)
    at = {"learning_rate": RATE.learning_rate, "multiplier": RATE.multiplier}
    plan = {"plan": digest_of((findings.HERE / "plan.md").read_bytes())}

    def made(schemes: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
        records = synthetic_records.records(tuple(schemes), tuple(seeds))
        return [{**record, **plan, **(at if record["kind"] == "training" else {})} for record in records]

    return made


def test_records_that_do_not_belong_together_are_refused(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = kept(["nope"], [0]), kept(["rope"], [0])

    def refused(records: list[dict[str, Any]], message: str) -> None:
        monkeypatch.setattr(findings, "records", lambda part: records)
        with pytest.raises(ValueError, match=message):
            findings.text("plays", 1)

    other = [{**r, "text": {**r["text"], "digest": "old"}} for r in one]
    refused([*other, *two], "plays must hold the records of one comparison, got ")
    refused([{**r, "plan": "old"} for r in one], "plays must be of the plan [0-9a-f]{16}, got records of old")
    refused(
        [{**r, "multiplier": 1.0} if r["kind"] == "training" else r for r in one],
        r"plays: nope must be trained at 0\.004x3, got a training at 0\.004x1",
    )


def trial(scheme: str, number: int, rate: Rate, bits: float) -> dict[str, Any]:
    about = synthetic_records.records(("nope",))[0]
    named = {name: about[name] for name in ("fingerprint", "configuration", "text", "versions", "machine", "time")}
    result = {"learning_rate": rate.learning_rate, "multiplier": rate.multiplier, "bits": bits, "seconds": 1.0}
    return {"kind": "trial", "scheme": scheme, "seed": 0, "trial": number, **result, "longest": bits + 1, **named}


def trials(scheme: str, untuned: float, best: float) -> list[dict[str, Any]]:
    others = [trial(scheme, n, Rate(0.001 * n, 1.0), 9.0) for n in range(6, 18)]
    by_default = trial(scheme, 18, Rate(0.005, 30.0), best + 0.3)
    return [trial(scheme, 0, AT_ONE_RATE, untuned), trial(scheme, 1, Rate(0.02, 30.0), best), *others, by_default]


def written_to(folder: Path, parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets pages be written of these records, and to a folder."""
    for name in ("DOCS", "CHOOSE"):
        monkeypatch.setattr(pages, name, folder)
    monkeypatch.setattr(pages, "FILE", folder / "records.json")
    for module in (findings, pages, puzzles):
        monkeypatch.setattr(module, "records", lambda part: parts.get(part, []))
    monkeypatch.setattr(pieces, "read", lambda *of: parts.get("pieces", []))
    monkeypatch.setattr(pages, "png", lambda drawn, dark: b"")


ROWS = {"copy": (20, 25, 30, 40), "reverse": (16, 20, 24, 32), "sort": (20, 25, 30, 40), "addition": (5, 6, 7, 10)}
ROWS["recall"] = (16, 32, 64, 128)
RANKED = tuple(findings.PUBLISHED["ranks"])
Share = Callable[..., float]


def puzzle_records(task: str, share: Share, schemes: Sequence[str] = (), seeds: Sequence[int] = (0, 1, 2)) -> list[Any]:
    """A finished comparison: of a scheme, a seed and a length, the share of a hundred rows that are right."""
    made: list[Any] = []
    shared = synthetic_records.records(("nope",))[0]
    about = {name: shared[name] for name in ("text", "versions", "machine", "time")}
    about |= {"fingerprint": "a", "plan": digest_of((findings.HERE / "plan.md").read_bytes())}
    config = {"task": task, "timed": False, "device": "cpu", "train_length": ROWS[task][0], "test_lengths": ROWS[task]}
    trained = {"learning_rate": 0.004, "multiplier": 3.0, "seconds": 30.0}
    for scheme in schemes or [run.Job(task, folder, ()).scheme for folder in run.OF_TASKS]:
        about["configuration"] = {**config, "schemes": [scheme], "seeds": seeds}
        for seed in seeds:
            of = {"scheme": scheme, "seed": seed, **about}
            made.append({"kind": "training", **trained, **of})
            for length in ROWS[task]:
                right = [float(n < round(100 * share(scheme, seed, length))) for n in range(100)]
                made.append({"kind": "accuracy", "length": length, "accuracy": right, "examples": 1, **of})
    return made


def complete(kept: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """The records of three seeds of everything, with all trials; of puzzles RoPE alone solves some."""
    schemes = list(run.SCHEMES.values())
    tried = [*trials("t5", 2.5, 2.0), *trials("rope", 2.2, 2.1)]
    tried += [record for scheme in schemes if scheme not in ("t5", "rope") for record in trials(scheme, 2.6, 2.6)]
    three = kept(schemes, range(3))
    texts = {"python": [*tried, *three], "plays": three, "larger": three}
    shares = {"rope": 0.97, "nope": 0.5}
    tasks = {task: puzzle_records(task, lambda scheme, seed, n: shares.get(scheme, 0.0)) for task in ROWS}
    monkeypatch.setattr(pages, "TEXTS", dict.fromkeys(texts, 3))
    monkeypatch.setattr(pages, "TASKS", dict.fromkeys(tasks, 3))
    return texts | tasks


def test_pages_are_written_from_records(kept: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is said is what they hold; where a training is missing nothing is."""
    parts = complete(kept, monkeypatch)
    parts["copy"] += on_gpu(puzzle_records("copy", lambda *_: 0.0, ("nope",), (2,)))  # twice: the CPU's counts
    parts["reverse"] = [r if r["seed"] < 2 else on_gpu([r])[0] for r in parts["reverse"]]
    written_to(tmp_path, parts, monkeypatch)
    pages.main()
    page = {path.stem: path.read_text() for path in (tmp_path / "study").iterdir()}
    assert "T5 gains most from a rate of its own, 0.50 bits per byte" in page["tuning"]
    assert "gives T5 by default, × 30, that one rate gives 2.300 and 3.300." in page["tuning"]
    assert "| 1 | T5 | 2.500 | 2.000 | 3.500 | 3.000 | 0.02 | × 30, at an end | 2 |" in page["tuning"]
    of = findings.text("python", 3)
    (best,) = of.summary.best("sliding", 1024)[:1]
    value = of.summary.bits("sliding", best, 1024)
    python, _, larger = page["texts"].split("\n## ")[1:]
    assert f"**{value.mean:.3f} ± {value.high - value.mean:.3f}**" in python
    assert "**" not in larger  # described, not tested
    counts = [findings.exploratory(of, n)["t5"] for n in findings.LENGTHS]
    assert re.search(rf"^\| T5 \| 3 \|.*\| {counts[0]}; {counts[1]} \|$", python, re.M)
    found, lower = findings.contrasts(of), 0
    told = json.loads((tmp_path / "claims.json").read_text())["claims"]
    for each, claim in zip(found, told, strict=True):
        assert f"| {pages.interval(each.found)}, {pages.outcome(each)} |" in page["contrasts"]
        lower += 2 * (each.agrees == "yes" and claim["name"] == "t5_alibi_trained")  # on both texts
        assert claim["published"]["verdict"] in ("lower", "higher", "tied")
        assert claim["ours"]["python"] == claim["ours"]["plays"] == each.to_dict()
    assert f"the tests that agree would be {lower} fewer" in page["contrasts"]
    one, *others = json.loads((tmp_path / "records.json").read_text())["records"]
    assert one["source"].startswith("the Python files of Django 5.2.8 and SQLAlchemy 2.0.44 (1,234,567 bytes)")
    assert one["seeds"] == {findings.key(scheme): 3 for scheme in run.SCHEMES.values()}
    for each in found:
        assert each.found is not None
        assert f"{findings.signed(each.found.mean)} at {each.claim['length']:,} ({each.verdict})" in one["verdict"]
    assert all("shipped" in each for each in others)
    tables = {each["name"]: each for each in json.loads((tmp_path / "study.json").read_text())["records"]}
    for row, worth in zip(*(tables[f"study_python{far}"]["rows"] for far in ("", "_far")), strict=True):
        cells = [*row["figures"], *worth["figures"]]  # as the page has them, from the trained length on
        line = next(line for line in python.splitlines() if line.startswith(f"| {row['label']} |"))
        assert f"| {' | '.join(cells)} |" in line.replace("**", "")
    assert "| copy | RoPE 3, at 20 | RoPE 3, at 40 |" in page["tasks"]
    assert "0.00 to 0.56 for 0, 0.06 to 0.79 for 1, 0.44 to 1.00 for 3" in page["tasks"]
    assert "| NoPE | 0.69 | 0.50 |" in page["tasks"]
    assert "5 % of the rows: copy 25, copy 30, copy 40, reverse 20," in page["tasks"]
    assert tables["study_rules"]["heads"][0] == "copy, 2 times as long"
    assert tables["study_rules"]["rows"][2]["figures"] == ["3 of 3"] * 4
    assert "- Puzzles: 112 on CPU (seeds 0 to 2), 8 on H1 (seeds 2 to 2)\n" in page["index"]
    names = {f"study-{part}{dark}.png" for part in pages.TEXTS for dark in ("", "-dark")}
    assert {path.name for path in (tmp_path / "images").iterdir()} == names
    del parts["plays"][-1:]
    with pytest.raises(ValueError, match="plays must have 42 trainings with all tests, got 41"):
        pages.main()


def on_gpu(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same records as if from a GPU, with other versions."""
    about: dict[str, Any] = {"machine": {"device": "H1"}, "fingerprint": "of the GPU"}
    about["versions"] = {"torch": "2.11.0+cu130"}
    return [{**record, **about, "configuration": {**record["configuration"], "device": "cuda"}} for record in records]


def test_a_scheme_that_is_not_tuned_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RECORDS", tmp_path)
    with pytest.raises(ValueError, match="rope must be tuned on python first: it has had 0 of 15 trials"):
        run.Job("plays", "rope", (0,)).configuration()


def test_a_job_is_done_when_its_folder_holds_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RECORDS", tmp_path)
    tuning, one, two = (run.Job("python", "rope", tuple(range(seeds))) for seeds in (0, 1, 2))
    made = trials("rope", 2.2, 2.1) + synthetic_records.records(("rope",))

    def kept(count: int) -> list[bool]:
        tuning.out.mkdir(parents=True, exist_ok=True)
        (tuning.out / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in made[:count]))
        return [job.done() for job in (tuning, one, two)]

    assert kept(14) == [False, False, False]
    assert kept(15) == [True, False, False]
    assert kept(len(made) - 2) == [True, False, False]  # a training that is not tested to its end
    assert kept(len(made)) == [True, True, False]


def test_natural_copies_are_pieces_around_a_change() -> None:
    old = b"class One:\n    def forward(self, states):\n        return LlamaAttention(config, layer_idx)\n"
    new, seen, piece = (
        old.replace(b"Llama", b"Qwen"),
        set[bytes](),
        b"states):\n        return LlamaAttention(config, l",
    )
    assert list(texts.pairs(old, new, seen)) == [piece + piece.replace(b"Llama", b"Qwen") + b"a"]
    assert list(texts.pairs(old, old.replace(b"Llama", b"Zaya"), seen)) == []
    assert list(texts.pairs(old, old.replace(b"return LlamaAttention(config, layer_idx)", b"x = 1"), set())) == []


# --- puzzles ---


def puzzle(task: str, made: list[Any], seeds: int = 3) -> puzzles.Task:
    return puzzles.Task(task, findings.summary(task, made), seeds)


def test_a_task_counts_the_seeds_that_solve_it() -> None:
    shares = {"nope": {20: (1.0, 1.0, 0.9)}, "rope": {20: (1.0, 1.0, 1.0), 40: (1.0, 0.2, 0.1)}}
    made = puzzle_records("copy", lambda scheme, seed, n: shares[scheme].get(n, (0.0,) * 3)[seed], ("nope", "rope"))
    copy = puzzles.Task("copy", findings.summary("copy", made), 10)
    assert (copy.trained, copy.planned, copy.lengths) == (6, 80, (20, 25, 30, 40))
    assert [copy.solvers(n) for n in copy.lengths] == [["nope", "rope"], [], [], []]
    assert [copy.solved("rope", n) for n in copy.lengths] == [3, 0, 0, 1]
    assert puzzle("copy", made[:-1]).trained == 5  # rope's last seed was not tested to its end
    assert puzzle("copy", synthetic_records.diverge(puzzle_records("copy", lambda *_: 0.0), "fox", 0)).whole()


def ranked(shares: Mapping[str, Mapping[str, float]]) -> list[puzzles.Task]:
    """The puzzles of the published order with these shares of schemes at every longer length. Schemes have their seeds
    in another order."""
    made = []
    for task in findings.PUBLISHED["ranked"]:
        own = puzzle_records(task, lambda scheme, seed, n, of=shares[task]: of.get(scheme, 0.0))
        made.append(puzzle(task, own + [record for record in own if record["seed"] == 2]))
    return made


def test_the_published_order_is_compared_with_ranks_at_longer_rows() -> None:
    as_published = dict(zip(RANKED, (0.9, 0.8, 0.7, 0.6, 0.5), strict=True))
    nobody = {"nope": 0.04}
    ranks, places = puzzles.order(ranked(dict.fromkeys(ROWS, as_published) | {"addition": nobody}))
    assert list(ranks.values()) == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert {name for name, _ in places} == {"copy", "reverse", "sort"}

    tied = {"alibi": 0.9, "nope": 0.8, "t5": 0.8}
    ranks, _ = puzzles.order(ranked(dict.fromkeys(ROWS, tied)))
    wanted = {"alibi": 1, "nope": 2.5, "t5": 2.5, "rope": 4.5, "sinusoidal": 4.5}  # those with the same share a rank
    assert {scheme: 1 / rank for scheme, rank in ranks.items()} == pytest.approx(wanted)
