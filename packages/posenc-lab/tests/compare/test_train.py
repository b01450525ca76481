from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from posenc_lab.compare import data
from posenc_lab.compare.checkpoint import CheckpointError
from posenc_lab.compare.compare import build_model
from posenc_lab.compare.train import batch, share_of_rate, train
from tests.compare.tiny_comparison import SCHEMES, small_config, write_text


def test_every_scheme_begins_with_the_same_weights_and_sees_the_same_batches(tmp_path: Path) -> None:
    config = small_config(write_text(tmp_path / "text"))
    before = torch.random.get_rng_state()
    models = [build_model(config, scheme, 3) for scheme in SCHEMES]
    assert torch.equal(torch.random.get_rng_state(), before)
    common = set.intersection(*(set(model.state_dict()) for model in models))
    assert len(common) == len(models[0].state_dict())  # of nope, which has no parameters of its own
    for name in common:
        for model in models[1:]:
            assert torch.equal(model.state_dict()[name], models[0].state_dict()[name])
    other = build_model(config, "nope", 4).state_dict()
    assert not torch.equal(other["head.weight"], models[0].state_dict()["head.weight"])

    text = data.load(config.text).train.draw
    assert torch.equal(batch(text, config, 3, 5), batch(text, config, 3, 5))
    assert batch(text, config, 3, 5).shape == (4, 17)
    assert len({tuple(batch(text, config, seed, step).flatten().tolist()) for seed in (0, 1) for step in (0, 1)}) == 4


def test_learning_rate_rises_and_falls(tmp_path: Path) -> None:
    config = small_config(tmp_path, steps=100, warmup=0.1, learning_rate=1.0)
    rates = [share_of_rate(config, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.001)
    assert share_of_rate(small_config(tmp_path, steps=1, learning_rate=1.0), 0) == 1.0


def test_training_learns(tmp_path: Path) -> None:
    config = small_config(write_text(tmp_path / "text"), steps=100, learning_rate=0.01)
    training = train(
        build_model(config, "alibi", 0), data.load(config.text).train.draw, config, 0, tmp_path / "state.safetensors"
    )
    assert training.curve[0][1] > 6
    assert training.curve[-1][1] < 3
    assert [step for step, _ in training.curve] == list(range(2, 101, 2))
    assert training.seconds > 0


def stopping_after(last: int) -> Callable[[int, float], bool]:
    return lambda step, bits: step == last


def test_a_crash_costs_no_more_than_what_came_after_the_last_checkpoint(tmp_path: Path) -> None:
    config = small_config(write_text(tmp_path / "text"), steps=9)
    text = data.load(config.text).train.draw
    seen: list[int] = []

    def crash(step: int, bits: float) -> bool:
        seen.append(step)
        if len(seen) == 6:
            raise RuntimeError("the power is gone")
        return False

    with pytest.raises(RuntimeError, match="power"):
        train(
            build_model(config, "nope", 0), text, config, 0, tmp_path / "part.safetensors", tick=crash, save_seconds=0
        )
    train(build_model(config, "nope", 0), text, config, 0, tmp_path / "part.safetensors", tick=crash)
    assert seen == [1, 2, 3, 4, 5, 6, 6, 7, 8, 9]


def test_a_checkpoint_of_another_comparison_is_refused(tmp_path: Path) -> None:
    config = small_config(write_text(tmp_path / "text"))
    text, path = data.load(config.text).train.draw, tmp_path / "part.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(build_model(config, "nope", 0), text, config, 0, path, fingerprint="one", tick=stopping_after(3))
    before = path.read_bytes()
    with pytest.raises(
        CheckpointError, match=r"part.safetensors is a checkpoint of another .* \(one there, other here\): remove"
    ):
        train(build_model(config, "nope", 0), text, config, 0, path, fingerprint="other")
    assert path.read_bytes() == before
    train(build_model(config, "nope", 0), text, config, 0, path, fingerprint="one")
