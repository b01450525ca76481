"""Numbers recomputed from the records by other means, and what is not there said in words."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from posenc_lab.compare import report
from posenc_lab.compare.summary import Estimate, Summary
from posenc_lab.kit.statistics import holm, mean_interval, mean_of
from tests.compare import synthetic_records

THREE = (0, 1, 2)


def bits(records: list[dict[str, Any]], kind: str, scheme: str, length: int) -> NDArray[np.float64]:
    """(seeds, windows), straight from the records."""
    named = {"kind": kind, "scheme": scheme, "length": length}
    return np.array([r["bits"] for r in records if named.items() <= r.items()])


@pytest.mark.parametrize("seeds", [(0,), (0, 3, 5)])
def test_means_and_differences_are_those_of_the_windows(seeds: tuple[int, ...]) -> None:
    records = synthetic_records.records(seeds=seeds)
    summary = Summary(records)
    mine, its = (bits(records, "sliding", scheme, 512) for scheme in ("alibi", "nope"))
    assert mine.shape == (len(seeds), synthetic_records.WINDOWS)

    estimate = summary.bits("sliding", "alibi", 512)
    assert estimate is not None
    assert estimate.mean == pytest.approx(mine.mean())
    assert (estimate.low, estimate.high) == mean_interval(mine)[1:]
    assert (estimate.seeds, estimate.windows) == mine.shape

    difference = summary.difference("sliding", "alibi", "nope", 512)
    assert difference is not None
    assert difference.mean == pytest.approx((mine - its).mean())
    # Windows are hard for all alike: the difference is far surer than the means.
    assert difference.high - difference.low < 0.3 * (estimate.high - estimate.low)


def test_differences_use_the_seeds_that_both_have() -> None:
    records = [r for r in synthetic_records.records(seeds=(0, 1)) if (r["scheme"], r["seed"]) != ("nope", 1)]
    difference = Summary(records).difference("sliding", "rope", "nope", 128)
    assert difference is not None
    assert difference.seeds == 1
    expected = bits(records, "sliding", "rope", 128)[0] - bits(records, "sliding", "nope", 128)[0]
    assert difference.mean == pytest.approx(expected.mean())


def test_a_loss_that_is_no_number_stays_one_and_wins_nothing() -> None:
    records = synthetic_records.records(seeds=THREE)
    for record in records:
        if record["scheme"] == "alibi" and record.get("length") == 1024 and record["kind"] == "sliding":
            record["bits"] = [None, *record["bits"][1:]]
    summary = Summary(records)
    value = summary.bits("sliding", "alibi", 1024)
    assert value is not None
    assert not value.finite
    assert summary.best("sliding", 1024) == ("nope",)
    assert "ALiBi is not finite" in report.observed(summary)[2]
    assert report.cell(summary, "sliding", "alibi", 1024) == report.Cell("not finite", mark="absent")


def test_what_is_missing_is_named() -> None:
    def kept(record: dict[str, Any]) -> bool:
        scheme, kind, length = record["scheme"], record["kind"], record.get("length")
        if scheme == "alibi":
            return False
        if scheme == "rope":
            return not (kind == "sliding" and length in (512, 1024))
        return kind != "speed"

    missing = Summary([r for r in synthetic_records.records() if kept(r)]).missing()
    assert missing == [
        "NoPE, Learned and Sinusoidal, seed 0: the step time",
        "RoPE, seed 0: sliding windows at 512 and 1,024 bytes",
        "ALiBi, seed 0: everything",
    ]


def test_step_times_that_were_not_asked_for_are_not_missing() -> None:
    records = [r for r in synthetic_records.records() if r["kind"] != "speed"]
    assert len(Summary(records).missing()) == 1
    untimed = [{**r, "configuration": {**r["configuration"], "timed": False}} for r in records]
    assert Summary(untimed).missing() == []


def test_below_three_seeds_there_is_no_verdict() -> None:
    for seeds in ((0,), (0, 1)):
        summary = Summary(synthetic_records.records(seeds=seeds))
        gap = summary.difference("sliding", "sinusoidal", "nope", 1024)
        assert gap is not None
        assert gap.low > 1
        assert summary.verdict(gap) == ""
        assert summary.best("sliding", 1024) == ()
        assert summary.few_seeds() == synthetic_records.SCHEMES
    assert summary.verdict(Estimate(math.nan, math.nan, math.nan, windows=9, seeds=3)) == "not finite"


def test_the_best_are_those_that_holms_tests_do_not_part() -> None:
    """Recomputed straight from the records."""
    records = synthetic_records.records(seeds=THREE)
    summary = Summary(records)
    for length in synthetic_records.LENGTHS:
        schemes = [s for s in synthetic_records.SCHEMES if s != "learned" or length <= synthetic_records.TRAIN_LENGTH]
        pairs = [(a, b) for i, a in enumerate(schemes) for b in schemes[i + 1 :]]
        gaps = [bits(records, "sliding", a, length) - bits(records, "sliding", b, length) for a, b in pairs]
        shown = holm([mean_of(gap).p_value() for gap in gaps])
        worse = {
            (b if gap.mean() < 0 else a) for (a, b), gap, is_shown in zip(pairs, gaps, shown, strict=True) if is_shown
        }
        assert set(summary.best("sliding", length)) == set(schemes) - worse
    assert summary.best("sliding", 1024) == ("alibi",)
    assert set(summary.best("sliding", 64)) >= {"rope", "alibi"}


def test_schemes_with_too_few_seeds_are_neither_the_best_nor_worse() -> None:
    records = [r for r in synthetic_records.records(seeds=THREE) if (r["scheme"], r["seed"]) != ("alibi", 2)]
    summary = Summary(records)
    assert summary.few_seeds() == ("alibi",)
    assert summary.best("sliding", 1024) == ("nope",)
    found = report.observed(summary)
    assert found[1] == "There are no verdicts on ALiBi: they need at least 3 seeds."
    assert "NoPE has the lowest loss among those with 3 seeds, 3.70 bits per byte; RoPE is" in found[3]
    assert "; ALiBi has 2.24 with too few seeds; " in found[3]


def test_a_seed_that_diverged_is_said_and_the_others_count() -> None:
    records = synthetic_records.diverge(synthetic_records.records(seeds=(0, 1)), "alibi", seed=1)
    summary = Summary(records)
    assert summary.diverged("alibi") == "diverged at step 40 with seed 1"
    assert summary.diverged("rope") == ""
    assert summary.missing() == []
    assert summary.measured("alibi") == (0,)
    value = summary.bits("sliding", "alibi", 512)
    assert value is not None
    assert value.seeds == 1
    said = report.observed(summary)[-1]
    assert said.startswith("ALiBi diverged at step 40 with seed 1: ")
    assert said.endswith("its results are from the other seeds.")


def test_observations_follow_the_numbers() -> None:
    records = synthetic_records.records(seeds=THREE)
    mean = {s: bits(records, "sliding", s, 1024).mean() for s in ("nope", "sinusoidal", "rope", "alibi")}
    tuning, trained, past, context = report.observed(Summary(records))
    assert tuning.startswith("No scheme was tuned: ")
    assert trained.startswith(
        "At the training length of 128 bytes, no scheme is shown to beat any of RoPE (2.31) and ALiBi (2.32)"
    )
    assert f"ALiBi has the lowest loss, {mean['alibi']:.2f} bits per byte" in past
    assert f"Sinusoidal is {mean['sinusoidal'] - mean['alibi']:.2f} above" in past
    assert past.endswith("Learned is undefined past 128.")
    gain = (bits(records, "truncated", "alibi", 128) - bits(records, "final_tokens", "alibi", 1024)).mean()
    assert f"lowers the loss of ALiBi by {gain:.2f}; raises the loss of NoPE by " in context


def test_context_that_changes_nothing_is_said_to() -> None:
    records = synthetic_records.records(("nope", "alibi"), seeds=THREE)
    kept = {r["seed"]: r["bits"] for r in records if (r["scheme"], r["kind"]) == ("alibi", "truncated")}
    rng = np.random.default_rng(0)
    for record in records:
        if (record["scheme"], record["kind"], record.get("length")) == ("alibi", "final_tokens", 1024):
            record["bits"] = [value + rng.normal(0, 0.001) for value in kept[record["seed"]]]
    assert "does not change the loss of ALiBi; raises the loss of NoPE" in report.observed(Summary(records))[3]
    for record in records:
        if (record["scheme"], record["kind"], record.get("length")) == ("alibi", "final_tokens", 1024):
            record["bits"] = [value - 0.005 for value in record["bits"]]
    assert "lowers the loss of ALiBi by 0.00 (within the margin)" in report.observed(Summary(records))[3]
    for record in records:
        if (record["scheme"], record["kind"], record.get("length")) == ("alibi", "final_tokens", 1024):
            record["bits"] = [value + rng.normal(0, 0.5) for value in record["bits"]]
    assert "has an undecided effect on ALiBi" in report.observed(Summary(records))[3]
