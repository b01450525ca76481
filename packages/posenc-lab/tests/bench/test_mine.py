"""`posenc bench --mine`: what is timed beside posenc, and what is not, since it computes something else."""

from pathlib import Path
from typing import Any

import pytest
import torch

from posenc_lab.bench import cases, mine, run
from posenc_lab.bench.measure import LeftOutError, race
from posenc_lab.bench.settings import Settings
from posenc_lab.kit.machine import clock_of
from tests.bench import handwritten
from tests.bench.test_command import HANDS, TINY
from tests.rounding import of_sums

CLOCK = clock_of(torch.device("cpu"))


def settings(name: str, scheme: str = "nope", **more: Any) -> Settings:
    return Settings(**TINY | {"mine": f"{HANDS}:{name}", "schemes": (scheme,)} | more)


def built(name: str, scheme: str = "nope", *, training: bool = False, length: int = 64, **more: Any) -> cases.Built:
    about = settings(name, scheme, **more)
    run.check(about)
    return mine.timed(about, scheme, length, training)


RIGHT = [("plain", "nope"), ("alibi", "alibi"), ("distance_aware", "distance_aware"), ("module", "relative_1d")]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("name", "scheme"), RIGHT)
def test_what_computes_the_same_takes_part(name: str, scheme: str, training: bool) -> None:
    found = built(name, scheme, training=training)
    assert list(found.makes) == ["plain", "posenc", "mine"]
    ours, theirs = (found.makes[who]()() for who in ("posenc", "mine"))
    for one, other in zip(theirs, ours, strict=True):  # sums over 64 keys, of scores of at most 64 channels
        torch.testing.assert_close(one, other, rtol=0, atol=of_sums(torch.float32, 64 + 64, other, score=8))
    parameters = [name for name, _ in cases.build_scheme(scheme, settings(name, scheme), 64).named_parameters()]
    gradients = [f"gradient of {each}" for each in ("query", "key", "value", *parameters)] if training else []
    for who in ("posenc", "mine"):
        assert list(found.facts["off"][who]) == ["output", *gradients]
        assert (
            0 < max(found.facts["off"][who].values()) < 1e-5
        )  # of rounding to float32, not none: the truth is float64
    assert len(theirs) == 1 + len(gradients)


@pytest.mark.parametrize(
    ("name", "scheme", "training", "message"),
    [
        ("alibi", "nope", False, r"mine is not causal attention with nope: its output is off by 0\.\d+ of the"),
        ("plain", "alibi", True, "with alibi: its output is off by "),
        ("without_mask", "nope", False, r"and 0\.0001 is allowed; most at \[0, \d, \d+, \d\], -?\d\.\d+ instead of"),
        ("without_gradient", "nope", True, r"its gradient of key is off by 1 of the .*, -?0 instead of -?\d"),
        ("not_a_number", "nope", False, r"is off by inf of .* most at \[0, 0, 5, 0\], nan instead of"),
        ("in_place", "nope", False, "it changes its query in place, on which the others are timed too"),
        (
            "joined",
            "nope",
            False,
            r"what the query is, torch\.float32 \(1, 2, 64, 8\), got torch\.float32 \(1, 64, 16\)",
        ),
        ("widened", "nope", True, r"torch\.float32 \(1, 2, 64, 8\), got torch\.float64 \(1, 2, 64, 8\)"),
        ("with_weights", "nope", False, "mine must give what the query is, .*, got \\(torch.float32 "),
    ],
)
def test_what_computes_something_else_is_left_out(name: str, scheme: str, training: bool, message: str) -> None:
    found = built(name, scheme, training=training)
    with pytest.raises(LeftOutError, match=message):
        found.makes["mine"]()
    found.makes["posenc"]()  # whose inputs are as they were


def test_one_that_fails_is_left_out_with_its_line(tmp_path: Path) -> None:
    found = built("fails")
    results = race(found.makes, rounds=1, budget=0, clock=CLOCK)["results"]
    line = next(n for n, text in enumerate(Path(handwritten.__file__).read_text().splitlines(), 1) if "no k" in text)
    assert results["mine"] == {"left_out": f"failed at {HANDS}:{line} with RuntimeError: no kernel"}
    assert results["posenc"]["seconds"]
