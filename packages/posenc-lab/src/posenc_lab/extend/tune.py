"""Fine-tunes a model briefly with a scaling, since many models fail if frequencies change without training."""

import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc_lab.compare import checkpoint as checkpoints
from posenc_lab.compare.checkpoint import CheckpointError, Reached
from posenc_lab.compare.train import DivergedError
from posenc_lab.extend.settings import Extension
from posenc_lab.kit import processes
from posenc_lab.kit.processes import Stop

SAVE_SECONDS = 120.0
LORA_ALPHA = 2  # times the rank


class Trained(nn.Module):
    """The trainable weights of a model by name, which a checkpoint holds."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.register_parameter(name.replace(".", "/"), parameter)


def prepared(model: Any, settings: Extension) -> Any:
    """The model with its trainable weights: all, or LoRA matrices of attention's projections."""
    if settings.lora:
        try:
            from peft import LoraConfig, get_peft_model
        except ModuleNotFoundError:
            raise ValueError("--lora needs peft, which is not installed: pip install 'posenc-lab[extend]'") from None
        targets = [
            f"{name}.{inner}"
            for name, attention in model.named_modules()
            if any("Attention" in kind.__name__ for kind in type(attention).__mro__)
            for inner, projection in attention.named_modules()
            if isinstance(projection, nn.Linear)
        ]
        if not targets:
            raise ValueError(f"--lora knows no projections of attention in {type(model).__name__}: train all weights")
        made = LoraConfig(r=settings.lora, lora_alpha=LORA_ALPHA * settings.lora, target_modules=targets)
        with torch.random.fork_rng(devices=[]):  # every scaling begins with the same matrices
            torch.manual_seed(settings.seed)
            with warnings.catch_warnings():  # peft uses a deprecated name of transformers
                warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
                return get_peft_model(model, made)
    return model.requires_grad_(True)


def tune(
    model: Any,
    draw: Callable[[np.random.Generator], Tensor],
    settings: Extension,
    checkpoint: Path,
    fingerprint: str,
    tick: Callable[[int, float], None],
    stop: Stop,
) -> Reached:
    """Trains the trainable weights of ``model`` on texts of ``draw``, resuming from ``checkpoint`` if it exists, and
    saves its state there. Texts depend only on seed and step, so a resumed training sees the same ones. Several
    processes divide the texts of a step. DivergedError if the loss is no longer finite; KeyboardInterrupt, once the
    state is saved, if ``stop`` was asked for in any process."""
    trained = Trained(model)
    device = next(trained.parameters()).device
    optimizer = torch.optim.AdamW(trained.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    reached = Reached(step=0, seconds=0.0, curve=[], running=torch.zeros((), device=device))
    if checkpoint.exists():
        reached = checkpoints.load(checkpoint, trained, optimizer, fingerprint=fingerprint)
        if reached.step > settings.train:
            raise CheckpointError(f"{checkpoint} is of a longer training: {checkpoints.ANEW}")
    processes.require_same(f"the steps in {checkpoint}", reached.step)

    def loss_of(model: Any, texts: Tensor) -> Tensor:
        return model(input_ids=texts, labels=texts, use_cache=False).loss

    def drawn(step: int) -> Tensor:
        rng = np.random.default_rng((settings.seed, step))
        return torch.stack([draw(rng) for _ in range(settings.train_batch)])

    model.train()
    saved = clock = time.perf_counter()
    try:
        learner = processes.parallel(model, lambda model: loss_of(model, drawn(0)[:1].to(device)))
        for step in range(reached.step, settings.train):
            warm = max(1, settings.train // 10)
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * min(1.0, (step + 1) / warm)
            texts, weight = processes.part_of(drawn(step))
            with torch.random.fork_rng(devices=[]):  # dropout is the same in a training that is resumed
                torch.manual_seed(settings.seed + step + (processes.rank() << 32))
                loss = weight * loss_of(learner, texts.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
            optimizer.step()
            bits = float(processes.mean(loss.detach())) / math.log(2)
            if not math.isfinite(bits):
                raise DivergedError(f"the loss is {bits} at step {step + 1}")
            reached.step = step + 1
            reached.curve.append((reached.step, bits))
            now = time.perf_counter()
            reached.seconds, clock = reached.seconds + now - clock, now
            stopped = processes.most(stop.asked)
            late = now - saved >= SAVE_SECONDS or stopped or reached.step == settings.train
            if processes.rank() == 0 and late:
                checkpoints.save(checkpoint, trained, optimizer, reached, fingerprint=fingerprint)
                saved = clock = time.perf_counter()
            tick(reached.step, bits)
            if stopped and reached.step < settings.train:
                raise KeyboardInterrupt
    finally:
        model.eval()
    return reached
