"""The tasks beside text: that they ask what they say, and that the lab treats them as it treats text."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from posenc.command.cli import main
from posenc.schemes.catalog import catalog
from posenc_lab.compare.compare import build_model, check, resolved
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.tasks import TASKS, complete, configured, task_of
from posenc_lab.compare.train import batch, optimizer_for, step_of
from posenc_lab.kit.configuration import fingerprint
from tests.compare.test_pieces import write
from tests.rows import with_more

TINY: dict[str, Any] = {"layers": 1, "dim": 16, "heads": 2, "batch_size": 4, "windows": 8, "steps": 2}
SIZES = {"text": 16, "pieces": 64, "recall": 8}


RULES = {name: task_of(name) for name in SIZES}


def tiny(task: str, *schemes: str, **changes: Any) -> CompareConfig:
    given = {"task": task, "train_length": SIZES[task], "schemes": schemes or ("nope",), **TINY}
    return configured({**given, **changes})


def test_the_fingerprint_of_a_text_does_not_know_that_there_are_other_tasks() -> None:
    identity = complete(CompareConfig(tune_multipliers=(1, 10, 30))).identity(torch="1")  # as the first had them
    assert "task" not in identity
    assert fingerprint(identity) == "b1d56e4144c7d249"
    assert configured({"task": "recall"}).identity()["task"] == "recall"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": "sing"}, f"task must be one of {', '.join(TASKS)}, got 'sing'"),
        ({"task": "copy"}, f"task must be one of {', '.join(TASKS)}, got 'copy'"),  # of earlier records
        ({"task": "recall", "train_length": 7}, "train_length must be at least 8 characters, got 7"),
        ({"task": "recall", "test_lengths": (7, 30)}, r"test_lengths must be at least 8 characters, got \[7, 30\]"),
        ({"task": "pieces", "train_length": 47}, "train_length must be at least 48 bytes, got 47"),
        ({"task": "pieces", "test_lengths": (127,)}, "test_lengths must be at least 128 bytes, to hold two pieces"),
        ({"task": "pieces", "train_length": 191, "copies": ["a"]}, "copies must be none with a train_length below 192"),
    ],
)
def test_wrong_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configured(values)


# -- which schemes apply ----------------------------------------------------------------------------------------------


# A scheme that learns nothing, one with an end, and one that is refused where there is no second coordinate.
FEW = ("rope", "learned", "relative_2d")


@pytest.mark.parametrize(
    ("task", "scheme"),
    with_more(
        [(task, scheme) for task in SIZES for scheme in FEW], [("text", e.name) for e in catalog() if e.name not in FEW]
    ),
)
def test_every_scheme_takes_a_step_or_is_refused_with_its_reason(task: str, scheme: str, tmp_path: Path) -> None:
    changes = {"text": (str(write(tmp_path, "text", 20_000, 0)),)} if task != "recall" else {}
    config, rules = tiny(task, scheme, **changes), task_of(task)
    if scheme in chain(*rules.left_out().values()):
        with pytest.raises(ValueError, match=f"schemes must do with.*, got '{scheme}'"):
            check(config)
        return
    check(config)
    loaded = rules.load(config)
    model = build_model(config, scheme, 0)
    rows = batch(loaded.train, config, 0, 0)
    before = [parameter.clone() for parameter in model.parameters()]
    loss = step_of(model, optimizer_for(model, config), rows, config, rules.loss)
    assert torch.isfinite(loss)
    assert any(not torch.equal(x, y) for x, y in zip(model.parameters(), before, strict=True))
    tester = loaded.evaluator(model, torch.device("cpu"), lambda tokens: None)
    for kind, length in rules.plan(config.test_lengths, config.train_length):
        assert {"accuracy", "bits", "undefined"} & tester.measure(kind, length).keys()


def test_what_each_task_has_no_positions_for() -> None:
    two, three = ({entry.name for entry in catalog() if entry.least_axes == axes} for axes in (2, 3))
    assert {"relative_2d", "axial_rope"} <= two
    assert {task: set(chain(*rules.left_out().values())) for task, rules in RULES.items()} == {
        "text": {"segment", *two, *three},
        "pieces": {"segment", *two, *three},
        "recall": {"segment", *two, *three},
    }


def test_all_is_every_scheme_that_applies_and_the_others_are_named() -> None:
    config = resolved(tiny("recall", "alibi+rope", "all", "nope"))
    assert config.schemes == ("alibi+rope", *task_of("recall").applicable())
    assert resolved(config) == config


@pytest.mark.parametrize(
    ("task", "scheme", "message"),
    [
        ("text", "relative_2d", "schemes must do with one coordinate per token, since plain text has no second one"),
        ("text", "segment", "schemes must do without segments, of which plain text has none, got 'segment'"),
        ("recall", "relative_2d", "since a row of keys and values among filler has no second one, got 'relative_2d'"),
    ],
)
def test_a_scheme_that_cannot_apply_is_wrong_use(
    task: str, scheme: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--task", task, "--schemes", scheme, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
