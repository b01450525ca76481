"""Trains a model, resumably. Each batch depends only on seed and step, so all schemes see the same ones."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.models import position_parameters
from posenc.schemes.catalog import catalog
from posenc_lab.compare import checkpoint as checkpoints
from posenc_lab.compare.checkpoint import CheckpointError, Reached
from posenc_lab.compare.config import CompareConfig, Rate
from posenc_lab.compare.data import Bytes
from posenc_lab.kit import processes

Loss: TypeAlias = Callable[[nn.Module, Tensor], Tensor]
"""(model, batch) -> the mean loss in nats."""

Draw: TypeAlias = Callable[[np.random.Generator, int, int], Bytes]
"""(generator, count, size) -> random rows (count, size) of tokens, of which the last is the target."""

CURVE_POINTS = 50
SAVE_SECONDS = 20.0


class DivergedError(ValueError):
    """The training loss is no longer finite; the message names the step at which this was found."""


# Training and tuning draw from separate random streams.
TRAINING, TUNING, TUNING_TEST = 0, 1, 2


def batch(draw: Draw, config: CompareConfig, seed: int, step: int, stream: int = TRAINING) -> Tensor:
    """The batch of a step (batch_size, train_length + 1), the same for every scheme."""
    seed = seed if config.batch_seed is None else config.batch_seed
    rng = np.random.default_rng((stream, seed, step))
    return torch.from_numpy(draw(rng, config.batch_size, config.train_length + 1).astype(np.int64))


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """The mean loss, in nats, of every token after the first."""
    logits: Tensor = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def share_of_rate(config: CompareConfig, step: int) -> float:
    """The fraction of the peak learning rate: linear warmup, then half-cosine decay to a tenth."""
    warmup = round(config.warmup * config.steps)
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(config.steps - warmup, 1)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))


def rate_of(config: CompareConfig, scheme: str) -> Rate:
    """The configured learning rate of a scheme."""
    return config.given_rates().get(scheme, Rate(config.learning_rate))


def optimizer_for(model: nn.Module, config: CompareConfig, rate: Rate | None = None) -> torch.optim.AdamW:
    """AdamW. Weight decay applies to matrices, but not to vectors (norms, biases) or positional parameters, since it
    would shrink a table or a slope to zero, that is, to no positions. The learning rate of positional parameters has a
    multiplier: the given one, or that of the scheme's entry."""
    rate = rate or Rate(config.learning_rate)
    multipliers: dict[type, float] = {entry.scheme: entry.rate for entry in catalog()}
    decays: dict[tuple[bool, float], list[nn.Parameter]] = {}
    owners = position_parameters(model)
    for parameter in model.parameters():
        owner = owners.get(parameter)
        times = 1.0 if parameter not in owners else rate.multiplier or multipliers.get(type(owner), 1.0)
        decays.setdefault((parameter.ndim >= 2 and parameter not in owners, times), []).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": parameters, "highest": rate.learning_rate * times} | ({} if decaying else {"weight_decay": 0.0})
        for (decaying, times), parameters in decays.items()
    ]
    return torch.optim.AdamW(groups, lr=rate.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay)


def step_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    config: CompareConfig,
    loss_of: Loss = loss_of,
    weight: float = 1.0,
) -> Tensor:
    """One training step. Returns the loss before the update, in nats times ``weight``, without waiting for the
    device."""
    loss = weight * loss_of(model, tokens)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), config.clip)
    optimizer.step()
    return loss.detach()


def train(
    model: nn.Module,
    draw: Draw,
    config: CompareConfig,
    seed: int,
    checkpoint: Path,
    *,
    rate: Rate | None = None,
    stream: int = TRAINING,
    fingerprint: str = "",
    loss_of: Loss = loss_of,
    targets: Callable[[Tensor], int] = len,
    probe: Callable[[nn.Module, torch.device], float] | None = None,
    tick: Callable[[int, float], bool] = lambda step, bits: False,
    save_seconds: float = SAVE_SECONDS,
) -> Reached:
    """Trains ``model`` in place, resuming from ``checkpoint`` if it exists, and saves its final state there. Batches
    come from ``stream``; the learning rate is ``rate``'s, or the configuration's.

    With several processes, all of them call this and the first one saves. Each takes its rows of every batch, weighted
    by their ``targets``, the number of losses of which ``loss_of`` is the mean. So all processes have the same model,
    to rounding that of one process.

    A checkpoint has the ``fingerprint`` of its comparison; one with another fingerprint is rejected.

    ``probe(model, device)`` is called at every point of the curve, and its value kept. ``tick(step, bits)`` is called
    after every step with the latest point of the curve (NaN before the first); if it returns True, in any process, the
    state is saved and KeyboardInterrupt raised. A resumed training equals an uninterrupted one, on the CPU with as many
    processes bit for bit.

    Raises DivergedError if the loss is no longer finite, CheckpointError for a checkpoint that cannot be resumed.
    """
    device = next(model.parameters()).device
    optimizer = optimizer_for(model, config, rate)
    every = max(config.steps // CURVE_POINTS, 1)
    # The sum is kept on the device: reading every loss would make a GPU wait.
    reached = Reached(step=0, seconds=0.0, curve=[], running=torch.zeros((), device=device))
    if checkpoint.exists():
        reached = checkpoints.load(checkpoint, model, optimizer, fingerprint=fingerprint)
        expected = [step for step in range(1, reached.step + 1) if step % every == 0 or step == config.steps]
        steps = [step for step, _ in reached.curve]
        if not (0 < reached.step <= config.steps and reached.seconds > 0 and steps == expected):
            raise CheckpointError(f"{checkpoint} is a checkpoint of another training: {checkpoints.REMOVAL_HINT}")
    curve, running = reached.curve, reached.running
    processes.require_same(f"the steps in {checkpoint}", reached.step)

    model.train()
    learner = processes.parallel(
        model, lambda model: loss_of(model, batch(draw, config, seed, 0, stream)[:1].to(device))
    )
    last_saved = clock = time.perf_counter()
    for step in range(reached.step, config.steps):
        for group in optimizer.param_groups:
            group["lr"] = group["highest"] * share_of_rate(config, step)
        rows, weight = processes.part_of(batch(draw, config, seed, step, stream), targets)
        running += processes.mean(step_of(learner, optimizer, rows.to(device), config, loss_of, weight))
        reached.step = done = step + 1
        if done % every == 0 or done == config.steps:
            points = done - (curve[-1][0] if curve else 0)
            bits = float(running) / points / math.log(2)
            if not math.isfinite(bits):
                raise DivergedError(f"the loss is {bits} at step {done}")
            curve.append((done, bits))
            if probe:
                reached.probed.append((done, probe(model, device)))
                model.train()
            running.zero_()
        now = time.perf_counter()
        reached.seconds, clock = reached.seconds + now - clock, now
        stop = processes.most(tick(done, curve[-1][1] if curve else math.nan))
        if processes.rank() == 0 and (stop or done == config.steps or now - last_saved >= save_seconds):
            checkpoints.save(checkpoint, model, optimizer, reached, fingerprint=fingerprint)
            last_saved = clock = time.perf_counter()
        if stop and done < config.steps:
            raise KeyboardInterrupt
    return reached
