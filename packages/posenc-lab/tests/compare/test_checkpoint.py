import errno
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from posenc_lab.compare import checkpoint, data
from posenc_lab.compare.checkpoint import CheckpointError, Reached
from posenc_lab.compare.compare import build_model
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.train import optimizer_for, train
from tests.compare.tiny_comparison import fill_disk, small_config, write_text


class Odd(nn.Module):
    """Tied weights, a parameter without a gradient, two dtypes, a scalar, a buffer and an empty matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.tied = self.first
        self.unused = nn.Parameter(torch.ones(2))
        self.short = nn.Parameter(torch.randn(2, 3).bfloat16())
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.register_buffer("count", torch.tensor([1, 2]))

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss = (
            self.first(torch.arange(3.0, device=self.scale.device)).square().sum() * self.scale
            + self.short.float().square().sum()
        )
        (loss + self.empty.sum()).backward()
        optimizer.step()


def odd(device: torch.device) -> tuple[Odd, torch.optim.AdamW]:
    torch.default_generator.manual_seed(0)
    model = Odd().to(device)
    return model, optimizer_for(model, CompareConfig())


def bits(value: Any) -> Any:
    """The same for tensors of the same bytes, at the same place, alone."""
    if isinstance(value, Tensor):
        return value.device, value.dtype, value.shape, value.detach().clone().reshape(-1).view(torch.uint8).tolist()
    if isinstance(value, dict):
        return {name: bits(item) for name, item in value.items()}
    return [bits(item) for item in value] if isinstance(value, list) else value


def test_what_is_saved_comes_back_to_the_bit(tmp_path: Path, device: torch.device) -> None:
    model, optimizer = odd(device)
    for _ in range(3):
        model.step(optimizer)
    running = torch.tensor(0.1, device=device)
    saved = Reached(step=3, seconds=0.1 + 0.2, curve=[(1, 8 / 3), (2, 1e-300)], running=running)
    checkpoint.save(tmp_path / "a", model, optimizer, saved, fingerprint="f")
    other, its = odd(device)
    reached = checkpoint.load(tmp_path / "a", other, its, fingerprint="f")
    assert (reached.step, reached.seconds, reached.curve) == (saved.step, saved.seconds, saved.curve)
    assert bits(reached.running) == bits(running)
    assert bits(other.state_dict()) == bits(model.state_dict())
    assert bits(its.state_dict()) == bits(optimizer.state_dict())
    assert len(its.state_dict()["state"]) == 5  # of six parameters, one of which never had a gradient
    for each, own in ((model, optimizer), (other, its)):
        each.step(own)
    assert bits(other.state_dict()) == bits(model.state_dict())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of a training of six steps that was stopped after three."""
    config = small_config(write_text(tmp_path / "text"), schemes=("learned",))
    with pytest.raises(KeyboardInterrupt):
        train(
            build_model(config, "learned", 0),
            data.load(config.text).train.draw,
            config,
            0,
            tmp_path / "learned-0.safetensors",
            tick=lambda step, bits: step == 3,
        )
    return tmp_path / "learned-0.safetensors"


def resume(path: Path, scheme: str = "learned", **changes: Any) -> None:
    config = small_config(path.parent / "text", schemes=("learned",))
    train(build_model(replace(config, **changes), scheme, 0), data.load(config.text).train.draw, config, 0, path)


def test_no_byte_can_change_unnoticed(saved: Path) -> None:
    whole = saved.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for place in [*range(0, header, 97), *range(header, len(whole), 1999), len(whole) - 1]:
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        saved.write_bytes(changed)
        with pytest.raises(
            CheckpointError, match=r"-0.safetensors is not a whole checkpoint .*: remove it to train an"
        ):
            resume(saved)
    saved.write_bytes(whole)
    resume(saved)


@pytest.mark.parametrize("size", [0, 5, 8, 100, -1])
def test_no_byte_can_be_missing(saved: Path, size: int) -> None:
    saved.write_bytes(saved.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"is not a whole checkpoint \(Error while deserializing header: "):
        resume(saved)


def test_a_checkpoint_of_another_model_is_refused_and_the_model_left_as_it_was(saved: Path) -> None:
    for scheme, changes, message in (
        ("nope", {}, "with exp_avg.trunk.position.weight"),
        ("learned", {"layers": 2}, "without model.trunk.blocks.1."),
        ("learned", {"train_length": 8}, "exp_avg.trunk.position.weight is (16, 16) float32 there and (8, 16) "),
    ):
        with pytest.raises(CheckpointError, match=re.escape(f"is a checkpoint of another model ({message}")):
            resume(saved, scheme, **changes)
    model = build_model(small_config(saved, schemes=("learned",)), "learned", 1).double()
    optimizer = optimizer_for(model, CompareConfig())
    before = bits(model.state_dict())
    with pytest.raises(CheckpointError, match=r"is \(.*\) float32 there and \(.*\) float64 here\): remove it"):
        checkpoint.load(saved, model, optimizer)
    assert bits(model.state_dict()) == before
    assert optimizer.state_dict()["state"] == {}


def with_progress(whole: bytes, **changes: Any) -> bytes:
    """A file with other progress (None: without it) that is whole: its digest is right."""
    size = int.from_bytes(whole[:8], "little")
    told = {**json.loads(json.loads(whole[8 : 8 + size])["__metadata__"]["training"]), **changes}
    told = {name: value for name, value in told.items() if value is not None}
    tensors = from_bytes(whole)
    del told["digest"]
    told["digest"] = checkpoint._digest(tensors, told)
    return to_bytes(tensors, {"training": json.dumps(told)})


def test_a_whole_file_of_another_training_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    for there in ({}, {"probed": None}):  # earlier versions had none
        saved.write_bytes(with_progress(whole, **there))
        resume(saved)
    for changes in ({"step": 4}, {"step": 7}, {"step": 0, "curve": []}, {"step": -3}, {"curve": []}, {"seconds": 0}):
        saved.write_bytes(with_progress(whole, **changes))
        with pytest.raises(CheckpointError, match=r"-0.safetensors is a checkpoint of another training: remove it"):
            resume(saved)
    for changes, message in (
        ({"step": "3"}, 'step must be a whole number, got "3"'),
        ({"curve": [[1, None]]}, "curve must be a list of pairs of a whole and a finite number, got [[1, null]]"),
        ({"seconds": float("nan")}, "NaN is no number of JSON"),
    ):
        saved.write_bytes(with_progress(whole, **changes))
        with pytest.raises(CheckpointError, match=re.escape(f"is not a whole checkpoint ({message}): remove it")):
            resume(saved)
    saved.write_bytes(to_bytes({"running": torch.zeros(())}))
    with pytest.raises(CheckpointError, match=r"is not a whole checkpoint \(Expecting value at column 1\)"):
        resume(saved)


@pytest.mark.parametrize("takes", [0, 1, 5000])
def test_a_checkpoint_that_the_disk_does_not_take_leaves_the_one_before(
    saved: Path, monkeypatch: pytest.MonkeyPatch, takes: int
) -> None:
    before = {path.name: path.read_bytes() for path in saved.parent.iterdir()}
    with monkeypatch.context() as patched:
        fill_disk(patched, takes)
        with pytest.raises(OSError, match=rf"^\[Errno {errno.ENOSPC}\] No space left on device: '{saved}'$"):
            resume(saved)
    assert {path.name: path.read_bytes() for path in saved.parent.iterdir()} == before
    resume(saved)
