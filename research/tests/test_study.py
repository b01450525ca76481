"""The study: what its jobs are, and what its pages say of records, made up here."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenc_lab.compare.config import Rate
from posenc_lab.compare.summary import Estimate
from posenc_lab.kit.files import digest_of
from posenc_lab.kit.statistics import mean_of
from study import findings, pages, puzzles, run, texts
from study.claims import check
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


RATE = Rate(0.004, 3.0)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Records of the study, as they would be kept, of schemes at seeds."""
    growth = {scheme: 0.1 * n for n, scheme in enumerate(run.SCHEMES.values())} | synthetic_records.GROWTH
    level = {scheme: 2.4 + 0.05 * n for n, scheme in enumerate(run.SCHEMES.values())} | synthetic_records.LEVEL
    monkeypatch.setattr(synthetic_records, "GROWTH", growth)
    monkeypatch.setattr(synthetic_records, "LEVEL", level)
    monkeypatch.setattr(findings, "tuned", lambda part, folder: RATE)
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


def test_pages_are_written_from_records(kept: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without records, with some, and with all of a text, and what is said is what they hold."""
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    monkeypatch.setattr(pages, "CHOOSE", tmp_path)
    monkeypatch.setattr(pages, "FILE", tmp_path / "records.json")
    monkeypatch.setattr(pages, "png", lambda summary, title, dark: title.encode())  # panels have a test of their own
    parts: dict[str, list[dict[str, Any]]] = {}
    for module in (findings, pages, puzzles):
        monkeypatch.setattr(module, "records", lambda part: parts.get(part, []))
    pages.main()
    assert "No scheme has had all of its trials yet." in (tmp_path / "study" / "tuning.md").read_text()

    schemes = list(run.SCHEMES.values())
    tried = [*trials("t5", 2.5, 2.0), *trials("rope", 2.2, 2.1)]
    parts |= {"python": [*tried, *kept(schemes, range(3))], "plays": kept(schemes[:5], range(3))}
    monkeypatch.setattr(pages, "TEXTS", {"python": 3, "plays": 3})
    pages.main()
    page = {path.stem: path.read_text() for path in (tmp_path / "study").iterdir()}
    assert "T5 gains most from a rate of its own, 0.50 bits per byte" in page["tuning"]
    assert "gives T5 by default, × 30, that one rate gives 2.300 and 3.300." in page["tuning"]
    assert "| 1 | T5 | 2.500 | 2.000 | 3.500 | 3.000 | 0.02 | × 30, at an end | 2 |" in page["tuning"]
    of = findings.text("python", 3)
    (best,) = of.summary.best("sliding", 1024)[:1]
    value = of.summary.bits("sliding", best, 1024)
    assert f"**{value.mean:.3f} ± {value.high - value.mean:.3f}**" in page["python"]
    assert "by Holm's tests of all pairs" in page["python"]
    assert "15 of 42 trainings are there" in page["plays"]
    assert "by Holm's tests of all pairs" not in page["plays"]
    for each in findings.contrasts(of):
        assert f"| {pages.interval(each.found)} | 3 | {each.verdict} | {each.agrees} |" in page["contrasts"]
    assert "(perplexities 1.7 % apart) and T5 lower than ALiBi (0.4 %)" in page["contrasts"]
    lower = sum(one.agrees == "yes" for one in findings.contrasts(of) if one.claim["name"] == "t5_alibi_trained")
    assert f"the tests that agree would be {lower} fewer" in page["contrasts"]
    assert page["contrasts"].count("not before all seeds") == 8  # of plays
    told = json.loads((tmp_path / "claims.json").read_text())["claims"]
    assert all(claim["ours"]["python"] and not claim["ours"]["plays"] for claim in told)
    for claim in told:
        check(claim)
    python, plays, *others = json.loads((tmp_path / "records.json").read_text())["records"]
    assert (python["name"], plays["name"]) == ("Python's packages", "Shakespeare's works")
    assert python["source"].startswith("the Python files of Django 5.2.8 and SQLAlchemy 2.0.44 (1,234,567 bytes)")
    assert python["seeds"] == {findings.key(scheme): 3 for scheme in schemes}
    for each in findings.contrasts(of):
        assert each.found is not None
        assert f"{findings.signed(each.found.mean)} at {each.claim['length']:,} ({each.verdict})" in python["verdict"]
    assert plays["verdict"] == "Undecided: 15 of 42 trainings are there, and the study gives verdicts after the last."
    assert all("shipped" in each for each in others)
    tables = {each["name"]: each for each in json.loads((tmp_path / "study.json").read_text())["records"]}
    assert {name: table["too_few"] for name, table in tables.items()} == {
        "study_python": "",
        "study_python_far": "",
        "study_plays": "3 seeds",
        "study_plays_far": "3 seeds",
    }
    for text in parts:
        for row, worth in zip(*(tables[f"study_{text}{far}"]["rows"] for far in ("", "_far")), strict=True):
            cells = [*row["figures"], *worth["figures"]]  # as the page has them, from the trained length on
            line = next(line for line in page[text].splitlines() if line.startswith(f"| {row['label']} |"))
            assert line.replace("**", "").endswith(f"| {' | '.join(cells)} |")
    names = {f"study-{part}{dark}.png" for part in parts for dark in ("", "-dark")}
    assert {path.name for path in (tmp_path / "images").iterdir()} == names


def on_gpu(records: Sequence[dict[str, Any]], more: float = 0.0) -> list[dict[str, Any]]:
    """The same records as if from a GPU: with other versions, and losses that are higher, at the end the most."""
    made = []
    for record in records:
        config, machine = (
            {**record[name], "device": device} for name, device in (("configuration", "cuda"), ("machine", "H1"))
        )
        about = {"machine": machine, "versions": {**record["versions"], "torch": "2.11.0+cu130"}}
        told = {**record, **about, "configuration": config, "fingerprint": "of the GPU"}
        if "curve" in told:
            told["curve"] = [
                [step, bits + more * n / len(told["curve"])] for n, (step, bits) in enumerate(told["curve"])
            ]
        made.append(told)
    return made


def test_a_scheme_that_is_not_tuned_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RECORDS", tmp_path)
    with pytest.raises(ValueError, match="rope must be tuned on python first: it has had 0 of 15 trials"):
        run.Job("plays", "rope", (0,)).configuration()


def write(out: Path, records: Sequence[Any]) -> None:
    """The records in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_job_is_done_when_its_folder_holds_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RECORDS", tmp_path)
    tuning, one, two = (run.Job("python", "rope", tuple(range(seeds))) for seeds in (0, 1, 2))
    made = trials("rope", 2.2, 2.1) + synthetic_records.records(("rope",))

    def kept(count: int) -> list[bool]:
        write(tuning.out, made[:count])
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


def test_pages_are_written_where_the_documentation_is() -> None:
    assert (pages.DOCS / "study" / "plan.md").read_bytes() == (pages.HERE / "plan.md").read_bytes()
