"""The study: what its jobs are, and what its pages say of records, made up here."""

import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenc_lab.choose.evidence import claims
from posenc_lab.compare.config import Rate
from posenc_lab.compare.summary import Estimate, Summary
from posenc_lab.kit.files import digest_of
from posenc_lab.kit.statistics import mean_of
from study import devices, found, pages, puzzles, run, shipped
from study.claims import check
from study.found import AT_ONE_RATE, Contrast, judged
from study.pictures import panels
from tests.compare import made_up, test_accuracy, test_summary


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


def test_a_contrast_that_cannot_be_judged_has_no_verdict_and_counts_as_a_test() -> None:
    one, lacking = contrast(0.005, 0.006), replace(contrast(0.0, 0.01), found=None)
    assert [each.verdict for each in judged([contrast(-0.1, 0.01), lacking], 0.02)] == ["lower", ""]
    assert judged([one, *[lacking] * 7], 0.001)[0].verdict == "undecided"
    few = contrast(-0.1, 0.01, seeds=2)
    assert judged([few], 0.02)[0].verdict == ""


@pytest.mark.parametrize(
    ("published", "verdict", "agrees"),
    [("lower", "lower", "yes"), ("lower", "tied", "no"), ("tied", "undecided", "undecided"), ("lower", "", "")],
)
def test_agreement_is_with_what_was_published(published: str, verdict: str, agrees: str) -> None:
    assert replace(contrast(0.0, 0.1, published=published), verdict=verdict).agrees == agrees


