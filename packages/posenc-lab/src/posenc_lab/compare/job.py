"""What processes other than the first do in a comparison: they train and test each model with it."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from torch import nn

from posenc_lab.compare.checkpoint import Reached
from posenc_lab.compare.config import CompareConfig, Rate
from posenc_lab.compare.task import Loaded, Measures
from posenc_lab.compare.tasks import task_of
from posenc_lab.compare.train import TUNING, DivergedError, train
from posenc_lab.kit.processes import Stop, jobs, own_device

Build: TypeAlias = Callable[[CompareConfig, str, int], nn.Module]
"""(configuration, scheme, seed) -> model."""

TUNED_STREAM = 2**30  # trials begin with weights that no training has


@dataclass(frozen=True)
class Training:
    """One training, of which every process does its part. The other jobs are (kind, length): test the trained model."""

    config: CompareConfig
    text: str  # the digest of the data
    scheme: str
    seed: int
    rate: Rate
    stream: int
    checkpoint: Path
    fingerprint: str

    def model(self, build: Build) -> nn.Module:
        """The model to train."""
        seed = self.seed + TUNED_STREAM if self.stream == TUNING else self.seed
        return build(self.config, self.scheme, seed).to(own_device(self.config.device))

    def run(self, model: nn.Module, loaded: Loaded, tick: Callable[[int, float], bool]) -> Reached:
        """Trains the model; raises what `train` raises."""
        task = task_of(self.config.task)
        return train(
            model,
            loaded.train,
            self.config,
            self.seed,
            self.checkpoint,
            rate=self.rate,
            stream=self.stream,
            fingerprint=self.fingerprint,
            loss_of=task.loss,
            targets=task.targets,
            tick=tick,
        )


def follow(build: Build) -> None:
    """Does the jobs that the first process tells. ValueError for a text that is not the first process's."""
    loaded: Loaded | None = None
    measures: Measures | None = None
    with Stop() as stop:
        for job in jobs():
            if not isinstance(job, Training):
                assert measures is not None
                measures.measure(*job)
                continue
            loaded = loaded or task_of(job.config.task).load(job.config)
            if loaded.digest != job.text:
                raise ValueError(f"text must be the same in all processes, got {loaded.digest} and {job.text}")
            model = job.model(build)
            with suppress(DivergedError):
                job.run(model, loaded, lambda step, bits: stop.asked)
            measures = loaded.evaluator(model, own_device(job.config.device), lambda tokens: stop.check_all())
