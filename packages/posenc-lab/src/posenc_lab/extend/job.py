"""What one or more processes do with a scaling: they fine-tune the model, if asked, and make forward passes."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor, cat

from posenc_lab.compare.checkpoint import Reached
from posenc_lab.compare.train import DivergedError
from posenc_lab.extend import measure
from posenc_lab.extend import model as models
from posenc_lab.extend.resolve import scaling_of
from posenc_lab.extend.settings import Extension
from posenc_lab.extend.text import Tokens
from posenc_lab.extend.tune import prepared, tune
from posenc_lab.kit import processes
from posenc_lab.kit.files import rounded

Pass: TypeAlias = tuple[str, int, int]
"""(kind, number of the piece or puzzle, length) of a forward pass."""

Results: TypeAlias = dict[str, dict[str, Any]]
"""The results of a pass, by kind."""


@dataclass(frozen=True)
class Job:
    """One scaling, of which every process does its part."""

    settings: Extension
    windows: int | None  # as given, since how a text is divided depends on it
    digests: str  # of the model and the text
    scheme: str
    factors: tuple[list[float], list[float]] | None
    passes: tuple[Pass, ...]
    checkpoint: Path
    fingerprint: str


@dataclass
class Bench:
    """A model and a text in the memory of a process."""

    source: models.Source
    loaded: models.Loaded
    text: Tokens

    @cached_property
    def begin(self) -> Tensor:
        return measure.beginning(self.loaded.tokenizer)

    @property
    def digests(self) -> str:
        return f"{self.loaded.digest} {self.text.digest}"

    def do(
        self,
        job: Job,
        stop: processes.Stop,
        *,
        step: Callable[[int, float], None] = lambda step, bits: None,
        tuned: Callable[[Reached], None] = lambda reached: None,
        made: Callable[[Pass, Results], None] = lambda each, results: None,
    ) -> None:
        """Does a job; ``step`` is called after every step of fine-tuning, ``tuned`` after the last one, and ``made``
        with the results of each pass. DivergedError if the loss of fine-tuning is no longer finite."""
        s = job.settings
        if s.train:  # from the original weights, without holding two models in memory
            device = processes.own_device(s.device)
            self.loaded = replace(self.loaded, model=None)
            self.loaded = models.load(self.source, s.dtype, s.attention, device)
        model = self.loaded.model
        with patched(model, scaling_of(job.scheme, s, job.factors)):
            if s.train:
                model = prepared(model, s)
                tuned(tune(model, lambda rng: self._draw(rng, s), s, job.checkpoint, job.fingerprint, step, stop))
                model.requires_grad_(False)
            for first in range(0, len(job.passes), processes.world()):
                some = job.passes[first : first + processes.world()]
                found = processes.each(lambda one: self._pass(model, s, *one), some)
                for one, results in zip(some, found, strict=True):
                    made(one, results)
                stop.check_all()

    def _draw(self, rng: np.random.Generator, s: Extension) -> Tensor:
        return cat((self.begin, self.text.draw(rng, s.train_length or 0)[len(self.begin) :]))

    def _pass(self, model: Any, s: Extension, kind: str, number: int, length: int) -> Results:
        measure.begin_anew(model)
        if kind != "final":
            return {kind: {**measure.solved(model, self.puzzle(s, kind, number, length)), "depth": number % 1000}}
        if length < s.lengths[-1]:
            return {"final": self.final(model, s, number, length)}
        each, places = measure.by_position(model, self.text.pieces[number].tokens, length, s.scored, self.begin)
        return {"final": self._bits(each, number), "by_position": places}

    def final(self, model: Any, s: Extension, number: int, length: int) -> dict[str, Any]:
        """The loss of the final tokens of a piece, given ``length`` tokens."""
        return self._bits(measure.final(model, self.text.pieces[number].tokens, length, s.scored, self.begin), number)

    def _bits(self, each: Tensor, number: int) -> dict[str, Any]:
        piece = self.text.pieces[number]
        bits = float(each.sum()) / math.log(2) / piece.final_bytes
        return {"bits": rounded(bits), "tokens": len(each), "file": piece.file, "byte": piece.byte}

    def puzzle(self, s: Extension, kind: str, number: int, length: int) -> measure.Puzzle:
        """A puzzle, which is the same for every scaling."""
        tokenizer, rng = self.loaded.tokenizer, np.random.default_rng((s.seed, number, length))
        if kind == "item":
            return measure.item(tokenizer, length, number % 1000, self.begin, rng)
        filler = self.text.pieces[number // 1000 % len(self.text.pieces)].tokens
        return measure.passkey(tokenizer, filler, length, number % 1000, self.begin, rng)


def patched(model: Any, scaling: Any) -> AbstractContextManager[Any]:
    """The model with that scaling, inside the context."""
    if scaling is None:
        return nullcontext()
    from posenc.huggingface import patch

    made: AbstractContextManager[Any] = patch(model, scaling)
    return made


def load(settings: Extension, source: models.Source, windows: int | None) -> Bench:
    """Loads a model and a text."""
    device = processes.own_device(settings.device)
    loaded = models.load(source, settings.dtype, settings.attention, device)
    return Bench(
        source, loaded, Tokens(settings.text, loaded.tokenizer, settings.lengths[-1], settings.scored, windows)
    )


def follow() -> None:
    """Does the jobs that the first process tells. ValueError for a model or a text that are not the first process's."""
    bench: Bench | None = None
    with processes.Stop() as stop:
        for job in processes.jobs():
            bench = bench or load(job.settings, models.find(job.settings.model), job.windows)
            if bench.digests != job.digests:
                raise ValueError(
                    f"model and text must be the same in all processes, got {bench.digests} and {job.digests}"
                )
            with suppress(DivergedError):
                bench.do(job, stop)
