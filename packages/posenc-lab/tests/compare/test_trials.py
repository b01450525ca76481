"""What a report says of tuning, from made-up trials."""

import re
from typing import Any

import pytest

from posenc_lab.compare import report
from posenc_lab.compare.pictures import FIGURES
from posenc_lab.compare.summary import Summary
from tests.compare import synthetic_records
from tests.compare.test_summary import THREE
from tests.kit.pages import Page

RATES = (1e-3, 2e-3, 5e-3, 1e-2, 3e-2)
BITS = {"nope": (2.9, 2.8, 2.7, 2.72, None), "rope": (2.5, 2.4, 2.45, 2.6, 2.7)}  # None: diverged


def tuned(*schemes: str) -> list[dict[str, Any]]:
    """A comparison of nope and rope, some of them tuned."""
    made = synthetic_records.records(("nope", "rope"), THREE)
    about = {name: made[0][name] for name in ("fingerprint", "configuration", "text", "versions", "machine", "time")}
    for record in made:
        if record["kind"] == "training":
            record |= {"tuned": record["scheme"] in schemes, "learning_rate": 2e-3, "multiplier": 1.0}
    for scheme in schemes:
        for trial, (rate, bits) in enumerate(zip(RATES, BITS[scheme], strict=True)):
            named = {"kind": "trial", "scheme": scheme, "seed": 0, "trial": trial}
            result = {"diverged": "the loss is nan at step 7"} if bits is None else {"bits": bits, "seconds": 3.25}
            result |= {"twice": bits + 0.5, "longest": bits + 1} if bits and scheme == "rope" else {}
            made.append({**named, "learning_rate": rate, "multiplier": 30.0, **result, **about})
    return made


def parsed(records: list[dict[str, Any]]) -> Page:
    return Page(report.html(records, {name: {False: b"", True: b""} for name in FIGURES}))


def test_whether_schemes_were_tuned_is_said_first() -> None:
    def first(*schemes: str) -> str:
        return report.observed(Summary(tuned(*schemes)))[0]

    assert first().startswith("No scheme was tuned: all had one learning rate, 0.005 (positional parameters: times")
    assert first("nope", "rope") == "Every scheme was tuned with 5 trials."
    assert first("rope") == (
        "RoPE was tuned with 5 trials; NoPE was not tuned, and where it stands can be an artefact of the learning rate."
    )
    given = [r for r in tuned("nope", "rope") if (r["kind"], r["scheme"]) != ("trial", "rope")]
    assert report.observed(Summary(given))[0] == (
        "NoPE was tuned with 5 trials; RoPE was trained at a learning rate given for it."
    )
    longer = [{**r, "twice": r["trial"]} if r["kind"] == "trial" and "bits" in r else r for r in tuned("nope", "rope")]
    assert report.observed(Summary(longer))[0] == (
        "Every scheme was tuned with 5 trials; the best rate or multiplier of NoPE and RoPE is an end of what was "
        "tried: try others beyond."
    )
    fewer = [r for r in tuned("nope", "rope") if (r["scheme"], r.get("trial")) != ("rope", 4)]
    assert report.observed(Summary(fewer))[0] == "NoPE was tuned with 5 trials; RoPE was tuned with 4 trials."


def test_every_trial_is_shown_and_the_best_of_a_scheme_is_marked() -> None:
    records = tuned("nope", "rope")
    page = parsed(records)
    assert [[cell.strip() for cell in row] for row in page.tables["trials"][1:]] == [
        ["NoPE", "0.001", "30", "2.900", "–", "–", "3.2"],
        ["NoPE", "0.002", "30", "2.800", "–", "–", "3.2"],
        ["NoPE", "0.005", "30", "2.700", "–", "–", "3.2"],
        ["NoPE", "0.01", "30", "2.720", "–", "–", "3.2"],
        ["NoPE", "0.03", "30", "diverged", "–", "–", "–"],
        ["RoPE", "0.001", "30", "2.500", "3.000", "3.500", "3.2"],
        ["RoPE", "0.002", "30", "2.400", "2.900", "3.400", "3.2"],
        ["RoPE", "0.005", "30", "2.450", "2.950", "3.450", "3.2"],
        ["RoPE", "0.01", "30", "2.600", "3.100", "3.600", "3.2"],
        ["RoPE", "0.03", "30", "2.700", "3.200", "3.700", "3.2"],
    ]
    assert re.findall(
        r'class="number best">([^<]*)<', report.html(records, {}).partition("How they were tuned")[2]
    ) == ["2.700", "2.400"]
    assert Summary(records).missing() == []
    assert "How they were tuned" not in parsed(tuned()).text


def test_a_trial_is_the_mean_of_its_tuning_seeds_and_diverges_with_one() -> None:
    again = [{**r, "seed": 1} for r in tuned("nope", "rope") if r["kind"] == "trial"]
    for record in again:
        if record["scheme"] == "rope":
            record["bits"] += 0.1
    again[0] |= {"bits": None}  # not a finite number
    found = Summary(tuned("nope", "rope") + again)
    assert [trial.bits for trial in found.trials("nope")] == [None, 2.8, 2.7, 2.72, None]
    assert [trial.bits for trial in found.trials("rope")] == pytest.approx([2.55, 2.45, 2.5, 2.65, 2.75])
    assert report.observed(found)[0] == "Every scheme was tuned with 5 trials."
