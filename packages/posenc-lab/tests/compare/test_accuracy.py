"""The report of a puzzle, from records made up by a formula."""

from typing import Any

import numpy as np
import pytest

from posenc_lab.compare import pictures, report
from posenc_lab.compare.summary import Summary
from posenc_lab.compare.tasks import configured
from posenc_lab.kit.statistics import wilson
from tests.compare.test_report import printed
from tests.compare.test_summary import THREE
from tests.kit.pages import Page

SCHEMES = ("nope", "learned", "rope", "alibi")
UNITS = 40


def records(seeds: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    """nope and alibi are never right, learned is undefined past the training length."""
    config = configured({"task": "recall", "schemes": SCHEMES, "seeds": seeds})
    about = {"fingerprint": "01", "configuration": config.to_dict(), "text": {"about": "made up", "digest": "98"}}
    about |= {"versions": {}, "machine": {}, "time": "2026-01-02T03:04:05+00:00"}
    made: list[dict[str, Any]] = []
    for seed in seeds:
        for scheme in SCHEMES:
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
            for n in config.test_lengths:
                made.append({"kind": "accuracy", **named, "length": n, **_measured(scheme, n), **about})
    return made


def _measured(scheme: str, length: int) -> dict[str, Any]:
    if scheme == "learned" and length > 16:
        return {"undefined": f"learned has no position {length - 1}"}
    share = 0.0 if scheme in ("nope", "alibi") else 0.9
    return {"accuracy": [float(n < round(share * UNITS)) for n in range(UNITS)], "examples": 1}


IMAGES: dict[str, Any] = {name: {False: b"", True: b""} for name in ("accuracy", "training")}


def test_the_page_has_every_number_and_says_what_stands_in_it() -> None:
    made = records()
    parsed = Page(report.html(made, IMAGES))
    assert not parsed.open
    text = " ".join(parsed.text.split())
    assert "This comparison is not finished" not in text
    head, *rows = parsed.tables["schemes"]
    assert len(head) == 8
    for scheme, row in zip(SCHEMES, rows, strict=True):
        for cell, length in zip(row[1:5], (16, 32, 64, 128), strict=True):
            value = Summary(made).bits("accuracy", scheme, length)
            assert cell.split()[0] == (f"{value.mean:.3f}" if value else "undefined")
    for said in ("posenc compare --task recall", "results are of one seed", "What must not be concluded", "segment"):
        assert said in text


def test_what_was_observed() -> None:
    tuning, verdicts, *found = report.observed(Summary(records()))
    assert tuning.startswith("No scheme was tuned")
    assert verdicts.startswith("This comparison has one seed, so there are no verdicts")
    assert found == [
        "At the training length of 16 characters, share of right answers: 0.90 with Learned, 0.90 with RoPE, 0.00 "
        "with NoPE and 0.00 with ALiBi.",
        "At 128 characters, 8× the training length, share of right answers: 0.90 with RoPE, 0.00 with NoPE and 0.00 "
        "with ALiBi; Learned is undefined past 16.",
    ]
    assert report.observed(Summary(records(THREE)))[1:] == [
        "At the training length of 16 characters, no scheme is shown to beat any of Learned (0.90) and RoPE (0.90); "
        "NoPE is 0.90 below and ALiBi is 0.90 below.",
        "At 128 characters, 8× the training length, RoPE has the highest share of right answers, 0.90; NoPE is 0.90 "
        "below and ALiBi is 0.90 below; Learned is undefined past 16.",
    ]
    never = [{**r, "accuracy": [0.0] * UNITS} if r["kind"] == "accuracy" else r for r in records(THREE)]
    assert Summary(never).best("accuracy", 128) == ()


def bimodal() -> list[dict[str, Any]]:
    """rope solves it at two of three seeds, and is right in half of the rows at the third."""
    made = records(THREE)
    for record in made:
        if (record["scheme"], record["kind"]) == ("rope", "accuracy"):
            record["accuracy"] = [1.0] * UNITS if record["seed"] else [0.5] * UNITS
    return made


def test_how_many_seeds_solve_it_stands_beside_the_mean() -> None:
    assert report.solved(Summary(bimodal()), "rope", 128) == "2 of 3 solve it (0.21–0.94)"
    two = [{**r, "configuration": {**r["configuration"], "seeds": [0, 1]}} for r in bimodal() if r["seed"] < 2]
    assert report.solved(Summary(two), "rope", 128) == "1 of 2 solve it"
    assert report.solved(Summary(records()), "rope", 128) == ""
    parsed = Page(report.html(bimodal(), IMAGES))
    assert parsed.row("schemes", "RoPE")[4] == "0.833 0.12–1.00 2 of 3 solve it (0.21–0.94)"


def test_shares_have_wilsons_interval_of_one_training_and_lie_between_0_and_1() -> None:
    right = [{**r, "accuracy": [1.0] * UNITS} if r["kind"] == "accuracy" else r for r in records(THREE)]
    for made, expected in (
        (records(), (0.9, *wilson(36, 40)[1:])),
        (bimodal(), (5 / 6, pytest.approx(0.116, abs=1e-3), 1.0)),  # t of 2 degrees: 0.833 - 4.303 / 6
        (right, (1.0, *wilson(40, 40)[1:])),
    ):
        value = Summary(made).bits("accuracy", "rope", 16)
        assert value is not None
        assert (value.mean, value.low, value.high) == expected


def test_any_first_part_of_the_records_can_be_reported() -> None:
    made = records((0, 1))
    for count in range(1, len(made), 20):
        assert "This comparison is not finished" in report.html(made[:count], IMAGES)
        assert "trainings are incomplete" in printed(made[:count])


@pytest.mark.parametrize("dark", [False, True])
def test_the_figure_shows_the_intervals_and_the_training_length(dark: bool) -> None:
    axes = pictures.accuracy(Summary(records()), dark).axes[0]
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    assert list(np.asarray(lines["RoPE"].get_xdata())) == [16, 32, 64, 128]
    assert list(np.asarray(lines["Learned"].get_xdata())) == [16]
    assert any(label.get_text().endswith("training length") for label in axes.get_xticklabels())
    assert any("Learned: undefined past 16" in text.get_text() for text in axes.texts)
