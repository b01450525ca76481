"""posenc extend over several processes, and with several texts in a fine-tuning step."""

import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="transformers needs Python 3.11")

from posenc_lab.extend import job, measure, run
from posenc_lab.extend import model as models
from posenc_lab.extend.settings import Extension
from posenc_lab.extend.text import Tokens
from posenc_lab.kit.machine import device_of
from posenc_lab.kit.records import Record, key, read
from tests.distributed.processes import in_processes


def results(records: list[Record]) -> dict[Any, Any]:
    """The numbers of each record."""
    return {
        (key(record), name, n): value
        for record in records
        for name in ("bits", "found", "depth", "curve")
        for n, value in enumerate(np.ravel(record.get(name, [])).tolist())
    }


def extended(given: tuple[Extension, Path, bool]) -> int:
    """Extends; if asked to, process 1 first gets a signal before its third text."""
    settings, out, interrupted = given
    draw, left = job.Bench._draw, 3

    def counted(*of: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return draw(*of)

    if interrupted:
        job.Bench._draw = counted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            run.extend(settings, out)
        job.Bench._draw = draw  # type: ignore[method-assign]
        torch.distributed.barrier()  # or the first process would still write
    return len(run.extend(settings, out))


def cases(given: list[tuple[Extension, Path, bool]]) -> list[int]:
    """Several extensions in one group of processes."""
    return [extended(each) for each in given]


@pytest.mark.more
def test_two_processes_measure_what_one_does(settings: Extension, tmp_path: Path) -> None:
    """Three pieces and texts do not divide by two; one text leaves a process without any."""
    free = replace(settings, scalings=("none", "linear"), windows=3, tasks=("text", "item"), lengths=(96, 128))
    tuned = replace(free, train=3, train_batch=3, scalings=("linear",), tasks=("text",), learning_rate=1e-3)
    few = replace(tuned, train_batch=1, lora=2)
    given = [(free, tmp_path / "0", False), (tuned, tmp_path / "1", True), (few, tmp_path / "2", False)]
    first, second = in_processes(2, tmp_path, cases, given)
    assert second == [0, 0, 0]
    for count, (its, out, _) in zip(first, given, strict=True):
        alone = run.extend(its, out.with_suffix(".alone"))
        found, expected = read(out), results(alone)
        assert (len(found), len({key(record) for record in found})) == (count, len(alone))
        assert {record["machine"]["processes"] for record in found} == {2}
        # Steps of float32, whose results of about 8 bits are told to the sixth digit.
        assert results(found) == pytest.approx(expected, abs=64 * 8 * 2**-23 + 1e-6)


def test_the_loss_of_a_step_is_the_mean_over_its_texts(settings: Extension, tmp_path: Path) -> None:
    its = replace(settings, scalings=("none",), train=1, train_batch=3, train_length=32)
    records = run.extend(its, tmp_path)
    (curve,) = (record["curve"] for record in records if record["kind"] == "training")
    loaded = models.load(models.find(its.model), "float32", "sdpa", device_of("cpu"))
    tokens, rng = Tokens(its.text, loaded.tokenizer, 128, 8, 2), np.random.default_rng((its.seed, 0))
    texts = [tokens.draw(rng, 32) for _ in range(3)]
    nats = [float(measure.nats(loaded.model, text, torch.arange(31))[0].mean()) for text in texts]
    assert len({tuple(text.tolist()) for text in texts}) == 3
    assert curve == [[1, pytest.approx(sum(nats) / 3 / math.log(2), abs=64 * 8 * 2**-23 + 1e-6)]]
