"""Several processes that train as one."""

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from posenc_lab.compare import compare as job
from posenc_lab.compare import train as training
from posenc_lab.compare.compare import build_model, compare
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.tasks import configured, task_of
from posenc_lab.compare.train import batch
from posenc_lab.kit import processes
from posenc_lab.kit.records import read
from tests.compare.tiny_comparison import small_config, untimed, write_text
from tests.distributed.processes import in_processes


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_parts_of_a_batch(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """Of rows with 1, 2, 3 and 4 targets, the first process of three has two."""
    monkeypatch.setattr(processes, "world", lambda: 3)
    monkeypatch.setattr(processes, "rank", lambda: rank)
    rows = torch.tensor([[1], [2], [3], [4]])
    mine, weight = processes.part_of(rows, lambda part: int(part.sum()))
    assert (mine.tolist(), weight) == [([[1], [2]], 3 * 3 / 10), ([[3]], 3 * 3 / 10), ([[4]], 3 * 4 / 10)][rank]
    mine, weight = processes.part_of(rows[:2])
    assert (mine.tolist(), weight) == [([[1]], 1.5), ([[2]], 1.5), ([[1]], 0.0)][rank]


def test_what_several_processes_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "world", lambda: 2)
    monkeypatch.setattr(processes, "device_of", torch.device)
    assert processes.own_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match=r"^device must be cpu or cuda with several processes, .*, got 'cuda:1'$"):
        processes.own_device("cuda:1")

    def gather(found: list[Any], value: Any) -> None:
        found[:] = value, value + 1

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    with pytest.raises(
        ValueError, match=r"^the steps in x must be the same in all processes, got 3, 4: give files that"
    ):
        processes.require_same("the steps in x", 3)
    config = small_config(write_text(tmp_path / "text"))
    training = job.Training(config, "other", "nope", 0, job.Rate(1.0), 0, tmp_path / "x", "")
    monkeypatch.setattr(job, "jobs", lambda: iter([training]))
    with pytest.raises(ValueError, match=r"^text must be the same in all processes, got \w+ and other$"):
        job.follow(lambda *_: nn.Linear(1, 1))


@torch.no_grad()
@pytest.mark.parametrize("name", ["text", "recall"])
def test_targets_are_what_a_loss_is_the_mean_over(name: str, tmp_path: Path) -> None:
    task = task_of(name)
    config = configured({"task": name, "text": [str(write_text(tmp_path / "text"))], "train_length": 16, "dim": 16})
    model = build_model(config, "nope", 0)
    rows = batch(task.load(config).train, config, 0, 0)[:5]
    parts = [float(task.loss(model, row)) * task.targets(row) for row in rows.split(1)]
    # Float32, over some hundred targets.
    assert sum(parts) / task.targets(rows) == pytest.approx(float(task.loss(model, rows)), rel=256 * 2**-23)


def compared(given: tuple[CompareConfig, Path, bool]) -> int:
    """Compares; if asked to, process 1 first gets a signal before its third batch."""
    config, out, interrupted = given
    draw, left = training.batch, itertools.count(1)

    def counted(*of: Any) -> torch.Tensor:
        if next(left) == 3 and processes.rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return draw(*of)

    if interrupted:
        training.batch = counted  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            compare(config, out)
        training.batch = draw  # type: ignore[assignment]
        torch.distributed.barrier()  # or the first process would still write
    return len(compare(config, out))


def numbers_of(value: Any) -> Any:
    """Nested records as one mapping."""
    if isinstance(value, list | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {(name, *of): x for name, item in items for of, x in numbers_of(item).items()}
    return {(): value}


@pytest.mark.more
def test_three_processes_that_are_interrupted_measure_what_one_does(tmp_path: Path) -> None:
    """Rows do not divide, and there may be fewer of them than processes."""
    config = small_config(write_text(tmp_path / "text"), schemes=("nope", "learned"), batch_size=2, steps=3)
    first, *others = in_processes(3, tmp_path, compared, (config, tmp_path / "out", True))
    alone = compare(config, tmp_path / "alone")
    assert (first, others) == (len(alone), [0, 0])
    assert all(record["machine"]["processes"] == 3 for record in read(tmp_path / "out"))
    for record, expected in zip(untimed(read(tmp_path / "out")), untimed(alone), strict=True):
        record["machine"].pop("processes", 3)
        # Three steps of training in float32, whose results of about 8 bits are told to the sixth digit.
        assert numbers_of(record) == pytest.approx(numbers_of(expected), abs=64 * 8 * 2**-23 + 1e-6)
