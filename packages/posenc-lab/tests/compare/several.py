"""A training in which several processes could go wrong."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.tasks import complete
from posenc_lab.compare.train import train
from posenc_lab.kit import processes

STEPS, WIDTH = 5, 600


class Told(nn.Module):
    """Tokens in float64, with a table and, maybe, a parameter that no loss depends on."""

    def __init__(self, unused: bool) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 8, dtype=torch.float64)
        self.table = nn.Embedding(8, WIDTH, dtype=torch.float64)
        if unused:
            self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens).cumsum(1).tanh())


def draw(rng: np.random.Generator, count: int, size: int) -> Any:
    """Rows with 1 to ``size - 1`` targets; what follows them is 0."""
    rows = rng.integers(1, 8, size=(count, size))
    lengths = rng.integers(2, size + 1, size=count)
    return np.where(np.arange(size) < lengths[:, None], rows, 0).astype(np.uint8)


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten(), ignore_index=0)


def learn(folder: str, batch_size: str, stop: str = "0", unused: str = "yes") -> None:
    """Trains, and writes weights and curve; process 1 asks to stop after step ``stop``, and all go on from there."""
    config = complete(CompareConfig(steps=STEPS, batch_size=int(batch_size), train_length=8, clip=0.1))

    def trained(last: int) -> Any:
        torch.manual_seed(0)
        model = Told(unused == "yes")
        reached = train(
            model,
            draw,
            config,
            0,
            Path(folder, "checkpoint"),
            loss_of=loss_of,
            targets=lambda batch: int((batch[:, 1:] > 0).sum()),
            tick=lambda step, bits: step == last and processes.rank() == 1,
        )
        return {**model.state_dict(), "curve": torch.tensor(reached.curve, dtype=torch.float64)}

    with processes.joined():
        if int(stop):
            try:
                trained(int(stop))
            except KeyboardInterrupt:
                processes.most(0)  # the first one has saved
            else:
                raise AssertionError("it went on")
        found = trained(0)
        everywhere = processes.each(lambda _: found, range(processes.world()))
    for other in everywhere[1:]:
        for name, value in found.items():
            assert torch.equal(other[name], value), name
    if not os.environ.get("RANK", "0").strip("0"):
        np.savez(Path(folder, "learned.npz"), **{name: value.numpy() for name, value in found.items()})
