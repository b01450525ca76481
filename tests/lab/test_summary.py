"""Numbers recomputed from the records by other means, and what is not there said in words."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from posenc.lab import sentences, tables
from posenc.lab.summary import Estimate, Summary, mean_interval
from posenc.lab.task import listed
from posenc.lab.tasks.text import TIE_AT_ONE_SEED
from tests.lab import made_up


def bits(records: list[dict[str, Any]], kind: str, scheme: str, length: int) -> NDArray[np.float64]:
    """(seeds, windows), straight from the records."""
    named = {"kind": kind, "scheme": scheme, "length": length}
    return np.array([r["bits"] for r in records if named.items() <= r.items()])


@pytest.mark.parametrize("seeds", [(0,), (0, 3)])
def test_means_and_differences_are_those_of_the_windows(seeds: tuple[int, ...]) -> None:
    records = made_up.records(seeds=seeds)
    summary = Summary(records)
    mine, its = (bits(records, "sliding", scheme, 512) for scheme in ("alibi", "nope"))
    assert mine.shape == (len(seeds), made_up.WINDOWS)

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
    records = [r for r in made_up.records(seeds=(0, 1)) if (r["scheme"], r["seed"]) != ("nope", 1)]
    difference = Summary(records).difference("sliding", "rope", "nope", 128)
    assert difference is not None
    assert difference.seeds == 1
    expected = bits(records, "sliding", "rope", 128)[0] - bits(records, "sliding", "nope", 128)[0]
    assert difference.mean == pytest.approx(expected.mean())


def test_what_is_undefined_is_no_number() -> None:
    summary = Summary(made_up.records())
    assert summary.bits("sliding", "learned", 256) is None
    assert summary.difference("sliding", "learned", "nope", 256) is None
    assert "128 positions" in summary.undefined("learned", 256)
    assert summary.end("learned") == "undefined past 128"
    assert summary.bits("truncated", "learned", 1024) is not None
    assert summary.end("nope") == ""


def test_a_loss_that_is_no_number_stays_one_and_wins_nothing() -> None:
    records = made_up.records()
    for record in records:
        if record["scheme"] == "alibi" and record.get("length") == 1024 and record["kind"] == "sliding":
            record["bits"] = [None, *record["bits"][1:]]
    summary = Summary(records)
    value = summary.bits("sliding", "alibi", 1024)
    assert value is not None
    assert not value.finite
    assert sentences.best(summary, "sliding", 1024) == ("nope",)
    assert "alibi is not finite" in sentences.observed(summary)[1]
    assert tables.cell(summary, "sliding", "alibi", 1024) == ("not finite", "")


def test_a_finished_comparison_lacks_nothing() -> None:
    assert Summary(made_up.records(seeds=(0, 1))).missing() == []


def test_what_is_missing_is_named() -> None:
    def kept(record: dict[str, Any]) -> bool:
        scheme, kind, length = record["scheme"], record["kind"], record.get("length")
        if scheme == "alibi":
            return False
        if scheme == "rope":
            return kind != "by_position" and not (kind == "sliding" and length in (512, 1024))
        return kind != "speed"

    missing = Summary([r for r in made_up.records() if kept(r)]).missing()
    assert missing == [
        "nope, learned and sinusoidal, seed 0: the step time",
        "rope, seed 0: sliding windows at 512 and 1,024 tokens; loss by position",
        "alibi, seed 0: everything",
    ]


def test_schemes_and_seeds_added_later_are_expected_from_then_on_only() -> None:
    first = made_up.records(("nope", "rope"), seeds=(0,))
    later = made_up.records(("rope",), seeds=(1,))
    summary = Summary(first + later)
    assert summary.trainings == (("nope", 0), ("rope", 0), ("rope", 1))
    assert summary.missing() == []


def test_records_of_another_comparison_are_left_out_and_counted() -> None:
    other = [{**record, "fingerprint": "another"} for record in made_up.records()]
    summary = Summary(other + made_up.records(("rope",)))
    assert summary.left_out == len(other)
    assert summary.schemes == ("rope",)


def test_no_records_at_all() -> None:
    summary = Summary([])
    assert (summary.schemes, summary.test_lengths, summary.missing(), sentences.observed(summary)) == ((), (), [], [])


@pytest.mark.parametrize(
    ("mean", "low", "high", "word"),
    [
        (-0.5, -0.6, -0.4, "lower"),
        (0.5, 0.4, 0.6, "higher"),
        (0.5, -0.1, 1.1, "tie"),  # zero lies inside
        (0.019, 0.018, 0.0195, "tie"),  # sure, and too small for one seed to decide
        (0.021, 0.0205, 0.022, "higher"),
        (math.nan, math.nan, math.nan, "not finite"),
    ],
)
def test_verdicts(mean: float, low: float, high: float, word: str) -> None:
    assert sentences.verdict(Estimate(mean, low, high, windows=9, seeds=1)) == word


def test_with_several_seeds_the_interval_alone_decides() -> None:
    small = Estimate(0.005, 0.004, 0.006, windows=9, seeds=1)
    assert small.mean < TIE_AT_ONE_SEED
    assert small.tie
    assert not replace(small, seeds=2).tie
    one, two = (" ".join(sentences.how_to_read(Summary(made_up.records(seeds=seeds)))) for seeds in ((0,), (0, 1)))
    assert "With one seed, gaps under 0.02 bits are called ties: a convention" in one
    assert "convention" not in two


def test_a_seed_that_diverged_is_said_and_the_others_count() -> None:
    records = made_up.diverge(made_up.records(seeds=(0, 1)), "alibi", seed=1)
    summary = Summary(records)
    assert summary.diverged("alibi") == "diverged at step 40 with seed 1"
    assert summary.diverged("rope") == ""
    assert summary.missing() == []
    assert summary.measured("alibi") == (0,)
    value = summary.bits("sliding", "alibi", 512)
    assert value is not None
    assert value.seeds == 1
    said = sentences.observed(summary)[-1]
    assert said.startswith("alibi diverged at step 40 with seed 1: ")
    assert said.endswith("what is shown of it is from its other seeds.")


def test_observations_follow_the_numbers() -> None:
    records = made_up.records()
    mean = {s: bits(records, "sliding", s, 1024).mean() for s in ("nope", "sinusoidal", "rope", "alibi")}
    trained, past, context = sentences.observed(Summary(records))
    assert trained.startswith("At the training length of 128 tokens, rope (2.30) and alibi (2.31) bits per byte tie")
    assert f"alibi has the lowest loss, {mean['alibi']:.2f} bits per byte" in past
    assert f"sinusoidal is {mean['sinusoidal'] - mean['alibi']:.2f} above" in past
    assert past.endswith("learned is undefined past 128.")
    gain = (bits(records, "truncated", "alibi", 1024) - bits(records, "sliding", "alibi", 1024)).mean()
    assert f"lowers the loss of alibi by {gain:.2f}; raises the loss of nope" in context


def test_observations_turn_with_the_numbers() -> None:
    swap = {"rope": "alibi", "alibi": "rope"}
    records = [{**r, "scheme": swap.get(r["scheme"], r["scheme"])} for r in made_up.records()]
    _, past, context = sentences.observed(Summary(records))
    assert "rope has the lowest loss" in past
    assert "lowers the loss of rope" in context


def test_context_that_changes_nothing_is_said_to() -> None:
    records = made_up.records(("nope", "alibi"))
    kept = {r["length"]: r["bits"] for r in records if (r["scheme"], r["kind"]) == ("alibi", "truncated")}
    for record in records:
        if (record["scheme"], record["kind"]) == ("alibi", "sliding") and record["length"] in kept:
            record["bits"] = [value + 0.001 for value in kept[record["length"]]]
    assert "leaves the loss of alibi as it is; raises the loss of nope" in sentences.observed(Summary(records))[2]


def test_a_tie_past_the_training_length_is_called_one() -> None:
    records = made_up.records(("nope", "alibi"))
    twin = [{**r, "scheme": "twin"} for r in records if r["scheme"] == "alibi"]
    for record in records + twin:
        record["configuration"] = {**record["configuration"], "schemes": ["nope", "alibi", "twin"]}
    past = sentences.observed(Summary(records + twin))[1]
    assert "alibi (2.24) and twin (2.24) bits per byte tie for the lowest loss; nope is" in past


def test_one_seed_is_said_to_be_one() -> None:
    one, two = (Summary(made_up.records(seeds=seeds)) for seeds in ((0,), (0, 1)))
    assert any("one seed" in sentence for sentence in sentences.not_concluded(one))
    assert not any("one seed" in sentence for sentence in sentences.not_concluded(two))
    assert any("over windows of text and over seeds" in sentence for sentence in sentences.how_to_read(two))


@pytest.mark.parametrize(
    ("words", "said"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_listed(words: list[str], said: str) -> None:
    assert listed(words) == said


def test_the_command_has_every_choice() -> None:
    records = made_up.records()
    for record in records:
        record["configuration"] |= {
            "text": ["my poems", "b,c"],
            "per_layer": False,
            "kv_heads": None,
            "inject": "input",
        }
    assert tables.command(Summary(records)) == (
        "posenc compare --schemes nope,learned,sinusoidal,rope,alibi --text 'my poems' b,c --train-length 128 "
        "--test-lengths 64,128,256,512,1024 --steps 400 --seeds 0 --layers 3 --dim 96 --heads 4 --batch-size 16 "
        "--windows 24 --device cpu --no-per-layer --inject input"
    )
