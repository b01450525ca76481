"""`posenc bench --mine`: what is timed beside posenc, and what is not, since it computes something else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from posenc_lab.bench import cases, mine, run
from posenc_lab.bench.measure import LeftOutError, race
from posenc_lab.bench.run import bench
from posenc_lab.bench.settings import Settings
from posenc_lab.kit.machine import clock_of
from posenc_lab.kit.records import read
from tests.bench import by_hand
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


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_in_every_precision(dtype: str) -> None:
    found = built("alibi", "alibi", training=True, dtype=dtype)
    assert found.makes["mine"]()()[0].dtype == getattr(torch, dtype)
    share = max(found.facts["off"]["mine"].values())
    assert {"float64": 1e-16, "bfloat16": 1e-4, "float16": 1e-5}[dtype] < share < found.facts["allowed"]


@pytest.mark.parametrize(
    ("name", "scheme", "training", "message"),
    [
        (
            "alibi",
            "nope",
            False,
            r"mine is not causal attention with nope: its output is off by 0\.\d+ of the",
        ),
        ("plain", "alibi", True, "with alibi: its output is off by "),
        (
            "without_mask",
            "nope",
            False,
            r"and 0\.0001 is allowed; most at \[0, \d, \d+, \d\], -?\d\.\d+ instead of",
        ),
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
    line = next(n for n, text in enumerate(Path(by_hand.__file__).read_text().splitlines(), 1) if "no k" in text)
    assert results["mine"] == {"left_out": f"failed at {HANDS}:{line} with RuntimeError: no kernel"}
    assert results["posenc"]["seconds"]


# -- records ----------------------------------------------------------------------------------------------------------


def test_a_folder_is_of_one_attention_as_its_file_was(tmp_path: Path) -> None:
    file, out = tmp_path / "hand_that_changes.py", tmp_path / "out"
    file.write_text(
        "from tests.bench.by_hand import plain\n\n\ndef attention(query, key, value):\n    "
        "return plain(query, key, value)\n"
    )
    about = replace(settings("plain"), mine=f"{file}:attention")
    bench(about, out)
    before = read(out)
    with pytest.raises(
        ValueError, match=r"holds another benchmark, with mine '.*:attention' there and '.*:plain' here"
    ):
        bench(settings("plain"), out)
    file.write_text(file.read_text() + "# as it was\n")
    with pytest.raises(
        ValueError, match=r"with source of .*hand_that_changes\.py:attention '\w+' there and '\w+' here"
    ):
        bench(about, out)
    assert read(out) == before
