"""The report of the tasks whose answers are right or wrong, from records made up by a formula."""

from typing import Any

import numpy as np
import pytest

from posenc_lab.compare import accuracy, report
from posenc_lab.compare.summary import Summary
from posenc_lab.compare.tasks import configured, task_of
from posenc_lab.kit.statistics import wilson
from tests.compare.test_report import printed
from tests.compare.test_summary import THREE
from tests.kit.pages import Page

SCHEMES = {"digits": ("nope", "learned", "sinusoidal", "relative_2d"), "classify": ("nope", "learned", "rope", "alibi")}
UNITS = 40


def records(task: str, seeds: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    """nope guesses, learned and relative_2d are undefined past the training length, alibi is blind to direction."""
    config = configured({"task": task, "schemes": SCHEMES[task], "seeds": seeds})
    about = {"fingerprint": "01", "configuration": config.to_dict(), "text": {"about": "made up", "digest": "98"}}
    about |= {"versions": {}, "machine": {}, "time": "2026-01-02T03:04:05+00:00"}
    made: list[dict[str, Any]] = []
    for seed in seeds:
        for scheme in SCHEMES[task]:
            named = {"scheme": scheme, "seed": seed}
            once = {
                "learning_rate": 0.005,
                "multiplier": None,
                "tuned": False,
                "parameters": 50_000,
                "position_parameters": 0,
                "tokens_per_second": 1e5,
                "peak_bytes": 10**7,
                "final_bits": 0.15,
            }
            curve = [[n, 3 / n] for n in range(1, 21)]
            made.append({"kind": "training", **named, **once, "seconds": 1.0, "curve": curve, **about})
            speed = {"relative_to": "nope", "step_ratio": 1.5, "step_seconds": 0.01, "low": 1.4, "high": 1.6}
            made.append({"kind": "speed", **named, **speed, **about})
            for kind, length in task_of(task).plan(scheme, config.test_lengths, config.train_length):
                result = _measured(task, kind, scheme, length, config.train_length)
                made.append({"kind": kind, **named, "length": length, **result, **about})
    return made


def _measured(task: str, kind: str, scheme: str, length: int, trained: int) -> dict[str, Any]:
    if scheme in ("learned", "relative_2d") and kind != "resized" and length > trained:
        return {"undefined": f"{scheme} has no position {length - 1}"}
    chance = task_of(task).chance
    guesses = scheme == "nope" or (scheme == "alibi" and kind == "order")
    share = chance if guesses else 0.9
    return {"accuracy": [float(n < round(share * UNITS)) for n in range(UNITS)], "examples": 1}


@pytest.mark.parametrize("task", SCHEMES)
def test_the_page_has_every_number_and_says_what_stands_in_it(task: str) -> None:
    made = records(task)
    parsed = Page(report.html(made, {name: {False: b"", True: b""} for name in report.figures(task_of(task))}))
    assert not parsed.open
    text = " ".join(parsed.text.split())
    assert "This comparison is not finished" not in text
    for kind in task_of(task).kinds:
        head, *rows = parsed.tables[kind]
        assert len(head) == 5
        for row in rows:
            scheme = row[0].split()[0]
            for cell, length in zip(row[1:], Summary(made).test_lengths, strict=True):
                value = Summary(made).bits(kind, scheme, length)
                if kind == "resized" and length == 8:
                    value = Summary(made).bits("accuracy", scheme, length)
                assert cell.split()[0] == (f"{value.mean:.3f}" if value else "undefined")
    for said in (f"posenc compare --task {task}", "results are of one seed", "What must not be concluded", "segment"):
        assert (said in text) == (said != "segment" or task == "digits")


def test_what_was_observed_of_digits() -> None:
    share = "0.90; 0 of 3 solve it (0.00–0.56)"
    assert accuracy.observed(Summary(records("digits", THREE)))[1:] == [
        "At the training grid of 8 × 8 patches: no scheme is shown to beat any of learned (0.90), sinusoidal (0.90) "
        "and relative_2d (0.90); of each, 0 of 3 solve it (0.00–0.56); nope is no better than guessing.",
        f"At 16 × 16 patches: sinusoidal ({share}) is the highest; nope is no better than guessing; learned and "
        "relative_2d are undefined.",
        "At 16 × 16 patches with fitted positions: no scheme is shown to beat any of sinusoidal (0.90) and relative_2d "
        "(0.90); of each, 0 of 3 solve it (0.00–0.56).",
    ]


def test_what_was_observed_of_words() -> None:
    tuning, verdicts, *found = accuracy.observed(Summary(records("classify")))
    assert tuning.startswith("No scheme was tuned")
    assert verdicts.startswith("This comparison has one seed, so there are no verdicts")
    assert found[0] == (
        "On order at the training length of 32 words: learned has 0.90 and rope has 0.90; nope and alibi are no better "
        "than guessing."
    )
    assert found[1].startswith("On order at 128 words, 4× the training length: rope has 0.90; ")
    assert found[-1] == (
        "At 32 words alibi tells near from far and guesses which comes first, as whatever is blind to direction must."
    )


def bimodal() -> list[dict[str, Any]]:
    """rope solves the order at two of three seeds, and guesses at the third."""
    made = records("classify", THREE)
    for record in made:
        if (record["scheme"], record["kind"]) == ("rope", "order"):
            record["accuracy"] = [1.0] * UNITS if record["seed"] else [0.5] * UNITS
    return made


def test_how_many_seeds_solve_it_stands_beside_the_mean() -> None:
    summary = Summary(bimodal())
    assert accuracy.solved(summary, "order", "rope", 128) == "2 of 3 solve it (0.21–0.94)"
    two = [{**r, "configuration": {**r["configuration"], "seeds": [0, 1]}} for r in bimodal() if r["seed"] < 2]
    assert accuracy.solved(Summary(two), "order", "rope", 128) == "1 of 2 solve it"
    assert accuracy.solved(Summary(records("classify")), "order", "rope", 128) == ""
    pictures = {name: {False: b"", True: b""} for name in report.figures(task_of("classify"))}
    parsed = Page(report.html(bimodal(), pictures))
    assert parsed.row("order", "rope")[4] == "0.833 0.12–1.00 2 of 3 solve it (0.21–0.94)"
    # The interval over seeds holds what guessing gives; these trainings do not guess.
    assert any("rope (0.83; 2 of 3 solve it (0.21–0.94))" in sentence for sentence in accuracy.observed(summary))


def test_shares_have_wilsons_interval_of_one_training_and_lie_between_0_and_1() -> None:
    value = Summary(records("classify")).bits("order", "rope", 32)
    assert value is not None
    assert (value.mean, value.low, value.high) == (0.9, *wilson(36, 40)[1:])
    mixed = Summary(bimodal()).bits("order", "rope", 32)
    assert mixed is not None
    assert (mixed.low, mixed.high) == (pytest.approx(0.116, abs=1e-3), 1.0)  # t of 2 degrees: 0.833 - 4.303 / 6
    right = [{**r, "accuracy": [1.0] * UNITS} if r["kind"] == "order" else r for r in records("classify", THREE)]
    all_right = Summary(right).bits("order", "rope", 32)
    assert all_right is not None
    assert (all_right.mean, all_right.low, all_right.high) == (1.0, *wilson(40, 40)[1:])


@pytest.mark.parametrize("task", SCHEMES)
def test_any_first_part_of_the_records_can_be_reported(task: str) -> None:
    made = records(task, (0, 1))
    for count in range(1, len(made), 20):
        pictures = {name: {False: b"", True: b""} for name in report.figures(task_of(task))}
        assert "This comparison is not finished" in report.html(made[:count], pictures)
        assert "trainings are incomplete" in printed(made[:count])


@pytest.mark.parametrize("dark", [False, True])
def test_the_figures_show_the_intervals_the_training_length_and_guessing(dark: bool) -> None:
    made = records("classify")
    axes = accuracy.figures(task_of("classify"))["order"](Summary(made), dark).axes[0]
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    assert np.allclose(lines["guessing"].get_ydata(), 0.5)
    assert list(np.asarray(lines["rope"].get_xdata())) == [16, 32, 64, 128]
    assert list(np.asarray(lines["learned"].get_xdata())) == [16, 32]
    assert any(label.get_text().endswith("training length") for label in axes.get_xticklabels())
    assert any("learned: undefined past 32" in text.get_text() for text in axes.texts)
    resized = accuracy.figures(task_of("digits"))["resized"](Summary(records("digits")), dark).axes[0]
    drawn = {str(line.get_label()): list(np.asarray(line.get_xdata())) for line in resized.get_lines()}
    assert drawn["relative_2d"] == [6, 8, 12, 16]
    assert "nope" not in drawn
    with pytest.raises(ValueError, match="whose answers are right or wrong, got those of Text"):
        accuracy.by_length("order", Summary([]), dark)
