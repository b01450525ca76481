"""The tasks beside text: that they ask what they say, and that the lab treats them as it treats text."""

import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posenc.command.cli import main
from posenc.positions.positions import PositionError
from posenc.schemes.catalog import catalog
from posenc.schemes.relative_2d import Relative2D
from posenc_lab.compare.compare import build_model, check, compare, resolved
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.tasks import TASKS, complete, configured, task_of
from posenc_lab.compare.tasks.classify import GROUP, WORDS, A, B, answers, groups
from posenc_lab.compare.tasks.digits import fitted, pixels, resized
from posenc_lab.compare.train import batch, optimizer_for, step_of
from posenc_lab.kit.configuration import fingerprint
from posenc_lab.kit.records import key
from tests.compare.small import write_text
from tests.rounding import of_sums
from tests.rows import with_more

TINY: dict[str, Any] = {"layers": 1, "dim": 16, "heads": 2, "batch_size": 4, "windows": 8, "steps": 2}
SIZES = {"text": 16, "digits": 4, "classify": 8, "copy": 4}  # the puzzles differ in their rows alone: one for all


RULES = {name: task_of(name) for name in SIZES}


def tiny(task: str, *schemes: str, **changes: Any) -> CompareConfig:
    if task == "digits":
        pytest.importorskip("sklearn")
    given = {"task": task, "train_length": SIZES[task], "schemes": schemes or ("nope",), **TINY}
    return configured({**given, **changes})


def test_the_fingerprint_of_a_text_does_not_know_that_there_are_other_tasks() -> None:
    identity = complete(CompareConfig()).identity(torch="1")
    assert "task" not in identity
    assert fingerprint(identity) == "b1d56e4144c7d249"
    assert configured({"task": "digits"}).identity()["task"] == "digits"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": "sing"}, f"task must be one of {', '.join(TASKS)}, got 'sing'"),
        ({"task": "digits", "train_length": 5}, "train_length must be 4 or 8, patches along a side of 8 pixels, got 5"),
        ({"task": "classify", "train_length": 12}, "train_length must be a multiple of 8, got 12"),
        ({"task": "classify", "test_lengths": [15]}, "test_lengths must be at least 16 each, half of train_length"),
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
    changes = {"text": (str(write_text(tmp_path / "text")),)} if task == "text" else {}
    config, rules = tiny(task, scheme, **changes), task_of(task)
    if scheme in chain(*rules.left_out().values()):
        with pytest.raises(ValueError, match=f"schemes must (do with|encode keys after the query).*, got '{scheme}'"):
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
    for kind, length in rules.plan(scheme, config.test_lengths, config.train_length):
        assert {"accuracy", "bits", "undefined"} & tester.measure(kind, length).keys()


def test_what_each_task_has_no_positions_for() -> None:
    two, three = ({entry.name for entry in catalog() if entry.least_axes == axes} for axes in (2, 3))
    assert {"relative_2d", "axial_rope"} <= two
    back = {"dual_chunk", "fire", "fox", "grape_a", "wall", "xpos"}  # and these are for decoders
    assert {task: set(chain(*rules.left_out().values())) for task, rules in RULES.items()} == {
        "text": {"segment", *two, *three},
        "digits": {"segment", *three, *back},
        "classify": {*two, *three, *back},
        "copy": {"segment", *two, *three},
    }
    tried = set().union(*(rules.applicable() for rules in RULES.values()))
    assert tried == {entry.name for entry in catalog()} - three


def test_all_is_every_scheme_that_applies_and_the_others_are_named() -> None:
    config = resolved(tiny("classify", "alibi+rope", "all", "nope"))
    assert config.schemes == ("alibi+rope", *task_of("classify").applicable())
    assert resolved(config) == config


