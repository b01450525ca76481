"""Tunes the learning rate of each scheme on validation examples.

The best rate differs between schemes: a parameter moves by at most about the learning rate per step, so a bias cannot
reach 8 in 600 steps of 0.005. A comparison at a single rate depends on that rate. So each scheme has the same number of
trials: learning rates times multipliers for positional parameters, or, without learned parameters, as many learning
rates. A trial is a full training run, scored by its loss on tuning examples: the mean of that at the training length
and that at twice the length. By the training length alone some are tuned to fail beyond it: the best rate of PoPE in
posenc's study gives 4.82 bits per byte at eight times the length, and another rate 3.09.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc.positions.positions import PositionError
from posenc_lab.compare.config import CompareConfig, Rate
from posenc_lab.compare.summary import Trial
from posenc_lab.compare.task import Loaded, Measures, Task
from posenc_lab.compare.train import TUNING_TEST
from posenc_lab.kit.files import rounded
from posenc_lab.kit.records import Record


def trials(config: CompareConfig, learns: bool) -> list[Rate]:
    """The rates to try for a scheme, equally many with learned parameters and without.

    >>> len(trials(CompareConfig(), learns=True)), len(trials(CompareConfig(), learns=False))
    (25, 25)
    """
    rates, multipliers = sorted(config.tune_rates), sorted(config.tune_multipliers)
    if not multipliers:
        return [Rate(rate) for rate in rates]
    if learns:
        return [Rate(rate, multiplier) for rate, multiplier in product(rates, multipliers)]
    count = len(rates) * len(multipliers)
    between = np.geomspace(rates[0], rates[-1], count) if len(rates) > 1 else rates
    return [Rate(float(f"{rate:.4g}")) for rate in between]


def chosen(scheme: str, records: Iterable[Record]) -> Rate | None:
    """The rate with the lowest mean loss over the tuning seeds, at the training length and, where it was measured, at
    twice that; None if all diverged. A rate that diverged with any seed is not chosen."""
    found: dict[int, list[Record]] = {}
    for record in records:
        if record["kind"] == "trial" and record["scheme"] == scheme:
            found.setdefault(record["trial"], []).append(record)
    losses = {trial: loss for trial, each in found.items() if (loss := Trial.of(each).loss) is not None}
    if not losses:
        return None
    best = found[min(losses, key=lambda trial: (losses[trial], trial))][0]
    return Rate(best["learning_rate"], best["multiplier"])


@torch.inference_mode()
def losses(
    model: nn.Module, task: Task, loaded: Loaded, config: CompareConfig, seed: int, device: torch.device
) -> dict[str, Any]:
    """A trained model's loss on tuning examples at each of the task's tuning lengths, unless it has no such position.
    None where it is not a number."""
    found: dict[str, Any] = {}
    for name, length in task.tuning_lengths(config).items():
        with suppress(PositionError):
            found[name] = _loss(model.eval(), task, loaded, config, seed, length, device)
    return found


def _loss(
    model: nn.Module, task: Task, loaded: Loaded, config: CompareConfig, seed: int, length: int, device: torch.device
) -> float | None:
    """The mean loss over as many tokens as the evaluation windows have, drawn for each tuning seed."""
    rng = np.random.default_rng((TUNING_TEST, seed, length))
    count = config.windows * max(config.test_lengths[-1] // length, 1)
    rows = torch.from_numpy(loaded.tuning(rng, count, length + 1).astype(np.int64)).to(device)
    parts: Sequence[Tensor] = rows.split(max(Measures.AT_ONCE // length, 1))
    total = sum(float(task.loss(model, part)) * len(part) for part in parts)
    return rounded(total / len(rows) / math.log(2))
