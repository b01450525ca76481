"""What trains the models of the explorer's page."""

from pathlib import Path

import pytest

from posenc_lab.compare.tasks import configured, task_of
from posenc_lab.explore.models import header, weights
from study import page_models


def test_a_model_is_trained_rounded_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one on made-up text; a file that is too large, or weights that lose too much, are refused."""
    for n in range(12):
        (tmp_path / f"{n}.txt").write_text("".join(f"{n} times {m} is {n * m}. " for m in range(200)))
    monkeypatch.setattr(page_models, "BEGUN", tmp_path)
    monkeypatch.setattr(page_models, "FOLDER", tmp_path)
    small = {
        "layers": 1,
        "dim": 16,
        "heads": 2,
        "steps": 20,
        "train_length": 16,
        "test_lengths": [16, 32],
        "windows": 8,
    }
    config = configured({"text": [str(tmp_path / "*.txt")], "schemes": ["alibi"], **small})
    found = page_models.made("alibi", config, task_of("text").load(config))
    assert set(found["bits"]["float"]) == {16, 32}
    assert weights(found["parameters"], (tmp_path / "alibi.bin").read_bytes())["head.weight"].shape == (256, 16)
    monkeypatch.setattr(page_models, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="alibi must take 100 bytes and lose"):
        page_models.made("alibi", config, task_of("text").load(config))


def test_the_page_has_what_the_script_makes() -> None:
    said = header()
    assert tuple(said["models"]) == page_models.SCHEMES
    assert (said["configuration"]["steps"], said["seed"]) == (page_models.STEPS, page_models.SEED)
    assert [rate.split("=")[0] for rate in said["rates"]] == list(page_models.SCHEMES)