RATE = Rate(0.004, 3.0)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Records of the study, as they would be kept, of schemes at seeds."""
    growth = {scheme: 0.1 * n for n, scheme in enumerate(run.SCHEMES.values())} | made_up.GROWTH
    level = {scheme: 2.4 + 0.05 * n for n, scheme in enumerate(run.SCHEMES.values())} | made_up.LEVEL
    monkeypatch.setattr(made_up, "GROWTH", growth)
    monkeypatch.setattr(made_up, "LEVEL", level)
    monkeypatch.setattr(found, "tuned", lambda part, folder: RATE)
    at = {"learning_rate": RATE.learning_rate, "multiplier": RATE.multiplier}
    plan = {"plan": digest_of((found.HERE / "plan.md").read_bytes())}

    def made(schemes: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
        records = made_up.records(tuple(schemes), tuple(seeds))
        return [{**record, **plan, **(at if record["kind"] == "training" else {})} for record in records]

    return made


def test_a_text_is_complete_when_all_its_trainings_are_there(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schemes = list(run.SCHEMES.values())
    monkeypatch.setattr(found, "records", lambda part: kept(schemes[:5], range(3)))
    of = found.text("python", 3)
    assert (of.trained, of.planned, of.complete) == (15, 42, False)
    assert of.progress == "15 of 42 trainings are there"
    assert {each.verdict for each in found.contrasts(of)} == {""}
    monkeypatch.setattr(found, "records", lambda part: kept(schemes, range(3)))
    of = found.text("python", 3)
    assert (of.complete, of.progress) == (True, "all 42 trainings are there")
    assert all(each.verdict for each in found.contrasts(of))


def test_records_that_do_not_belong_together_are_refused(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = kept(["nope"], [0]), kept(["rope"], [0])

    def refused(records: list[dict[str, Any]], message: str) -> None:
        monkeypatch.setattr(found, "records", lambda part: records)
        with pytest.raises(ValueError, match=message):
            found.text("plays", 1)

    other = [{**r, "text": {**r["text"], "digest": "old"}} for r in one]
    refused([*other, *two], "plays must hold the records of one comparison, got ")
    refused([{**r, "plan": "old"} for r in one], "plays must be of the plan [0-9a-f]{16}, got records of old")
    refused(
        [{**r, "multiplier": 1.0} if r["kind"] == "training" else r for r in one],
        r"plays: nope must be trained at 0\.004x3, got a training at 0\.004x1",
    )


def trial(scheme: str, number: int, rate: Rate, bits: float) -> dict[str, Any]:
    about = made_up.records(("nope",))[0]
    named = {name: about[name] for name in ("fingerprint", "configuration", "text", "versions", "machine", "time")}
    result = {"learning_rate": rate.learning_rate, "multiplier": rate.multiplier, "bits": bits, "seconds": 1.0}
    return {"kind": "trial", "scheme": scheme, "seed": 0, "trial": number, **result, "longest": bits + 1, **named}


def trials(scheme: str, untuned: float, best: float) -> list[dict[str, Any]]:
    others = [trial(scheme, n, Rate(0.001 * n, 1.0), 9.0) for n in range(6, 18)]
    by_default = trial(scheme, 18, Rate(0.005, 30.0), best + 0.3)
    return [trial(scheme, 0, AT_ONE_RATE, untuned), trial(scheme, 1, Rate(0.02, 30.0), best), *others, by_default]


def test_tuning_says_who_gains_and_who_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        *trials("t5", 2.5, 2.0),
        *trials("rope", 2.2, 2.1),
        *trials("nope", 3.0, 2.9),
        trial("fire", 0, AT_ONE_RATE, 1.0),
    ]
    monkeypatch.setattr(found, "records", lambda part: made)
    first, *others = found.tuning()
    assert (first.scheme, first.rate, first.untuned, first.best) == ("t5", Rate(0.02, 30.0), (2.5, 3.5), (2.0, 3.0))
    assert (first.place, first.untuned_place, round(first.gain, 6), first.seconds) == (1, 2, 0.5, 15.0)
    assert first.by_default == (30.0, 2.3, 3.3)
    assert [each.by_default for each in others] == [None, None]
    assert [(each.scheme, each.place, each.untuned_place) for each in others] == [("rope", 2, 1), ("nope", 3, 3)]


def test_pages_are_written_from_records(kept: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without records, with some, and with all of a text, and what is said is what they hold."""
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    monkeypatch.setattr(pages, "CHOOSE", tmp_path)
    monkeypatch.setattr(pages, "FILE", tmp_path / "records.json")
    monkeypatch.setattr(pages, "png", lambda summary, title, dark: title.encode())  # panels have a test of their own
    monkeypatch.setattr(found, "records", lambda part: [])
    monkeypatch.setattr(puzzles, "records", lambda part: [])
    pages.main()
    assert "No scheme has had all of its trials yet." in (tmp_path / "study" / "tuning.md").read_text()

    schemes = list(run.SCHEMES.values())
    tried = [*trials("t5", 2.5, 2.0), *trials("rope", 2.2, 2.1)]
    parts = {"python": [*tried, *kept(schemes, range(3))], "plays": kept(schemes[:5], range(3))}
    monkeypatch.setattr(found, "records", lambda part: parts.get(part, []))
    monkeypatch.setattr(pages, "TEXTS", {"python": 3, "plays": 3})
    pages.main()
    page = {path.stem: path.read_text() for path in (tmp_path / "study").iterdir()}
    assert "`t5` gains most from a rate of its own, 0.50 bits per byte" in page["tuning"]
    assert "gives `t5` by default, × 30, that one rate gives 2.300 and 3.300." in page["tuning"]
    assert "| 1 | t5 | 2.500 | 2.000 | 3.500 | 3.000 | 0.02 | × 30, at an end | 2 |" in page["tuning"]
    of = found.text("python", 3)
    (best,) = of.summary.best("sliding", 1024)[:1]
    value = of.summary.bits("sliding", best, 1024)
    assert f"**{value.mean:.3f} ± {value.high - value.mean:.3f}**" in page["python"]
    assert "by Holm's tests of all pairs" in page["python"]
    assert "15 of 42 trainings are there" in page["plays"]
    assert "by Holm's tests of all pairs" not in page["plays"]
    for each in found.contrasts(of):
        assert f"| {pages.interval(each.found)} | 3 | {each.verdict} | {each.agrees} |" in page["contrasts"]
    assert page["contrasts"].count("not before all seeds") == 8  # of plays
    told = json.loads((tmp_path / "claims.json").read_text())["claims"]
    assert all(claim["ours"]["python"] and not claim["ours"]["plays"] for claim in told)
    for claim in told:
        check(claim)
    python, plays, *others = json.loads((tmp_path / "records.json").read_text())["records"]
    assert (python["name"], plays["name"]) == ("Python's packages", "Shakespeare's works")
    assert python["source"].startswith("the Python files of Django 5.2.8 and SQLAlchemy 2.0.44 (1,234,567 bytes)")
    assert python["seeds"] == {found.label(scheme): 3 for scheme in schemes}
    for each in found.contrasts(of):
        assert each.found is not None
        assert f"{found.signed(each.found.mean)} at {each.claim['length']:,} ({each.verdict})" in python["verdict"]
    assert plays["verdict"] == "Undecided: 15 of 42 trainings are there, and the study gives verdicts after the last."
    assert all("shipped" in each for each in others)
    tables = {each["name"]: each for each in json.loads((tmp_path / "study.json").read_text())["records"]}
    assert {name: table["too_few"] for name, table in tables.items()} == {
        "study_python": "",
        "study_python_far": "",
        "study_plays": "3 seeds",
        "study_plays_far": "3 seeds",
        "digits": "",
    }
    for text in parts:
        for row, worth in zip(*(tables[f"study_{text}{far}"]["rows"] for far in ("", "_far")), strict=True):
            cells = [*row["figures"], *worth["figures"]]  # as the page has them, from the trained length on
            line = next(line for line in page[text].splitlines() if line.startswith(f"| {row['label']} |"))
            assert line.replace("**", "").endswith(f"| {' | '.join(cells)} |")
    names = {f"study-{part}{dark}.png" for part in parts for dark in ("", "-dark")}
    assert {path.name for path in (tmp_path / "images").iterdir()} == names


