"""Tuning: which learning rate a scheme is trained at, found on examples that no training and no test has.

Schemes want different rates: what a table learns moves by at most about the learning rate in a step, so a bias that
should become 8 cannot in 600 steps of 0.005. A comparison at one rate for all says as much of the rate as of the
schemes. So each scheme has the same number of trials: learning rates times multipliers of its positional parameters'
rate, or, of a scheme that learns nothing, as many learning rates in between. A trial is a whole training; what counts
is its loss on tuning examples of the training length.
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
from posenc.tools.compare.config import CompareConfig, Rate
from posenc.tools.compare.task import Loaded, Measures, Task
from posenc.tools.compare.train import TUNING_TEST
from posenc.tools.kit.records import Record


def trials(config: CompareConfig, learns: bool) -> list[Rate]:
    """What is tried for a scheme, equally many for one that learns and for one that does not.

    >>> len(trials(CompareConfig(), learns=True)), len(trials(CompareConfig(), learns=False))
    (15, 15)
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
    """The rate of the trials with the lowest mean loss over the tuning seeds; None where none has come to an end. One
    that diverged at any seed is not taken."""
    found: dict[int, list[Record]] = {}
    for record in records:
        if record["kind"] == "trial" and record["scheme"] == scheme:
            found.setdefault(record["trial"], []).append(record)
    losses = {
        trial: sum(r["bits"] for r in each) / len(each)
        for trial, each in found.items()
        if all(r.get("bits") is not None for r in each)
    }
    if not losses:
        return None
    best = found[min(losses, key=lambda trial: (losses[trial], trial))][0]
    return Rate(best["learning_rate"], best["multiplier"])


@torch.inference_mode()
def losses(
    model: nn.Module, task: Task, loaded: Loaded, config: CompareConfig, seed: int, device: torch.device
) -> dict[str, Any]:
    """A trained model's loss on tuning examples: ``bits`` at the training length and, where the task has more lengths
    to tune on, ``longest`` at the longest of them, unless it has no such position. None where it is not a number."""
    found: dict[str, Any] = {}
    for name, length in zip(("bits", "longest"), task.tuning_lengths(config), strict=False):
        with suppress(PositionError):
            found[name] = _loss(model.eval(), task, loaded, config, seed, length, device)
    return found


def _loss(
    model: nn.Module, task: Task, loaded: Loaded, config: CompareConfig, seed: int, length: int, device: torch.device
) -> float | None:
    """The mean over examples of as many tokens as the evaluation windows have, drawn anew for each tuning seed."""
    rng = np.random.default_rng((TUNING_TEST, seed, length))
    count = config.windows * max(config.test_lengths[-1] // length, 1)
    rows = torch.from_numpy(loaded.tuning(rng, count, length + 1).astype(np.int64)).to(device)
    parts: Sequence[Tensor] = rows.split(max(Measures.AT_ONCE // length, 1))
    total = sum(float(task.loss(model, part)) * len(part) for part in parts)
    bits = total / len(rows) / math.log(2)
    return round(bits, 6) if math.isfinite(bits) else None
