"""Defines the interface of tasks, which models learn and are tested on."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from posenc.models import Decoder
from posenc.positions.positions import PositionError
from posenc.schedule import Schedule
from posenc.scheme import Scheme
from posenc.schemes.catalog import catalog, entries_of, scheme_from_names
from posenc.schemes.entry import Entry, Shape
from posenc.schemes.user_code import LAYER_SEPARATOR
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.train import Draw
from posenc_lab.kit import processes

WINDOW = "@"

BITS, ACCURACY = "bits per byte", "share of right answers"
BEGUN = 0.1  # bits per byte of use of the source (`posenc_lab.compare.pieces`) at which a model looks back
IN_A_ROW = 3  # points of the training curve with as much, from which on it has begun to


def entries(names: str) -> tuple[Entry, ...]:
    """The entries of every scheme in ``names``. ValueError as for `entries_of`, and for an invalid window."""
    return tuple(dict.fromkeys(entry for scheme, _ in _parts(names) for entry in entries_of(scheme)))


def position_from(names: str, shape: Shape, num_layers: int) -> Scheme | Schedule:
    """The scheme or schedule of a model with ``layers`` layers."""
    parts = _parts(names)
    made = {scheme: scheme_from_names(scheme, shape) for scheme, _ in parts}
    if parts == [(names, None)]:
        return made[names]
    if len(parts) > num_layers:
        raise ValueError(f"schemes must name a scheme for each of {num_layers} layers at most, got {names!r}")
    chosen = (parts[layer % len(parts)] for layer in range(num_layers))
    return Schedule([(made[scheme], window) for scheme, window in chosen])


def _parts(names: str) -> list[tuple[str, int | None]]:
    """The scheme and the window of each layer."""
    found: list[tuple[str, int | None]] = []
    for part in LAYER_SEPARATOR.split(names):
        scheme, marked, window = part.partition(WINDOW)
        if marked and not (window.isascii() and window.isdecimal() and int(window)):
            raise ValueError(f"schemes must have a number of tokens after {WINDOW}, got {names!r}")
        found.append((scheme, int(window) if marked else None))
    return found


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
    the data, ``about`` describes it. ``probe`` measures a model at every point of its training curve."""

    train: Draw
    tuning: Draw
    evaluator: Callable[[nn.Module, torch.device, Tick], Measures]
    testing_tokens: int  # approximately, of one model
    about: str
    digest: str
    notice: str = ""
    probe: Callable[[nn.Module, torch.device], float] | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of measurement: its name in words, and the fields of its record."""

    called: str
    result: Mapping[str, Any]


class Task(ABC):
    """One task, without state.

    A batch has rows of int64: the model's input, then, last in the row, the target.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}  # of the configuration
    multiples: ClassVar[tuple[float, ...]]  # the default test lengths, in training lengths
    called: ClassVar[str]  # an example, in words
    lengths: ClassVar[str]  # the unit of a length
    unit: ClassVar[str] = "bits"  # of the training loss
    characters: ClassVar[int] = 256  # that the model knows
    kinds: ClassVar[Mapping[str, Kind]]  # of measurements, the main one first
    score: ClassVar[str]  # the field with a value per window or example: bits or accuracy
    measure: ClassVar[str] = BITS  # what the main numbers are, in words
    higher: ClassVar[bool] = False  # whether higher ones are better
    examples: ClassVar[str] = "windows of text"
    title: ClassVar[str]  # of the report, and its figures: first, and below the tables under the heading ``others``
    figures: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]]
    others: ClassVar[str]
    how_to_read: ClassVar[tuple[str, ...]]
    not_concluded: ClassVar[tuple[str, ...]]
    training: ClassVar[Mapping[str, Any]] = {}  # what the record of a training has beside
    margin: ClassVar[float] = 0.02  # of the score; smaller differences are ties

    def refusal(self, entry: Entry) -> str:
        """Why a scheme cannot be used for this task; empty if it can."""
        if entry.needs_segments:
            return f"do without segments, of which {self.called} has none"
        if entry.least_axes > 1:
            return f"do with one coordinate per token, since {self.called} has no second one"
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

    def tokens(self, config: CompareConfig) -> int:
        """The tokens of one training example."""
        return config.train_length

    def shape(self, config: CompareConfig) -> Shape:
        """The shape that schemes are built for."""
        line = config.dim, config.heads, config.dim // config.heads, self.tokens(config)
        return Shape(*line, num_kv_heads=config.kv_heads)

    def model(self, config: CompareConfig, position: Scheme | Schedule) -> nn.Module:
        """The decoder with that scheme, its other weights drawn from torch's generator."""
        return Decoder(
            self.characters,
            dim=config.dim,
            num_layers=config.layers,
            num_heads=config.heads,
            num_kv_heads=config.kv_heads,
            position=position,
            inject=config.inject,  # type: ignore[arg-type]  # one of two, which the configuration checks
            per_layer=config.per_layer,
        )

    @abstractmethod
    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """The mean loss of a batch, in nats."""

    def targets(self, batch: Tensor) -> int:
        """The number of losses of which `loss` is the mean, or any number that is proportional to it."""
        return len(batch)

    def tuning_lengths(self, config: CompareConfig) -> dict[str, int]:
        """The lengths at which trials are measured, by the field of the record: that of training and twice that, which
        decide, and the longest."""
        longest = max(config.train_length, config.test_lengths[-1])
        return {"bits": config.train_length, "twice": min(2 * config.train_length, longest), "longest": longest}

    @abstractmethod
    def plan(self, lengths: Sequence[int], train_length: int) -> list[tuple[str, int]]:
        """Every (kind, length) to measure for a trained model."""

    @abstractmethod
    def load(self, config: CompareConfig) -> Loaded:
        """Loads the examples. ValueError if there are too few."""


def listed(words: Iterable[str]) -> str:
    """Joins words as in a sentence.

    >>> listed(["rope", "alibi", "nope"])
    'rope, alibi and nope'
    """
    *first, last = ["", *words]
    return f"{', '.join(first[1:])} and {last}" if first[1:] else last