@pytest.mark.parametrize(
    ("task", "scheme", "message"),
    [
        ("text", "relative_2d", "schemes must do with one coordinate per token, since plain text has no second one"),
        ("digits", "segment", "schemes must do without segments, of which an image has none, got 'segment'"),
        ("digits", "relative_2d+alibi", "relative_2d takes two and alibi takes one"),
        ("classify", "relative_2d", "since a sequence of words has no second one, got 'relative_2d'"),
    ],
)
def test_a_scheme_that_cannot_apply_is_wrong_use(
    task: str, scheme: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--task", task, "--schemes", scheme, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# -- classify ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [16, 32, 57])
def test_every_bag_of_words_has_every_label_equally_often(length: int) -> None:
    made = groups(np.random.default_rng(0), 50, length, 32)
    for group in made:
        bags = {tuple(sorted(Counter(row[:-1].tolist()).items())) for row in group}
        assert len(bags) == 1
        assert sorted(row[-1] for row in group) == [0, 1, 2, 3]


def test_labels_are_what_they_say() -> None:
    train_length = 32
    for row in groups(np.random.default_rng(1), 200, 40, train_length).reshape(-1, 41):
        words, label = row[:-1].tolist(), row[-1]
        a, b = words.index(A), words.index(B)
        assert (words.count(A), words.count(B)) == (1, 1)
        assert all(word < WORDS for n, word in enumerate(words) if n not in (a, b))
        assert (a < b) == label % 2
        apart = abs(a - b)
        assert 8 <= apart <= 15 if label >= 2 else 1 <= apart <= 4


def test_training_draws_whole_groups_that_no_test_has() -> None:
    config = tiny("classify", batch_size=8)
    loaded = task_of("classify").load(config)
    rows = batch(loaded.train, config, 0, 0)
    assert rows.shape == (8, config.train_length + 1)
    assert rows[:, -1].view(2, GROUP).sort().values.tolist() == [[0, 1, 2, 3]] * 2
    assert torch.equal(rows, batch(loaded.train, config, 0, 0))
    assert not torch.equal(rows, batch(loaded.train, config, 0, 1))


def scores(scheme: str, rows: torch.Tensor, **changes: Any) -> torch.Tensor:
    model = build_model(tiny("classify", scheme, layers=2, **changes), scheme, 3).double()
    with torch.no_grad():
        for parameter in model.parameters():  # away from any symmetry of the first weights
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        result: torch.Tensor = model(rows[..., :-1].flatten(0, 1)).unflatten(0, (-1, GROUP))
    return result


@pytest.mark.parametrize("scheme", ["nope", "alibi", "distance_aware"])
def test_a_scheme_blind_to_direction_answers_both_readings_alike(scheme: str) -> None:
    rows = torch.from_numpy(groups(np.random.default_rng(2), 20, 24, 32).astype(np.int64))
    found = scores(scheme, rows)
    bound = of_sums(torch.float64, 2 * (8 * 64 + 32), found)  # two layers, no wider than 64, over 32 tokens
    torch.testing.assert_close(found[:, 0], found[:, 1], rtol=0, atol=bound)
    torch.testing.assert_close(found[:, 2], found[:, 3], rtol=0, atol=bound)
    near_and_far = (found[:, 0] - found[:, 2]).abs().max()
    assert near_and_far < bound if scheme == "nope" else near_and_far > 1e-4
    order = (found[..., 0] > 0) == answers(rows.flatten(0, 1))[:, 0].view(-1, GROUP)
    assert order.double().mean(1).tolist() == [0.5] * 20


# -- digits -----------------------------------------------------------------------------------------------------------


def test_relative_2d_is_undefined_on_a_larger_grid_until_it_is_resized(tmp_path: Path) -> None:
    records = {key(r)[:4]: r for r in compare(tiny("digits", "relative_2d", "sinusoidal", "rope", "alibi"), tmp_path)}
    assert "up to 3 along axis 0, got 5" in records["accuracy", "relative_2d", 0, 6]["undefined"]
    for scheme in ("relative_2d", "sinusoidal", "rope"):
        for side in (3, 6, 8):
            assert len(records["resized", scheme, 0, side]["accuracy"]) == 8
        assert ("resized", scheme, 0, 4) not in records
    assert not any(kind == "resized" and scheme == "alibi" for kind, scheme, *_ in records)
    assert set(records["accuracy", "alibi", 0, 8]["accuracy"]) <= {0.0, 1.0}


def test_resizing_leaves_the_trained_model_as_it_is() -> None:
    config = tiny("digits", "relative_2d", inject="every_layer", per_layer=True, layers=2)
    model = build_model(config, "relative_2d", 0)
    images = torch.rand(2, 1, 12, 12)
    with pytest.raises(PositionError):
        model(images)
    other = resized(model, 6)
    assert [m.grid for m in other.modules() if isinstance(m, Relative2D)] == [(6, 6)] * 2
    assert [m.grid for m in model.modules() if isinstance(m, Relative2D)] == [(4, 4)] * 2
    assert other(images).shape == (2, 10)
    same = resized(model, 4)
    assert torch.equal(same(images[..., :8, :8]), model(images[..., :8, :8]))
    plain = build_model(tiny("digits", "sinusoidal"), "sinusoidal", 0)
    assert resized(plain, 6) is plain


def test_fitted_positions_keep_the_image_where_it_was() -> None:
    device = torch.device("cpu")
    assert fitted(4, 4, device).coords[0, :, 1].view(4, 4)[0].tolist() == [0, 1, 2, 3]
    twice = fitted(8, 4, device).coords[0].view(8, 8, 2)
    assert twice[0, :4, 1].tolist() == [-0.25, 0.25, 0.75, 1.25]
    # The middle of each two by two patches of the finer grid is the patch of the coarse one.
    assert twice.view(4, 2, 4, 2, 2).mean((1, 3))[2, 3].tolist() == [2, 3]


def test_digits_are_the_images_they_say() -> None:
    config = tiny("digits")
    loaded = task_of("digits").load(config)
    rows = batch(loaded.train, config, 0, 0)
    assert rows.shape == (4, 65)
    assert (pixels(rows).min(), pixels(rows).max()) == (-1, 1)
    assert pixels(rows).shape == (4, 1, 8, 8)
    assert "1,797 images" in loaded.about
    with pytest.raises(ValueError, match="windows must leave half of 1,797 images to train on, got 1000"):
        task_of("digits").load(tiny("digits", windows=1000))


# -- both -------------------------------------------------------------------------------------------------------------


def test_the_extra_that_digits_need_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["compare", "--task", "digits", "--out", str(tmp_path / "out")]) == 1
    assert "is not installed: pip install 'posenc-lab[images]'" in capsys.readouterr().err
