"""What is said of pieces: that the rules of its plan are what is written, of records made up here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from posenc_lab.compare.summary import Summary
from posenc_lab.compare.tasks import task_of
from posenc_lab.kit.files import digest_of
from study import pages
from study import pieces as module
from study.pictures import uses
from study.pieces import PLAN, Pieces
from tests.compare import synthetic_records

LENGTHS = (128, 256, 512, 1024, 2048)
FAR = {
    "far": (1.0, 0.8, 0.5, 0.3, 0.05),
    "near": (1.0, 1.0, 0.9, 0.8, 0.2),
    "match": (6.0,) * 5,
    "shuffled": (0.05,) * 5,
}


def records(begins: Mapping[tuple[str, int], int | None], **changed: tuple[float, ...]) -> list[Any]:
    """Trainings with all tests, by scheme and seed, and from which step on each looks back."""
    shared = synthetic_records.records(("nope",))[0]
    about = {name: shared[name] for name in ("text", "versions", "machine", "time")}
    config = {"task": "pieces", "timed": False, "device": "cpu", "train_length": 256, "test_lengths": list(LENGTHS)}
    about |= {"fingerprint": "a", "plan": digest_of(PLAN.read_bytes())}
    made: list[Any] = []
    for (scheme, seed), begin in begins.items():
        own = {"scheme": scheme, "seed": seed, **about}
        own["configuration"] = {**config, "schemes": [scheme], "seeds": [seed]}
        use = [[step, 0.2 if begin is not None and step >= begin else 0.0] for step in range(28, 1401, 28)]
        made.append({"kind": "training", "learning_rate": 0.003, "multiplier": None, "seconds": 1.0, "use": use, **own})
        for kind, values in {**FAR, "sliding": (2.5,) * 5, **changed}.items():
            for length, value in zip(LENGTHS, values, strict=True):
                bits = [value - 0.1, value + 0.1]
                made.append({"kind": kind, "length": length, "gap": length - 64, "bits": bits, **own})
    return made


def of(made: list[Any]) -> Pieces:
    return Pieces("pieces", module.of_plan("pieces", Summary(made, task_of("pieces")), PLAN), 2)


def both(scheme: str, *steps: int | None) -> dict[tuple[str, int], int | None]:
    return {(scheme, seed): step for seed, step in enumerate(steps)}


BEGUN = "**looks back** (seed 0 from step 280 and seed 1 from step 560)"
NEAR = "where a near source is still used: it is the distance"
LENGTH = "**fails at the length** of rows of 2,048 bytes, with a near source too."
ONE = "not both seeds have begun (seed 0 from step 280 and seed 1 not by the last step"
NOTHING = "so of distance **nothing is said**."
NOT_BEGUN = f"{ONE}), {NOTHING}"
UNUSED = f"{BEGUN}; a far or a near source is of less than 0.1 bits of use at the trained length, {NOTHING}"
SO_FAR = f"**So far, of one seed, and not yet concluded**: {module.BEGUN_SO_FAR}:"
SHUFFLED = "a shuffled source is of use too, in rows of 2,048 bytes: **nothing is concluded**."
RULES: list[tuple[tuple[int | None, ...], dict[str, tuple[float, ...]], str]] = [
    ((280, 560), {}, f"{BEGUN}; **carries** to gaps of 448 bytes; **does not carry** to 960, {NEAR}; {LENGTH}"),
    (
        (280, 560),
        {"far": (1.0, 0.16, 0.16, 0.1, 0.09)},  # more than half, but at least 0.1 bits are asked
        f"{BEGUN}; **carries** to gaps of 448 and 960 bytes; {LENGTH}",
    ),
    ((280, 560), {"far": (1.0,) * 5}, f"{BEGUN}; **carries** to gaps of 448, 960 and 1,984 bytes."),
    ((280, 560), {"far": (1.0, 0.09, 0.2, 0.2, 0.2)}, UNUSED),
    ((280, 560), {"near": (1.0, 0.09, 0.2, 0.2, 0.2)}, UNUSED),
    (
        (280, 560),
        {"near": (1.0, 0.18, 0.18, 0.09, 0.1)},  # half, but of no use
        f"{BEGUN}; **carries** to gaps of 448 bytes; **does not carry** to 1,984, {NEAR}; **does not carry** to 960, "
        "where a near source is of less than 0.1 bits too.",
    ),
    ((280, None), {}, NOT_BEGUN),
    ((280, 1372), {}, NOT_BEGUN),  # too late for three points in a row
    ((280, 560), {"shuffled": (0.0, 0.0, 0.0, 0.1, 0.11)}, SHUFFLED),
]
"""The steps at which seeds begin, what is measured otherwise, and what follows."""


@pytest.mark.parametrize(("steps", "changed", "says"), RULES)
def test_the_rules_of_the_plan_are_applied(steps: Any, changed: Any, says: str) -> None:
    found = of(records(both("alibi", *steps), **changed))
    assert found.conclusion("alibi") == says
    assert (found.trained, found.planned, found.complete, found.fault) == (2, 14, ["alibi"], "")


def test_nothing_is_said_before_both_seeds_are_there_or_if_a_control_fails() -> None:
    made = records(both("alibi", 280, 560) | both("rope", 280) | both("nope", None) | both("t5", None, None))
    found = of(made)
    assert (found.schemes, found.complete, found.trained) == (["nope", "rope", "alibi", "t5"], ["alibi", "t5"], 6)
    short = "A source 448 bytes back is used by ALiBi; not both seeds have begun: T5. "
    assert found.in_short() == f"{short}{SO_FAR} RoPE (448); not begun: NoPE."
    near = of(records(both("rope", 280), far=(1.0, 0.8, 0.3, 0.5, 0.5)))  # carries, but not to all gaps before
    assert near.in_short() == f"{SO_FAR} RoPE (no longer gap)."
    assert "the rows are wrong" in of(records(both("alibi", 280, 560), match=(6.0, 6.0, 6.0, 6.0, 3.9))).fault
    assert "not measured yet" in of([]).fault
    says = of(synthetic_records.diverge(made, "alibi", 1)).conclusion("alibi")  # it is there, and not run again
    assert f"{ONE}; diverged at step 40 with seed 1)" in says


def test_the_page_has_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pages, "DOCS", tmp_path)

    def page(made: list[Any]) -> str:
        pages.write("pieces", pieces=of(made), digest="0123", has_sizes=False, finders=["t5", "alibi"])
        return (tmp_path / "study" / "pieces.md").read_text()

    made = records(both("alibi", 280, 560) | both("rope", 280) | both("t5", None, None))
    for seed in (0, 1):
        made = synthetic_records.diverge(made, "t5", seed)
    said = page(made)
    assert "**5 of 14 trainings are there**: 2 of 7 schemes have both seeds." in said
    assert "`0123`" in said
    assert f"- **ALiBi**: {RULES[0][2]}\n" in said
    assert f"- {SO_FAR} RoPE (448).\n" in said
    assert f"| T5 | 0 | diverged, diverged |{' – |' * 9}\n" in said
    assert "\n  With T5, which have not begun here, small models solve the [puzzle](tasks.md) of recall" in said
    assert "25 trial trainings of each scheme: 0 core hours" in said
    assert "| ALiBi | 2 | 280, 560 | 1.00 | 0.80 | 0.50 | 0.30 | 0.05 | 0.20 | 0.05 | 2.50 | 2.50 |\n" in said
    said = page(records(both("alibi", 280, 560), match=(3.9,) * 5))
    assert "the rows are wrong, and nothing is concluded." in said
    alone = synthetic_records.diverge(records(both("t5", None)), "t5")
    assert "The match by construction is not measured yet, so nothing is concluded." in page(alone)
    assert "looks back" not in said.partition("## What follows")[2].partition("## The numbers")[0]
    assert "0 of 14 trainings are there" in page([])


@pytest.mark.parametrize("dark", [False, True])
def test_the_picture_has_a_panel_for_each_scheme_with_both_seeds(dark: bool) -> None:
    figure = uses(of(records(both("alibi", 280, 560) | both("rope@64~rope@64~nope", None))), dark)
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert words == ["RoPE in windows with NoPE", "begins: never", "ALiBi", "begins at step 280, 560"]
    lines = [[line for line in axes.lines if line.get_linewidth() == 1.4] for axes in figure.axes]
    assert [len(each) for each in lines] == [2, 4]  # far and near of each seed
    assert list(lines[0][0].get_xdata()) == [64, 192, 448, 960, 1984]
    assert list(lines[0][0].get_ydata()) == pytest.approx(list(FAR["far"]))