def test_what_ships_of_an_extension_is_what_its_page_says() -> None:
    page = (found.HERE.parents[1] / "docs" / "extend.md").read_text()
    given = tomllib.loads((found.HERE / "extend.toml").read_text())
    for scheme, numbers in given["curves"].items():
        cells = (f"{each[0]:.3f} ± {each[1]:.3f}" if each else "as none" for each in numbers)
        row = " | ".join(cell.replace("0.", ".") for cell in cells)
        assert f"| {scheme} | {row} |" in page
    made = shipped.extension(given)
    (measure,) = made["measures"]
    assert measure["baselines"] == {"cropped": measure["curves"]["none"][1]}
    assert measure["curves"]["yarn"][2][:3] == pytest.approx([0.58, 0.345, 0.815])
    assert measure["curves"]["dynamic"][0] == [None, None, None, "missing"]


def test_a_text_is_drawn_in_a_panel_for_each_scheme() -> None:
    records = [r for r in made_up.records(seeds=(0, 1)) if (r["scheme"], r["seed"]) != ("rope", 1)]
    figure = panels(Summary(made_up.diverge(records, "nope")), "A text")
    texts = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    means = {n: f"{test_summary.bits(records, 'sliding', 'alibi', n).mean():.2f}" for n in (128, 1024)}
    assert texts[0] == ["alibi", f"2 seeds: {means[128]} → {means[1024]}"]
    assert texts[-1][0] == "learned"
    assert texts[-1][1].endswith(" → undefined")
    assert [words[0] for words in texts].count("rope") == 1
    assert next(words[1] for words in texts if words[0] == "rope").startswith("1 seed: ")
    assert panels(Summary([]), "Nothing").axes == []


def test_of_images_the_best_are_said_and_that_none_was_tuned() -> None:
    assert shipped.unbeaten(Summary(test_accuracy.records("digits", (0, 1, 2)))) == (
        "Not tuned, so the order can be that of the learning rate. No scheme is shown to beat: at the training grid of "
        "8 × 8 patches, learned, sinusoidal and relative_2d; at 16 × 16 patches, sinusoidal; at 16 × 16 patches with "
        "fitted positions, sinusoidal and relative_2d."
    )


@pytest.mark.parametrize(("seeds", "counted", "too_few"), [((0, 1, 2), "3 seeds", ""), ((0,), "one seed", "one seed")])
def test_the_table_of_images_is_what_was_measured(seeds: tuple[int, ...], counted: str, too_few: str) -> None:
    of = Summary(test_accuracy.records("digits", seeds))
    table = pages._of_images(of)
    assert f"; {counted}, not tuned." in table["measured"]
    assert table["too_few"] == too_few
    assert table["heads"][0] == f"{of.train_length} (trained)"
    for row in table["rows"]:
        value = of.bits("accuracy", row["label"], of.train_length)
        assert float(row["figures"][0].split(" ± ")[0]) == pytest.approx(value.mean, abs=6e-4)
    figures = {row["label"]: row["figures"] for row in table["rows"]}
    assert figures["learned"][-1] == "–"  # nothing to interpolate
    resized = of.bits("resized", "sinusoidal", of.test_lengths[-1])
    assert float(figures["sinusoidal"][-1].split(" ± ")[0]) == pytest.approx(resized.mean, abs=6e-4)


