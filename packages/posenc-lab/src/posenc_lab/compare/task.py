"""Defines the interface of tasks, which models learn and are tested on."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from posenc.positions.positions import PositionError
from posenc.schedule import Schedule
from posenc.scheme import Scheme
from posenc.schemes.catalog import catalog
from posenc.schemes.entry import Entry, Shape
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.data import Bytes
from posenc_lab.compare.layers import entries
from posenc_lab.compare.train import Draw
from posenc_lab.kit import processes

Tick: TypeAlias = Callable[[int], None]
"""Called with the number of tokens after each forward pass of a test; what it raises stops the test."""


class Measures(ABC):
    """Tests one trained model."""

    AT_ONCE = 8192  # tokens in one forward pass, whose 256 logits each fit into a laptop's memory

    def __init__(self, model: nn.Module, tick: Tick) -> None:
        self.model, self._tick = model.eval(), tick
        self.tokens = 0  # processed so far

    def measure(self, kind: str, length: int) -> dict[str, Any]:
        """The fields of one measurement; ``undefined`` if the scheme does not define these positions."""
        try:
            return self._measure(kind, length)
        except PositionError as error:
            return {"undefined": str(error)}

    @abstractmethod
    def _measure(self, kind: str, length: int) -> dict[str, Any]:
        """One measurement. PositionError if the scheme has no such position."""

    @torch.inference_mode()
    def _run(self, scored: Callable[[Tensor], Tensor], examples: Tensor, tokens: int) -> Tensor:
        """The results of ``scored`` for all examples, of ``tokens`` tokens each, in batches that are divided over
        processes."""
        found = []
        for part in examples.split(max(self.AT_ONCE // tokens, 1) * processes.world()):
            found.append(processes.divided(scored, part))
            self.tokens += part.size(0) * tokens
            self._tick(part.size(0) * tokens)
        return torch.cat(found)


@dataclass(frozen=True)
class Loaded:
    """The loaded data of a task. ``tuning`` draws examples that are in neither training nor test. ``digest`` identifies
    the data, ``about`` describes it."""

    train: Draw
    tuning: Draw
    evaluator: Callable[[nn.Module, torch.device, Tick], Measures]
    testing_tokens: int  # approximately, of one model
    about: str
    digest: str
    notice: str = ""


ANSWERS = {"length": int, "accuracy": list[float], "examples": int}
"""The fields of a record of right answers."""


@dataclass(frozen=True)
class Kind:
    """A kind of measurement: its name in words, the fields of its record, and the title and caption of its picture."""

    called: str
    result: Mapping[str, Any]
    title: str = ""
    caption: str = ""


class Task(ABC):
    """One task, without state.

    A batch has rows of int64: the model's input, then, last in the row, the target.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}  # of the configuration
    multiples: ClassVar[tuple[float, ...]]  # the default test lengths, in training lengths
    called: ClassVar[str]  # an example, in words
    lengths: ClassVar[str]  # the unit of a length
    trained: ClassVar[str] = "training length"
    unit: ClassVar[str] = "bits"  # of the training loss
    kinds: ClassVar[Mapping[str, Kind]]  # of measurements
    score: ClassVar[str]  # the field with a value per window or example: bits or accuracy
    margin: ClassVar[float] = 0.02  # of the score; smaller differences are ties
    causal: ClassVar[bool] = False  # whether the model is a decoder
    segments: ClassVar[bool] = False  # whether tokens have segments
    grid: ClassVar[bool] = False  # whether tokens have a row and a column

    def refusal(self, entry: Entry) -> str:
        """Why a scheme cannot be used for this task; empty if it can."""
        if entry.needs_segments and not self.segments:
            return f"do without segments, of which {self.called} has none"
        if entry.least_axes > 1 and not self.grid:
            return f"do with one coordinate per token, since {self.called} has no second one"
        if entry.least_axes > 2:
            return f"do with two coordinates per token, since {self.called} has no third one"
        if entry.scheme.looks_back is not None and not self.causal:
            return f"encode keys after the query, since the model is no decoder (use {entry.scheme.looks_back})"
        return ""

    def require(self, scheme: str) -> None:
        """ValueError for a scheme that is unknown or does not apply to this task."""
        for entry in entries(scheme):
            if reason := self.refusal(entry):
                raise ValueError(f"schemes must {reason}, got {scheme!r}")

    def applicable(self) -> tuple[str, ...]:
        """The names of the catalog's schemes that apply to this task."""
        return tuple(entry.name for entry in catalog() if not self.refusal(entry))

    def left_out(self) -> dict[str, list[str]]:
        """The catalog's schemes that do not apply to this task, by the reason."""
        found: dict[str, list[str]] = {}
        for entry in catalog():
            if reason := self.refusal(entry):
                found.setdefault(f"schemes must {reason}", []).append(entry.name)
        return found

    def check(self, config: CompareConfig) -> None:  # noqa: B027 - most accept any
        """`ConfigError` for sizes that do not fit the task."""

    def sizes(self, config: CompareConfig, position: Scheme | Schedule) -> dict[str, Any]:
        """The arguments that all models of posenc share."""
        return {
            "dim": config.dim,
            "num_layers": config.layers,
            "num_heads": config.heads,
            "num_kv_heads": config.kv_heads,
            "position": position,
            "inject": config.inject,
            "per_layer": config.per_layer,
        }

    def tokens(self, config: CompareConfig) -> int:
        """The tokens of one training example."""
        return config.train_length

    def shape(self, config: CompareConfig, scheme: str) -> Shape:
        """The shape that the scheme is built for."""
        line = config.dim, config.heads, config.dim // config.heads, self.tokens(config)
        return Shape(*line, causal=self.causal, num_kv_heads=config.kv_heads)

    @abstractmethod
    def model(self, config: CompareConfig, scheme: str, position: Scheme | Schedule) -> nn.Module:
        """The model with that scheme, its other weights drawn from torch's generator."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """The mean loss of a batch, in nats."""

    def targets(self, batch: Tensor) -> int:
        """The number of losses of which `loss` is the mean, or any number that is proportional to it."""
        return len(batch)

    def tuning_lengths(self, config: CompareConfig) -> tuple[int, ...]:
        """The lengths at which trials are measured: first the one that decides."""
        return (config.train_length,)

    @abstractmethod
    def plan(self, scheme: str, lengths: Sequence[int], train_length: int) -> list[tuple[str, int]]:
        """Every (kind, length) to measure for a trained model."""

    @abstractmethod
    def load(self, config: CompareConfig) -> Loaded:
        """Loads the examples. ValueError if there are too few."""


class Answers(Task):
    """A task whose answers are right or wrong, with the texts of its report."""

    score = "accuracy"
    solved: ClassVar[float] = 0.95  # the mean accuracy from which a training has solved it
    title: ClassVar[str]
    axis: ClassVar[str]  # of lengths
    units: ClassVar[str]  # the independent units of examples
    chance: ClassVar[float]  # the accuracy of guessing
    how_to_read: ClassVar[tuple[str, ...]]
    not_concluded: ClassVar[tuple[str, ...]]

    def where(self, kind: str, length: int, train_length: int) -> str:
        """Begins a sentence about a measurement: "At 40 letters, 2× the training length"."""
        of = f"On {kind} at" if len(self.kinds) > 1 else "At"
        if length == train_length:
            return f"{of} the training length of {length:,} {self.lengths}"
        return f"{of} {length:,} {self.lengths}, {length / train_length:g}× the training length"

    def observed(self, guessing: Mapping[str, Sequence[str]], telling: Mapping[str, Sequence[str]]) -> str:
        """A sentence about the schemes at chance and those above it at the training length, by kind; or empty."""
        return ""


class Accuracy(Measures):
    """Measures the share of right answers: ``accuracy`` of each independent unit, and the ``examples`` in one."""

    def _measure(self, kind: str, length: int) -> dict[str, Any]:
        right = self._right(kind, length).double()
        return {"accuracy": [round(value, 6) for value in right.mean(1).tolist()], "examples": right.size(1)}

    @abstractmethod
    def _right(self, kind: str, length: int) -> Tensor:
        """Which answers are right, (units, examples of each)."""


class OfRows(Accuracy):
    """Tests one model on rows of tokens of each length."""

    def __init__(self, model: nn.Module, tests: Mapping[int, Bytes], device: torch.device, tick: Tick) -> None:
        super().__init__(model, tick)
        self._tests, self._device = tests, device

    def _rows(self, length: int) -> Tensor:
        return torch.from_numpy(self._tests[length].astype(np.int64)).to(self._device)


def listed(words: Iterable[str]) -> str:
    """Joins words as in a sentence.

    >>> listed(["rope", "alibi", "nope"])
    'rope, alibi and nope'
    """
    *first, last = ["", *words]
    return f"{', '.join(first[1:])} and {last}" if first[1:] else last
