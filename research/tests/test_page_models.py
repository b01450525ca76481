"""What trains the models of the explorer's page."""

import base64
from pathlib import Path

import pytest
import torch

import posenc
from posenc_lab.compare.compare import build_model
from posenc_lab.compare.tasks import configured, task_of
from posenc_lab.explore.data import TABLES, tables
from posenc_lab.explore.models import LEVELS, header, weights
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


def test_the_tables_of_the_page_are_those_of_models() -> None:
    """T5's is in the page's model; Shaw's has the shape of its decoder, with distances that the letters tell apart."""
    said = tables()
    assert said["t5"] == page_models.t5()
    made = page_models.shaw(build_model(configured(header()["configuration"]), "shaw", 0))
    shapes = [(len(one["key_table"]), len(one["key_table"][0]), len(one["queries"])) for one in (said["shaw"], made)]
    assert shapes == [(17, 24, 2)] * 2
    assert said["shaw"]["letters"] == list(made["letters"])
    scheme = posenc.Shaw(24, 16, values=False).double()
    with torch.no_grad():
        scheme.key_table[:17] = torch.tensor(said["shaw"]["key_table"], dtype=torch.float64)
    q = torch.tensor(said["shaw"]["queries"], dtype=torch.float64)[:, None, None].expand(2, 1, 20, 24)
    e, comma = posenc.logits(q, 0 * q, scheme)[:, 0, -1].flip(-1)  # by tokens back
    assert e.argmax() == 1
    assert e.softmax(0)[1] > 0.9 > 0.2 > comma.softmax(0).max()  # as step 6 says


def test_the_cosines_of_the_page_are_those_of_minilm() -> None:
    said = tables()["minilm"]
    size = said["positions"]
    cosines = torch.frombuffer(bytearray(base64.b64decode(said["cosines"])), dtype=torch.int8).view(size, size)
    assert torch.equal(cosines, cosines.mT)
    assert (cosines.diagonal() == LEVELS).all()
    text = " ".join((TABLES.parents[1] / "lesson" / "clockwork.md").read_text(encoding="utf-8").split())
    one_in = (float(f"{1 / share:.1g}") for share in (said["nearest"], 1 - said["nearest_scaled"]))
    for words in (
        "are {:.1f} long, and sinusoids would be 13.9 long",
        "for 1 word in {:.0f} only",
        "all but 1 in {:.0f}. ",
    ):
        assert words.format(said["length"] if "long" in words else next(one_in)) in text
    try:
        assert said == page_models.minilm()
    except ModuleNotFoundError:
        pytest.skip("needs posenc-lab[minilm] for all numbers")