def test_what_was_found_is_kept_with_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `posenc choose` takes it, which checks each against its interval and the publication."""
    made = judged([contrast(mean, 0.01) for mean in (-0.1, 0.1, 0.0, 0.0)] * 2, 0.02)
    of = [replace(each, claim=claim) for each, claim in zip(made, claims(), strict=True)]
    kept = json.loads(pages._claims({"python": of, "plays": of}))["claims"]
    for claim, each in zip(kept, of, strict=True):
        check(claim)
        assert claim["ours"]["plays"]["verdict"] == each.verdict
        assert claim["ours"]["python"]["seeds"] == 10
    assert [claim["name"] for claim in kept] == [claim["name"] for claim in claims()]


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


def test_both_devices_are_of_one_comparison(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schemes = list(run.SCHEMES.values())
    made = [*kept(schemes, (0, 1)), *on_gpu(kept(schemes, (2,)))]
    monkeypatch.setattr(found, "records", lambda part: made)
    of = found.text("python", 3)
    assert of.complete
    assert devices.shares(of.summary.records) == [
        devices.Share("CPU", 28, 0, 1, 19.7),
        devices.Share("H1", 14, 2, 2, 19.7),
    ]
    took = "A training took 20 seconds on a CPU core (median of 28) and 20 seconds on an H1 (median of 14), beside"
    assert took in pages.cost(of.summary)
    alone = Summary(kept(schemes, (0, 1, 2)))
    assert of.summary.bits("sliding", "rope", 1024) == alone.bits("sliding", "rope", 1024)


def test_trainings_on_both_devices_are_compared(kept: Any) -> None:
    made = kept(["rope", "nope"], (0, 1))
    assert devices.twice([made, made[:3]]) is None
    gone = made_up.diverge(on_gpu(kept(["nope"], (0,))), "nope")  # has no curve
    both = devices.twice([[*made, *on_gpu(kept(["rope"], (1,)), more=0.5), *gone]])
    assert both is not None
    steps = len(next(r["curve"] for r in made if "curve" in r))
    assert (both.trainings, both.results) == (1, 0)
    assert both.last == pytest.approx(0.5 * (steps - 1) / steps)
    assert both.first == pytest.approx(0.5 * (steps // 10 - 1) / steps)


def test_what_was_made_again_is_compared_with_what_counts(kept: Any) -> None:
    counted, made = kept(["rope", "nope"], (0, 1)), kept(["rope"], (0, 1))
    for record in made:
        if record["kind"] == "sliding":
            record["bits"] = [bits + (0.1 if record["seed"] else -0.2) for bits in record["bits"]]
    found = devices.again(counted, made, "sliding", 128)
    assert found is not None
    assert (found.schemes, found.trainings) == (["rope"], 2)
    assert (found.mean, found.low, found.high) == pytest.approx((-0.05, -0.2, 0.1))
    assert devices.again(counted, [], "sliding", 128) is None


def test_a_training_that_both_devices_made_counts_once(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one was not tested to its end, the other is taken, and nothing is mixed."""
    full, begun = kept(["rope"], (0,)), on_gpu(kept(["rope"], (0,)))[:4]
    for made in ([*full, *begun], [*begun, *full]):
        monkeypatch.setattr(found, "records", lambda part, made=made: made)
        of = found.text("python", 1)
        assert {record["machine"]["device"] for record in of.summary.records} == {"cpu"}
        assert not of.summary.missing()


