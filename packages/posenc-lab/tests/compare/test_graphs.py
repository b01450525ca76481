"""Passes that are recorded as CUDA graphs. Tests that need a GPU are marked."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from posenc_lab.compare import data
from posenc_lab.compare import train as train_module
from posenc_lab.compare.compare import build_model
from posenc_lab.compare.graphs import Recorded
from posenc_lab.compare.train import train
from tests.compare.small import small_config, write_text


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of a GPU."""
    for name in ("device", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda given: nullcontext())


@pytest.mark.usefixtures("no_gpu")
def test_what_cannot_be_recorded_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCUDA kernel errors might be")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", refuse)
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    learner = Recorded(model)
    slower = "recorded as CUDA graphs, so its training is slower: .* not permitted when stream is capturing$"
    with pytest.warns(UserWarning, match=slower):
        assert torch.equal(learner(x), model(x))
    assert torch.equal(learner(x), model(x))  # it does not try again


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", ["learned", "rope", "t5", "fox", "stick_breaking"])
def test_recorded_passes_train_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    config = small_config(write_text(tmp_path / "text"), steps=30, device="cuda")
    text = data.load(config.text).train.draw

    def trained(name: str) -> tuple[list[torch.Tensor], list[tuple[int, float]]]:
        model = build_model(config, scheme, 0).to("cuda")
        curve = train(model, text, config, 0, tmp_path / name).curve
        return list(model.state_dict().values()), curve

    recorded = trained("recorded")
    monkeypatch.setattr(train_module, "replayed", lambda model: model)
    as_it_is = trained("as it is")
    torch.testing.assert_close(recorded, as_it_is)