def test_in_short_is_what_holds_on_all_texts(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schemes = list(run.SCHEMES.values())

    def texts(*lows: str) -> list[found.Text]:
        """In each text another scheme is lowest."""
        made = []
        for low in lows:
            level = {scheme: 2.4 + 0.3 * (scheme != low) for scheme in schemes}
            monkeypatch.setattr(made_up, "LEVEL", level)
            monkeypatch.setattr(made_up, "GROWTH", dict.fromkeys(schemes, 0.0) | {"sinusoidal": 1.6})
            records = kept(schemes, range(3))
            monkeypatch.setattr(found, "records", lambda part, records=records: records)
            made.append(found.text("python", 3))
        return made

    one = found.short(texts("t5", "t5"))
    assert one is not None
    assert one.best[128] == ["t5"]
    both = found.short(texts("t5", "fox"))
    assert both is not None
    assert both.best[128] == []
    assert "alibi" in both.flat
    assert "sinusoidal" in both.steep
    assert not set(both.flat) & set(both.steep)
    of = found.text("python", 3)
    assert found.short([of, replace(of, seeds=4)]) is None
    assert found.short([]) is None


def test_what_was_not_published_stands_out() -> None:
    one = contrast(-0.1, 0.01, published="tied")
    assert pages.said(one) == "not yet"
    assert pages.said(replace(one, verdict="lower")) == "lower: **not as published**"
    assert pages.said(replace(one, verdict="tied")) == "tied"
    assert pages.said(replace(one, verdict="undecided")) == "undecided"


def test_jobs_name_the_scheme_and_the_rate_that_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RECORDS", tmp_path)
    stages = list(run.jobs())
    assert all(
        {job.folder for job in stage} == set(run.SCHEMES if stage[0].part in run.TEXTS else run.OF_TASKS)
        for stage in stages
    )
    last = {job.part: len(job.seeds) for stage in stages for job in stage}
    assert last == run.PLANNED
    counts = [len(job.seeds) for stage in stages for job in stage if (job.part, job.folder) == ("python", "rope")]
    assert counts == [0, 1, 3, 5, 10]
    first, *_ = stages[0]
    assert (first.part, first.seeds) == ("python", ())  # tuning comes first, for all
    assert first.configuration().tune
    monkeypatch.setattr(run, "tuned", lambda part, folder: Rate(0.02, 30.0))
    config = run.Job("plays", "windows", (0, 1, 2)).configuration()
    assert config.schemes == ("rope@32~rope@32~nope",)
    assert config.given_rates() == {"rope@32~rope@32~nope": Rate(0.02, 30.0)}
    assert (config.seeds, config.tune, config.steps, config.device) == ((0, 1, 2), False, 600, "cpu")
    puzzle = run.Job("copy", "t5", (0, 1)).configuration()
    assert (puzzle.task, puzzle.schemes, puzzle.tune, puzzle.rates) == ("copy", ("t5",), True, ())
    on_gpu = run.Job("copy", "windows", (9, 8), "cuda")
    config = on_gpu.configuration()
    assert (config.seeds, config.device) == ((9, 8), "cuda")
    assert config.given_rates() == {"rope@32~nope": Rate(0.02, 30.0)}  # it does not tune
    assert on_gpu.out == tmp_path / "copy" / "windows" / "cuda"


def test_a_scheme_that_is_not_tuned_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RECORDS", tmp_path)
    with pytest.raises(ValueError, match="rope must be tuned on python first: it has had 0 of 15 trials"):
        run.Job("plays", "rope", (0,)).configuration()
    with pytest.raises(ValueError, match="rope must be tuned on copy first: it has had 0 of 3 trials"):
        run.Job("copy", "rope", (0,), "cuda").configuration()


def write(out: Path, records: Sequence[Any]) -> None:
    """The records in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_job_is_done_when_its_folder_holds_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RECORDS", tmp_path)
    tuning, one, two = (run.Job("python", "rope", tuple(range(seeds))) for seeds in (0, 1, 2))
    made = trials("rope", 2.2, 2.1) + made_up.records(("rope",))

    def kept(count: int) -> list[bool]:
        write(tuning.out, made[:count])
        return [job.done() for job in (tuning, one, two)]

    assert kept(14) == [False, False, False]
    assert kept(15) == [True, False, False]
    assert kept(len(made) - 2) == [True, False, False]  # a training that is not tested to its end
    assert kept(len(made)) == [True, True, False]


def test_what_one_device_has_measured_the_other_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RECORDS", tmp_path)
    monkeypatch.setattr(run, "FOLDERS", {"python": ("rope",)})
    monkeypatch.setattr(run, "PLANNED", {"python": 10})
    tuning = trials("rope", 2.2, 2.1)
    on_cpu, on_gpu = run.Job("python", "rope", ()), run.Job("python", "rope", (), "cuda")
    write(on_cpu.out, tuning + made_up.records(("rope",), (0, 1)))
    ((job,),) = run.jobs("cuda")
    assert (job.seeds, job.device) == ((9, 8, 7, 6, 5, 4, 3, 2), "cuda")  # the last first
    begun = made_up.records(("rope",), (7,))[:-2]  # not tested to its end
    write(on_gpu.out, made_up.records(("rope",), (9, 8)) + begun)
    *_, (job,) = run.jobs()
    assert (job.seeds, job.device) == ((0, 1, 2, 3, 4, 5, 6, 7), "cpu")
    write(on_cpu.out, tuning + made_up.records(("rope",), tuple(range(8))))
    ((job,),) = run.jobs("cuda")
    assert job.seeds == (9, 8)
    assert job.done()  # though its folder holds a part of seed 7
    *_, (job,) = run.jobs()
    assert job.done()


def test_what_fails_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def local(measure: Any, stage: list[run.Job], processes: int) -> Iterator[tuple[run.Job, str]]:
        assert (measure, processes) == (run.measure, 2)
        for job in stage:
            yield job, "no text" if job.folder == "rope" else ""

    monkeypatch.setattr(run, "local", local)
    stage = [run.Job("python", folder, ()) for folder in ("rope", "nope")]
    assert run.run(stage, 2) == stage[:1]
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("python/rope, 0 seeds: no text")
    assert second.endswith("python/nope, 0 seeds: done")
